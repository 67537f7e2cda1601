"""Secrets: the usual names of variables and options that hold one, and text without their values. Pure.

ddp_ladder_instrument has the same two expressions, as neither package imports the other. Other secrets are named in
``workload.secrets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

HIDDEN = "***"
NOT_SHOWN = "(not shown)"

NAMES = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials|(?:api|access|private)key|[_-](?:pass|pwd|psk|key))[0-9]*"
)
"""How the usual names end: HF_TOKEN, PGPASSWORD, WANDB_API_KEY."""
_SECRET_NAME = re.compile(rf"(?i){NAMES}$")
IN_TEXT = rf"""(?ix) (
    \b [\w-]* {NAMES} (?: =['"]? | ['"]\s*:\s*['"] )    # NAME=value of a shell, 'name': 'value' of a mapping
    | \b authorization ['"]?\s*[:=]\s*['"]? (?:\w+\s+)? | \b bearer\s+ (?=\S{{8}})
    | :// [^\s/:@'"]* : (?=[^\s/'"]*@)                   # the password of an address
    ) (?! \*\*\* | \w+\ \*\*\* | \.\.\. | [$<] ) [^\s'",;&)@]+"""


def is_secret_name(name: str) -> bool:
    """Return True if the value of a variable or an option with this name is a secret."""
    return _SECRET_NAME.search(name) is not None


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return text that quotes a program, without passwords and tokens. secrets: values that are known to be some."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _without_recognised(text)


@lru_cache(maxsize=1024)  # the same texts recur in the records of all runs
def _without_recognised(text: str) -> str:
    return re.sub(IN_TEXT, rf"\1{HIDDEN}", text)


def redacted_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments of a script for people, without the values of options such as --api-key."""
    hidden = set(secret_arguments(arguments))
    return tuple(
        HIDDEN if k in hidden and not word.startswith("-") else redacted(word) for k, word in enumerate(arguments)
    )


def secret_arguments(arguments: Sequence[str]) -> list[int]:
    """Return the indices of the arguments that hold a secret."""
    found = []
    for k, word in enumerate(arguments):
        before = arguments[k - 1] if k else ""
        follows = before.startswith("-") and is_secret_name(before) and not word.startswith("-")
        if (follows and not word.isdecimal()) or redacted(word) != word:
            found.append(k)
    return found
