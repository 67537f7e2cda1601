"""Environment variables of one run that contradict each other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_MOST_SOCKETS = 64  # of NCCL, per connection


@dataclass(frozen=True)
class Contradiction:
    """Names of variables whose values do not go together. certain: False if it only may be otherwise than meant."""

    names: tuple[str, ...]
    what: str
    next: str
    certain: bool = True


def contradictions(values: Mapping[str, str]) -> Iterator[Contradiction]:
    """Yield what contradicts itself in the variables of one run."""
    yield from _networks(values)
    yield from _levels(values)
    yield from _bounds(values)
    yield from _debugging(values)


def _networks(values: Mapping[str, str]) -> Iterator[Contradiction]:
    network, without_ib = values.get("NCCL_NET", "").lower(), _is_on(values, "NCCL_IB_DISABLE")
    if network == "ib" and without_ib:
        what = "NCCL is to use InfiniBand alone, and not to use it: it would find no network and end the run"
        yield Contradiction(("NCCL_NET", "NCCL_IB_DISABLE"), what, "remove one of the two")
    for name in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX"):
        if name in values and without_ib:
            what = f"{name} chooses among InfiniBand devices, none of which may be used"
            yield Contradiction((name, "NCCL_IB_DISABLE"), what, "remove one of the two")
        elif name in values and network == "socket":
            what = f"{name} chooses among InfiniBand devices, and NCCL is to use sockets"
            yield Contradiction((name, "NCCL_NET"), what, "remove one of the two")
    if values.get("NCCL_MNNVL_ENABLE") == "1" and values.get("NCCL_CUMEM_ENABLE") == "0":
        what = "NVLink between nodes needs the memory that NCCL_CUMEM_ENABLE: 0 forbids"
        yield Contradiction(("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE"), what, "remove one of the two")


def _levels(values: Mapping[str, str]) -> Iterator[Contradiction]:
    if "NCCL_P2P_LEVEL" in values and _is_on(values, "NCCL_P2P_DISABLE"):
        what = "NCCL_P2P_LEVEL has no effect: NCCL_P2P_DISABLE forbids all transfers between GPUs"
        yield Contradiction(("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"), what, "remove one of the two")


def _bounds(values: Mapping[str, str]) -> Iterator[Contradiction]:
    for what in ("CTAS", "NCHANNELS"):
        low, high = f"NCCL_MIN_{what}", f"NCCL_MAX_{what}"
        least, most = _number(values, low), _number(values, high)
        if least is not None and most is not None and least > most:
            yield Contradiction((low, high), "the minimum is above the maximum", "exchange them, or remove one")
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    threads, each = (_number(values, name) for name in names)
    if threads and each and threads * each > _MOST_SOCKETS:
        what = f"{threads} threads with {each} sockets each: NCCL takes at most {_MOST_SOCKETS} sockets"
        yield Contradiction(names, what, "lower one of the two")


def _debugging(values: Mapping[str, str]) -> Iterator[Contradiction]:
    level = values.get("NCCL_DEBUG", "").upper()
    if "NCCL_DEBUG_SUBSYS" in values and level not in ("INFO", "TRACE"):
        what = "NCCL_DEBUG_SUBSYS filters the output of NCCL_DEBUG: INFO, and has no effect without it"
        yield Contradiction(("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG"), what, "set NCCL_DEBUG: INFO, or remove it", False)
    if "NCCL_DEBUG_FILE" in values and level in ("NONE", "VERSION"):
        what = "NCCL_DEBUG_FILE stays empty: NCCL_DEBUG writes no messages"
        yield Contradiction(("NCCL_DEBUG_FILE", "NCCL_DEBUG"), what, "set NCCL_DEBUG: WARN, or remove it", False)


def interface_problem(name: str, value: str, here: Collection[str]) -> str | None:
    """Return what is wrong with a choice of interfaces on a machine that has these; None if nothing is."""
    choice = value.removeprefix("^").removeprefix("=")
    items, excluded = choice.split(","), value.startswith("^")
    exact = name != "NCCL_SOCKET_IFNAME" or value.removeprefix("^").startswith("=")
    matches = {each for each in here for item in items if each == item or (not exact and each.startswith(item))}
    if matches == set(here) if excluded else not matches:
        return "it leaves no interface" if excluded else "it matches no interface"
    unintended = sorted(matches - {*items}) if not excluded and any(item in here for item in items) else []
    if unintended:
        return f"NCCL takes it for the start of a name, so it also matches {', '.join(unintended)}"
    return None


def _is_on(values: Mapping[str, str], name: str) -> bool:
    return (_number(values, name) or 0) != 0


def _number(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
