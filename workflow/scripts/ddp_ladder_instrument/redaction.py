"""Secrets: the usual names of variables and options that hold one, and text without their values.

An exception or a log may quote a URL or a variable that holds one. The forms of services' tokens are those of a scanner
(secret_rules.json, written by benchmarks/secret_rules.py); names stand here. Other secrets are named in
``workload.secrets``. No file has the value of one: it comes from the environment of the start.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
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
    \b [\w-]* {NAMES} (?: =['"]? | ['"]\s*:\s*['"]     # NAME=value of a shell, 'name': 'value' of a mapping
        | \s?[:=]\s? (?=[\w+/=-]{{16}}) (?=\w*\d) (?![a-z]+_) (?=\S*[a-z]) )  # name: value, of no usual word
    | (?<![\w-]) --? [\w-]* {NAMES} \s+ (?=\S{{8}}) (?=\S*\d)  # --name value of a command
    | \b key= (?=[a-z0-9-]{{16}}) (?=\S*\d)
    | \b (?:sk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA) (?=[\w-]{{16}})
    | (?:signature | [?&] (?:sig | x-\w+-(?:credential|security-token))) = (?=[\w%/+-]{{16}})
    | \b authorization ['"]?\s*[:=]\s*['"]? (?:\w+\s+)? | \b bearer\s+ (?=\S{{8}})
    | :// [^\s/:@'"]* : (?=[^\s/'"]*@)                   # the password of an address
    ) (?! \*\*\* | \w+\ \*\*\* | \.\.\. | [$<] ) [^\s'",;&)@]+"""

_PASSWORD = r"""(?ix) (
    (?<!-) \b [\w-]* (?:passw(?:or)?d | passphrase | [_-]secret | secret [_-]? (?:access [_-]?)? key)
        [ \t]* [:=] [ \t]* ['"]? (?! (?:true|false|none|null|yes|no|auto|expected|required|\d) \b)
    | \b login \s+ \S+ \s+ (?:account \s+ \S+ \s+)? password \s+           # of .netrc
    ) (?! \*\*\* | \.\.\. | [$<{(\[;,] ) [^\s'"]+"""
_PRIVATE_KEY = r"""(?x) (-----BEGIN\ [A-Z ]*PRIVATE\ KEY(?:\ BLOCK)?-----) (?:
    (?: (?!-----) [\s\S] ){1,20000} -----END\ [A-Z ]*-----
    | (?: \s+ [^\n]{0,40}? [A-Za-z0-9+/=]{40,} )+ )                         # its end is missing"""
_OWN = (_PRIVATE_KEY, _PASSWORD, IN_TEXT)


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
    for pattern in _OWN:
        text = re.sub(pattern, rf"\1{HIDDEN}", text)
    for secret in sorted(_tokens_in(text), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def secrets_in(text: str) -> set[str]:
    """Return the passwords and tokens that ``redacted`` hides in a text."""
    named = {found[0][len(found[1]) :] for pattern in _OWN for found in re.finditer(pattern, text)}
    return named | _tokens_in(text)


@lru_cache(maxsize=None)
def _rules() -> tuple[tuple[str, Sequence[str], float], ...]:
    """Return pattern, words of which a text must have one, and the least entropy of each rule of the scanner."""
    with open(os.path.join(os.path.dirname(__file__), "secret_rules.json"), encoding="utf-8") as file:
        return tuple((rule["regex"], rule["keywords"], rule["entropy"]) for rule in json.load(file)["rules"])


def _tokens_in(text: str) -> set[str]:
    found, lower = set(), text.lower()
    for pattern, words, least in _rules():
        if any(word in lower for word in words):
            for match in re.finditer(pattern, text):
                secret = next(filter(None, match.groups()), match[0])
                if _entropy(secret) >= least:
                    found.add(secret)
    return found


def _entropy(text: str) -> float:
    """Return the bits of a character."""
    shares = [number / len(text) for number in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)
