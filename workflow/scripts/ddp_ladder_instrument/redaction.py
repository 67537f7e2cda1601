"""Text without passwords and tokens: an exception may quote a URL or a variable that holds one.

The same rules as those of ddp_ladder.common.redaction, which explains them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"
SHORTEST = 8  # characters of a value that is looked for in a text; a shorter one may be any word

_ENDINGS = ("TOKEN", "KEY", "SECRET", "PASS", "PASSWD", "PASSWORD", "PASSPHRASE", "CREDENTIAL", "PSK")
_ALIKE = frozenset({"MONKEY", "HOTKEY", "PKEY", "BYPASS", "COMPASS", "LOWPASS", "HIGHPASS", "BANDPASS"})
_COUNTING = frozenset({"NUM", "N", "MAX", "MIN", "TOTAL", "PER"})
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
_CREDENTIALS = re.compile(
    r"\b(https?://(?=[^\s/@:'\"?#,;]+@)|[A-Za-z][A-Za-z0-9+.-]{0,20}://(?=[^\s/@:'\"]*:))[^\s/'\"]*@"
)
_HEADER = re.compile(
    r"(\bauthorization\b['\"]?\s*[:=]\s*['\"]?)(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?[^\s'\",;*][^\s'\",;]*",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_QUERY = re.compile(r"(?<=[?&])([A-Za-z][A-Za-z0-9_.-]*)=(?!\*\*\*)[^\s&#'\"]+")
_ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]*)(=['\"]?)(?!\.\.\.|\$|<|\*)[^\s'\",;)\]}]+")
_QUOTED = re.compile(r"(['\"])([A-Za-z][A-Za-z0-9_-]*)\1(\s*:\s*)(['\"])(?!\*\*\*)[^'\"]+\4")


def redacted(text: str, environment: Mapping[str, str]) -> str:
    """Return text without secrets, among them the values of the environment's variables that hold one."""
    known = (value for name, value in environment.items() if len(value) >= SHORTEST and is_secret_name(name))
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
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
