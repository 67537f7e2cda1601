"""Text without passwords and tokens: an exception may quote a URL or a variable that holds one.

NAMES and IN_TEXT are those of ddp_ladder.common.redaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"
SHORTEST = 8  # characters of a value that is looked for in a text; a shorter one may be any word

NAMES = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials|(?:api|access|private)key|[_-](?:pass|pwd|psk|key))[0-9]*"
)
IN_TEXT = rf"""(?ix) (
    \b [\w-]* {NAMES} (?: =['"]? | ['"]\s*:\s*['"] )    # NAME=value of a shell, 'name': 'value' of a mapping
    | \b authorization ['"]?\s*[:=]\s*['"]? (?:\w+\s+)? | \b bearer\s+ (?=\S{{8}})
    | :// [^\s/:@'"]* : (?=[^\s/'"]*@)                   # the password of an address
    ) (?! \*\*\* | \w+\ \*\*\* | \.\.\. | [$<] ) [^\s'",;&)@]+"""
NAMED: set[str] = set()
"""The variables that workload.secrets names."""


def redacted(text: str, environment: Mapping[str, str]) -> str:
    """Return text without secrets, among them the values of the environment's variables that hold one."""
    is_usual = re.compile(rf"(?i){NAMES}$").search
    names = [name for name in environment if name in NAMED or is_usual(name)]
    known = [environment[name] for name in names if len(environment[name]) >= SHORTEST]
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return re.sub(IN_TEXT, rf"\1{HIDDEN}", text)
