"""Whether a value is one that an environment variable may hold, in the notation of variables.tsv."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ddp_ladder.common.messages import did_you_mean

_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)?")
_INTERFACE = re.compile(r"[A-Za-z0-9._@:-]{1,15}")  # Linux allows 15 characters
_DEVICE = re.compile(r"[A-Za-z0-9._-]+(:[0-9]*){0,3}")
_VISIBLE = re.compile(r" *(-?[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+) *")
_PLACES = ("threads", "cores", "ll_caches", "numa_domains", "sockets")  # OpenMP 5.2
_PAIR = re.compile(r"[a-z0-9_]+:(\[[^\[\]]*\]|[^,:\[\]]+)")
_TRUE, _FALSE = ("true", "yes", "on", "enable", "enabled"), ("false", "no", "off", "disable", "disabled")


def objection(allowed: str, value: str) -> tuple[str, str | None] | None:
    """Return what a variable may hold, and advice, if this value is not that; None if it is."""
    kind, _, rest = allowed.partition(" ")
    if kind in _KINDS:
        return _KINDS[kind](value, rest.split())
    return _one_of(value, allowed.split())


def _any(value: str, words: Sequence[str]) -> None:
    return None


def _path(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    if not value:
        return "the path of a file", None
    # The shell expands it, and so do the settings; what is left reaches the program, which does not.
    return ("a path without ~", "write the whole path") if value.startswith("~") else None


def _int(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    return None if _INTEGER.fullmatch(value) else ("a whole number", _plain_number(value))


def _number(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    return None if _NUMBER.fullmatch(value) else ("a number above 0", None)


def _exact(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    if _is_one(value, words, exact=True):
        return None
    same = next((word for word in words if word.lower() == value.lower()), None)
    advice = f"write {same}: upper and lower case matter here" if same else did_you_mean(value.upper(), words)
    return _in_words(words), advice


def _one_of(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    return None if _is_one(value, words) else (_in_words(words), _advice(value, words))


def _list(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    wrong = [item for item in value.removeprefix("^").split(",") if not _is_one(item, words)]
    if not wrong or (not value and not any(_RANGE.fullmatch(word) for word in words)):
        return None
    return f"{_in_words(words)}; several with commas between them", _advice(wrong[0], words)


def _functions(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    items = [item for part in value.split(";") for item in part.rpartition(":")[2].removeprefix("^").split(",")]
    wrong = [item for item in items if not _is_one(item, words)]
    shape = f"{_in_words(words)}; several with commas between them, also for one function: allreduce:{words[0]}"
    return (shape, _advice(wrong[0], words)) if wrong else None


def _prefixes(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    return _names_of(value, _INTERFACE, "interfaces")


def _devices(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    return _names_of(value, _DEVICE, "devices, such as mlx5_0 or mlx5_0:1")


def _names_of(value: str, form: re.Pattern[str], what: str) -> tuple[str, str | None] | None:
    names = re.sub(r"^\^?=?", "", value).split(",")
    if all(form.fullmatch(name) for name in names):
        return None
    shape = f"names of {what}, with commas between them; = in front for exactly these, ^ or ^= for all others"
    return shape, "write the = and ^ once, in front of the first name, and no spaces"


def _names(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    if all(_INTERFACE.fullmatch(name) for name in value.split(",")):
        return None
    return "names of interfaces with commas between them; unlike NCCL, Gloo takes no ^ and no =", None


def _gpus(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    if not value or all(_VISIBLE.fullmatch(item) for item in value.split(",")):
        return None
    return "numbers or UUIDs of GPUs with commas between them; CUDA ignores what follows another character", None


def _places(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    # A runtime may have names of its own, but none has one without its s.
    name = re.split(r"[(:]", value.strip().lower(), maxsplit=1)[0].strip()
    if f"{name}s" not in _PLACES:
        return None
    return f"{', '.join(_PLACES)}, or a list of places such as {{0:4}},{{4:4}}", f"write {name}s"


def _pairs(value: str, words: Sequence[str]) -> tuple[str, str | None] | None:
    # Commas inside brackets do not separate.
    parts = re.split(r",(?![^\[\]]*\])", value)
    if all(_PAIR.fullmatch(part.strip()) for part in parts):
        return None
    return "key:value pairs with commas between them, such as expandable_segments:True", None


_KINDS: Mapping[str, Callable[[str, Sequence[str]], tuple[str, str | None] | None]] = {
    "text": _any,
    "secret": _any,
    "path": _path,
    "int": _int,
    "number": _number,
    "exact": _exact,
    "list": _list,
    "functions": _functions,
    "prefixes": _prefixes,
    "devices": _devices,
    "names": _names,
    "gpus": _gpus,
    "places": _places,
    "pairs": _pairs,
}
KINDS = frozenset(_KINDS)


def _is_one(value: str, words: Sequence[str], exact: bool = False) -> bool:
    if value in words or (not exact and value.lower() in (word.lower() for word in words)):
        return True
    if not _INTEGER.fullmatch(value):
        return False
    number = int(value, 16 if "x" in value.lower() else 10)
    ranges = [found for word in words if (found := _RANGE.fullmatch(word))]
    return any(int(found[1]) <= number and (not found[2] or number <= int(found[2])) for found in ranges)


def _in_words(words: Sequence[str]) -> str:
    return ", ".join(_RANGE.sub(_range_in_words, word) for word in words)


def _range_in_words(found: re.Match[str]) -> str:
    low, high = int(found[1]), found[2]
    if not high:
        return f"a whole number from {low} on"
    return f"{low} or {high}" if int(high) == low + 1 else f"a whole number from {low} to {high}"


def _advice(value: str, words: Sequence[str]) -> str | None:
    """Return what the user may have meant."""
    for texts, number in ((_TRUE, "1"), (_FALSE, "0")):
        if value.lower() in texts and _is_one(number, words):
            return f"write {number}: it is read as a number, and words as 0"
    return _plain_number(value) or did_you_mean(value.upper(), [word.upper() for word in words if ".." not in word])


def _plain_number(value: str) -> str | None:
    """Return advice for a number with a unit: ``4M``; not for ``10m``, which may be minutes."""
    found = re.fullmatch(r"([0-9]{1,9}) ?([KMG])i?B?", value)
    if found is None:
        return None
    return f"write {int(found[1]) * 1024 ** ('KMG'.index(found[2]) + 1)}, the number of bytes"
