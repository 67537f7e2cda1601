"""Secrets: the usual names of variables and options that hold one, and text without their values.

An exception or a log may quote a URL or a variable that holds one. Other secrets are named in ``workload.secrets``. No
file has the value of one: it comes from the environment of the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

HIDDEN = "***"
FROM_ENVIRONMENT = "(secret from the environment)"
"""In place of a secret's value, in plan and scripts."""
SHORTEST = 8  # characters of a value that is looked for in a text; a shorter one may be any word
NAMED = set[str]()
"""The variables that workload.secrets names, of the run of this process."""

NAMES = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials|(?:api|access|private)key|[_-](?:pass|pwd|psk|key))[0-9]*"
)
"""How the usual names end: HF_TOKEN, PGPASSWORD, WANDB_API_KEY."""
_SECRET_NAME = re.compile(rf"(?i){NAMES}$")
_ADDRESS = r"""(?x) :// [^\s/:@'"]* : (?=[^\s/'"]*@) (?! \*\*\* | [$<{])"""  # one with a password
_ALWAYS = re.compile(r"(?i)(passw(or)?d|passphrase|secret|api[_-]?key|(^-*|auth[_-]|access[_-]|api[_-]|hf[_-])token)$")
"""Options whose value is a secret. Others, such as --pad-token and --image-key, often name no secret."""
_VALUE = re.compile(r"(?is)(?!(true|false|none|null|yes|no|auto|\d)$)[^-/~.<[{$(*].*")
_GENERATED = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+=-]{16,}")
IN_TEXT = rf"""(?ix) (
    \b [\w-]* {NAMES} (?: =['"]? | ['"]\s*:\s*['"] )    # NAME=value of a shell, 'name': 'value' of a mapping
    | (?<![\w-]) --? [\w-]* {NAMES} \s+ (?=\S{{8}}) (?=\S*\d)  # --name value of a command
    | \b key= (?=[a-z0-9-]{{16}}) (?=\S*\d) | \b (?:sk-|hf_|gh[opsu]_|github_pat_) (?=[\w-]{{16}})
    | \b authorization ['"]?\s*[:=]\s*['"]? (?:\w+\s+)? | \b bearer\s+ (?=\S{{8}})
    | :// [^\s/:@'"]* : (?=[^\s/'"]*@)                   # the password of an address
    ) (?! \*\*\* | \w+\ \*\*\* | \.\.\. | [$<] ) [^\s'",;&)@]+"""


def is_secret_name(name: str) -> bool:
    """Return True if the value of a variable or an option with this name is a secret."""
    return _SECRET_NAME.search(name) is not None


def secrets_among(words: Sequence[str]) -> Iterator[int]:
    """Yield the places of the words of a command that hold a secret: an option's value, the password of an address."""
    option = ""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("-") and re.match(r"[A-Za-z_]\w*=", value):  # --env=NAME=value
            name, _, value = value.partition("=")
        if not equals:
            name, value, option = option, word, word if word.startswith("-") else ""
        is_value = _VALUE if _ALWAYS.search(name) else _GENERATED
        if re.search(_ADDRESS, word) or (is_secret_name(name) and is_value.fullmatch(value)):
            yield place


def redacted_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command without secrets."""
    places = set(secrets_among(words))
    return [
        word if k not in places else text if (text := redacted(word)) != word else HIDDEN
        for k, word in enumerate(words)
    ]


def without_values(text: str, environment: Mapping[str, str]) -> str:
    """Return text without the secrets in the environment of a process, in any form; very short ones are left."""
    known = {value for name, value in environment.items() if name in NAMED or is_secret_name(name)}
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN) if len(secret) >= SHORTEST else text
    return redacted(text)


@lru_cache(maxsize=1024)  # the same texts recur in the records of all runs
def redacted(text: str) -> str:
    """Return text that quotes a program, without passwords and tokens."""
    return re.sub(IN_TEXT, rf"\1{HIDDEN}", text)
