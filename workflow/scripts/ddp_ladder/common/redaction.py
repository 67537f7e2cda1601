"""Secrets: which names and values hold one, and text without them. Pure.

ddp_ladder_instrument/redaction.py has the same rules for text, as neither package imports the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

HIDDEN = "***"
NOT_SHOWN = "(not shown)"

# Of a word without its number and plural S: PGPASSWORD, AUTH_TOKENS, KEY2.
_ENDINGS = ("TOKEN", "KEY", "SECRET", "PASS", "PASSWD", "PASSWORD", "PASSPHRASE", "CREDENTIAL", "PSK")
_ALIKE = frozenset({"MONKEY", "HOTKEY", "PKEY", "BYPASS", "COMPASS", "LOWPASS", "HIGHPASS", "BANDPASS"})
# A word of a name that counts things: MAX_TOKENS.
_COUNTING = frozenset({"NUM", "N", "MAX", "MIN", "TOTAL", "PER"})
# The last word of a name whose value only belongs to a secret: where it is, or how large it may be.
_ABOUT = frozenset(
    {"FILE", "PATH", "DIR", "DIRECTORY", "SOCK", "SOCKET", "SIZE", "LENGTH", "LEN", "LIMIT", "COUNT", "BUDGET", "TYPE",
     "NAME", "TIMEOUT", "TTL"}
)  # fmt: skip
_BETWEEN_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")

_TOKENS = (
    r"\bhf_[A-Za-z0-9]{16,}",
    r"\bgh[pousr]_[A-Za-z0-9]{16,}",
    r"\bgithub_pat_[A-Za-z0-9_]{16,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\bAIza[A-Za-z0-9_-]{30,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]+-----END [A-Z ]*PRIVATE KEY-----)?",
)
_TOKEN = re.compile("|".join(_TOKENS))
# user:password@ of any address; of the web's also token@, while ssh://git@host names a user.
_CREDENTIALS = re.compile(
    r"\b(https?://(?=[^\s/@:'\"?#,;]+@)|[A-Za-z][A-Za-z0-9+.-]{0,20}://(?=[^\s/@:'\"]*:))[^\s/'\"]*@"
)
_HEADER = re.compile(
    r"(\bauthorization\b['\"]?\s*[:=]\s*['\"]?)(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?[^\s'\",;*][^\s'\",;]*",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
# ?token=value of an address
_QUERY = re.compile(r"(?<=[?&])([A-Za-z][A-Za-z0-9_.-]*)=(?!\*\*\*)[^\s&#'\"]+")
# NAME=value of a shell, and 'password': 'value' of a mapping; not `token=5` of an expression.
_ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]*)(=['\"]?)(?!\.\.\.|\$|<|\*)[^\s'\",;)\]}]+")
_QUOTED = re.compile(r"(['\"])([A-Za-z][A-Za-z0-9_-]*)\1(\s*:\s*)(['\"])(?!\*\*\*)[^'\"]+\4")


def is_secret_name(name: str) -> bool:
    """Return True if the value of a variable or an option with this name is a secret."""
    numbered = (word.upper().rstrip("0123456789") for word in _BETWEEN_WORDS.split(name))
    words = [word for word in numbered if word]
    if not words or words[-1] in _ABOUT:
        return False
    if words[-1] == "PWD" and len(words) > 1:  # alone it is a directory, as OLDPWD
        return True
    if _COUNTING.isdisjoint(words):
        words += [word.removesuffix("S") for word in words]
    return any(word.endswith(_ENDINGS) and word not in _ALIKE for word in words)


def is_amount(name: str, value: str) -> bool:
    """Return True for a number of things, which is no secret: TRAIN_TOKENS=1000000."""
    return name.upper().endswith(("TOKENS", "KEYS")) and _is_number(value)


def is_secret_value(value: str) -> bool:
    """Return True if a value holds a secret, whatever its name: a URL with a password, a token of a well-known form."""
    in_address = any(is_secret_name(found[1]) for found in _QUERY.finditer(value))
    return in_address or any(form.search(value) for form in (_TOKEN, _CREDENTIALS, _HEADER, _BEARER))


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return text that quotes a program, without passwords and tokens. secrets: values that are known to be some."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _without_recognised(text)


@lru_cache(maxsize=1024)  # the same texts recur in the records of all runs
def _without_recognised(text: str) -> str:
    text = _TOKEN.sub(HIDDEN, text)
    text = _CREDENTIALS.sub(rf"\1{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(lambda found: f"{found[1]}={HIDDEN}" if is_secret_name(found[1]) else found[0], text)
    text = _ASSIGNED.sub(lambda found: f"{found[1]}{found[2]}{HIDDEN}" if is_secret_name(found[1]) else found[0], text)
    return _QUOTED.sub(_without_quoted, text)


def _without_quoted(found: re.Match[str]) -> str:
    name = f"{found[1]}{found[2]}{found[1]}"
    return f"{name}{found[3]}{found[4]}{HIDDEN}{found[4]}" if is_secret_name(found[2]) else found[0]


def redacted_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments of a script for people, without the values of options such as --api-key."""
    hidden = set(secret_arguments(arguments))
    return tuple(
        redacted(word) if k not in hidden else word.partition("=")[0] + f"={HIDDEN}" if _is_option(word) else HIDDEN
        for k, word in enumerate(arguments)
    )


def secret_arguments(arguments: Sequence[str]) -> list[int]:
    """Return the indices of the arguments that hold a secret."""
    found = []
    for k, word in enumerate(arguments):
        before = arguments[k - 1] if k else ""
        name, equals, value = word.partition("=")
        given = _is_option(word) and equals and is_secret_name(name) and not is_amount(name, value)
        follows = _is_option(before) and "=" not in before and is_secret_name(before) and not _is_option(word)
        if given or (follows and not _is_number(word)) or is_secret_value(word):
            found.append(k)
    return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _is_number(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
