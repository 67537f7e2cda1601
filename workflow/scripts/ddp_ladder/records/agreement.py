"""Checks that all ranks ran the same on the same: one rank that did not spoils all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_ladder.common.files import canonical_sha256
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.diagnosis import Diagnosis
from ddp_ladder.records.fingerprint import MUST_MATCH, distinct_words
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import Check, Failure

NAMED = 3  # disagreements, and hosts, in a message

NOT_OF_ALL = (
    "product_dtypes",  # sampled in the first backward passes, which may differ between ranks
    "cpu_model",  # nodes of several generations: the slowest sets the pace, and the fingerprint says so
)
UNKNOWN = ("num_workers",)  # of a rank without a loader: another rank reads the data for it
"""Compared only among the ranks that have it, like the fields with ``where_known``."""

SOFTWARE = ("python", "torch", "cuda", "nccl", "cudnn", "libraries")
FILES = ("script_sha256", "sources", "configuration")

SAME_SOFTWARE = (
    "let every node start the same Python: software.python, software.modules, software.setup and software.container in "
    "cluster.yaml must lead to one installation, the same on all nodes"
)
SAME_FILES = (
    "let every node read the same files (a shared file system, no copies of their own), and do not edit them while a "
    "run goes on"
)
SAME_CHOICES = (
    "look for what the script decides by rank or by node (RANK, the host's name, what a node has of GPUs and cores): "
    "this must be the same on every rank"
)
NO_SUCH_BACKEND = {"cpu": ("nccl", "fake"), "cuda": ("fake",)}
"""Backends that do not carry tensors of a device."""


def ranks_agree(ends: Sequence[RankEnd]) -> Diagnosis:
    """Compare what the ranks ran, and on what."""
    found = list(_disagreements(ends))
    fields = [name for name, _ in found]
    words = "; ".join(text for _, text in found[:NAMED])
    words += f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    hints = [SAME_FILES] if set(fields) & set(FILES) else []
    hints += [SAME_SOFTWARE] if set(fields) & set(SOFTWARE) else []
    hints += [SAME_CHOICES] if not hints else []
    return Diagnosis(
        Check(
            name="ranks agree",
            ok=bool(ends) and not found,
            measured=words or f"{len(ends)} ranks alike",
            wanted="the same on every rank",
        ),
        Failure(verdict="the ranks are not alike", why=words, next="; ".join(hints)),
    )


def _disagreements(ends: Sequence[RankEnd]) -> Iterator[tuple[str, str]]:
    """Yield each field that differs, and which ranks have which value."""
    for item in MUST_MATCH:
        if item.measured and item.name not in NOT_OF_ALL:
            known_only = item.where_known or item.name in UNKNOWN
            values = {end.rank: end.fingerprint.get(item.name) for end in ends}
            yield from _differing(item.name, values, known_only, ends)
    yield from _differing("DistributedDataParallel", _wrapped(ends), False, ends)
    hooks = {end.rank: end.ddp and end.ddp.comm_hook for end in ends}
    yield from _differing("communication hook", hooks, False, ends)
    yield from _differing("backend", {end.rank: end.backend for end in ends}, False, ends)


def _wrapped(ends: Sequence[RankEnd]) -> dict[int, str]:
    return {end.rank: "used" if end.ddp else "not used" for end in ends}


def _differing(
    name: str, values: Mapping[int, Any], known_only: bool, ends: Sequence[RankEnd]
) -> Iterator[tuple[str, str]]:
    """Yield what differs between ranks; each entry of a mapping is compared among the ranks that have it."""
    if any(isinstance(value, dict) for value in values.values()):
        known = {rank: value for rank, value in values.items() if isinstance(value, dict)}
        for key in sorted({key for value in known.values() for key in value}):
            having = {rank: value[key] for rank, value in known.items() if key in value}
            yield from ((name, f"{name}: {text}") for _, text in _differing(key, having, True, ends))
        return
    if known_only:
        values = {rank: value for rank, value in values.items() if value is not None}
    groups: dict[tuple[type, Any], list[int]] = {}
    for rank, value in sorted(values.items()):
        simple = value is None or isinstance(value, str | int)
        groups.setdefault((type(value), value if simple else canonical_sha256(value)), []).append(rank)
    if len(groups) > 1:
        largest_first = sorted(groups.values(), key=len, reverse=True)
        yield name, f"{name}: {_who_has_what(name, largest_first, values, ends)}"


def _who_has_what(
    name: str, groups: Sequence[Sequence[int]], values: Mapping[int, Any], ends: Sequence[RankEnd]
) -> str:
    """Return ``2.15.0 on ranks 0-2 (node0, node1), 2.4.1 on rank 3 (node1)``."""
    hosts = {end.rank: end.host for end in ends}
    usual = values[groups[0][0]]
    first, parts = "", []
    for ranks in groups[1:NAMED]:
        first, other = distinct_words(name, usual, values[ranks[0]])
        parts.append(f"{other} on {on_hosts(ranks, hosts)}")
    more = f", and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
    return f"{first} on {on_hosts(groups[0], hosts)}, {', '.join(parts)}{more}"


def on_hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return ``rank 3 (node1)`` or ``ranks 0-2, 7 (node0, node1)``."""
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    where = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)} ({where})"


def _ranges(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


# Backend


def backend(spec: RunSpec, ends: Sequence[RankEnd]) -> Check:
    """Check the backend: the wanted one; with ``auto``, any that carries tensors of the rank's device."""
    seen = ", ".join(sorted({str(end.backend) for end in ends})) or "nothing"
    if spec.backend_wanted != "auto":
        ok = bool(ends) and all(end.backend == spec.backend for end in ends)
        return Check(name="backend", ok=ok, measured=seen, wanted=spec.backend)
    odd = [end for end in ends if end.backend in NO_SUCH_BACKEND.get(end.device.kind, ())]
    hosts = {end.rank: end.host for end in odd}
    measured = f"{odd[0].backend} on {on_hosts(list(hosts), hosts)}" if odd else seen
    return Check(
        name="backend",
        ok=bool(ends) and not odd,
        measured=measured,
        wanted=f"one that carries tensors of a {spec.device} device",
    )
