"""Mistakes in the CPUs that a node's ranks are bound to, which cost time without any error. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ddp_ladder.common.formats import count, in_short
from ddp_ladder.node.numa import cpus_text

Cpus = frozenset[int]

WHAT_BINDS = "taskset or numactl in the script, OMP_PROC_BIND, GOMP_CPU_AFFINITY, SLURM_CPU_BIND"


@dataclass(frozen=True)
class BoundRank:
    """A rank of a node. threads: with which torch computes; None if it is not known."""

    rank: int
    cpus: Cpus
    threads: int | None = None


@dataclass(frozen=True)
class BindingMistake:
    """What is wrong, in words with numbers, and what to change."""

    what: str
    next: str


def binding_mistakes(ranks: Sequence[BoundRank], available: Cpus) -> Iterator[BindingMistake]:
    """Yield the mistakes of the ranks of one node, but not of nodes that are simulated on one machine.

    available: the CPUs of the job step on the node. Ranks that share all their CPUs are bound to none of their own,
    which is no mistake unless it is a single core of several.
    """
    yield from _one_core(ranks, available)
    yield from _overlap(ranks)
    yield from _threads(ranks)


def _one_core(ranks: Sequence[BoundRank], available: Cpus) -> Iterator[BindingMistake]:
    on_core: dict[int, list[int]] = {}
    for rank in ranks:
        if len(rank.cpus) == 1 and len(available) > 1:
            on_core.setdefault(min(rank.cpus), []).append(rank.rank)
    shared = {core: there for core, there in on_core.items() if len(there) > 1}
    if shared:
        found = [f"{_ranks(there)} on CPU {core}" for core, there in shared.items()]
        yield BindingMistake(
            f"several ranks share one core: {in_short(found)}, of {len(available)} CPUs that the job step has",
            f"remove what binds them: {WHAT_BINDS}",
        )


def _overlap(ranks: Sequence[BoundRank]) -> Iterator[BindingMistake]:
    pairs = [(one, other) for one, other in combinations(ranks, 2) if one.cpus & other.cpus and one.cpus != other.cpus]
    if pairs:
        one, other = pairs[0]
        more = f", and {count(len(pairs) - 1, 'more pair')}" if len(pairs) > 1 else ""
        yield BindingMistake(
            f"ranks are bound to CPUs that overlap in part: rank {one.rank} to {cpus_text(one.cpus)}, "
            f"rank {other.rank} to {cpus_text(other.cpus)}{more}",
            f"give each rank CPUs of its own, or bind none: {WHAT_BINDS}",
        )


def _threads(ranks: Sequence[BoundRank]) -> Iterator[BindingMistake]:
    crowded = [rank for rank in ranks if rank.threads is not None and rank.threads > len(rank.cpus)]
    if crowded:
        first = crowded[0]
        yield BindingMistake(
            f"{_ranks([rank.rank for rank in crowded])}: {first.threads} threads of torch on "
            f"{count(len(first.cpus), 'CPU')} ({cpus_text(first.cpus)})",
            "leave OMP_NUM_THREADS and torch.set_num_threads to the ladder, or give the ranks more CPUs: node.cpus in "
            f"cluster.yaml, {WHAT_BINDS}",
        )


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {in_short([str(number) for number in numbers])}"
