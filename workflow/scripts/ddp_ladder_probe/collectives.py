"""All-reduces of growing size: are their values right, and how long do they take?

The values are whole numbers, or halves of them, so small that every order of summation is exact; each rank's differ.
Rank 0 decides what comes next and broadcasts it, so that all ranks do the same even if an all-reduce returns nonsense.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from ddp_ladder_instrument import accelerator

from ddp_ladder_probe.pairs import checks, neighbours, rounds

SMALLEST, GROWTH = 4 * 1024, 4  # bytes
MIB = 1024**2
# Up to how many bytes values are checked in several rounds, and in how many. Between GPUs every power of two from 1 MiB
# on is checked, too: LL128 with GPUDirect on Slingshot was seen to corrupt 2 to 64 MiB only, and not in every round.
THOROUGH, THOROUGH_ON_GPUS = (MIB, 3), (128 * MIB, 8)
CHUNK = 1 << 20  # elements whose expected values are in memory at a time
TIMED_S = 0.15  # of each size
BLOCKS = 3
MOST_ITERATIONS = 20  # of a block
PAIR_S = 0.25  # time of one all-reduce that a pair of nodes is measured with, at most
SLOWEST = 8  # pairs of nodes are measured again alone
WEIGHTS = {torch.int64: 1 << 20, torch.float32: 61}  # of ranks; float32 is exact up to 2^24
KINDS = (torch.int64, torch.float32)
WRONG_NAMED = 3


def _thorough(device: torch.device) -> tuple[int, int]:
    return THOROUGH_ON_GPUS if accelerator.is_gpu(device) else THOROUGH


class Group:
    """The ranks, and what rank 0 says to them."""

    def __init__(self, device: torch.device, until_s: float) -> None:
        self.device, self.rank, self.size = device, dist.get_rank(), dist.get_world_size()
        self._until_s = until_s

    @property
    def left_s(self) -> float:
        return self._until_s - time.monotonic()

    def told(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        said = torch.tensor([value], device=self.device)
        dist.broadcast(said, 0)
        return int(said.item())

    def meet(self) -> None:
        dist.all_reduce(torch.zeros(1, device=self.device))
        self.wait()

    def wait(self) -> None:
        """Wait until the device has done what was queued."""
        accelerator.synchronize(self.device)


def sizes(group: Group, largest: int) -> Iterator[dict[str, Any]]:
    """Yield an entry per size, as long as rank 0 has time for the next one, which takes GROWTH times as long."""
    size, took_s = SMALLEST, 0.0
    while group.told(int(size <= largest and took_s * GROWTH < group.left_s)):
        began_s = time.monotonic()
        twice = [2 * size] if MIB <= size < _thorough(group.device)[0] else []
        wrong = [words for some in (size, *twice) if some <= largest for words in wrong_values(group, some)]
        time_s = timed(group, size)
        took_s = time.monotonic() - began_s
        yield {"bytes": size, "time_s": time_s, "wrong": wrong[:WRONG_NAMED]}
        size *= GROWTH


def wrong_values(group: Group, size: int) -> Iterator[str]:
    """Yield in words each round whose result is not exactly the sum."""
    most, rounds = _thorough(group.device)
    for round_number in range(rounds if size <= most else 1):
        for kind in KINDS:
            values = torch.empty(max(1, size // kind.itemsize), dtype=kind, device=group.device)
            own = group.rank % WEIGHTS[kind] + 1
            fill(values, own, round_number)
            dist.all_reduce(values)
            group.wait()
            total = sum(rank % WEIGHTS[kind] + 1 for rank in range(group.size))
            if wrong := wrong_elements(values, total, round_number):
                what = f"{size:,} bytes of {str(kind).replace('torch.', '')}, round {round_number + 1}"
                yield f"{what}: {wrong} of {values.numel()} elements are wrong"


def fill(values: torch.Tensor, weight: int, round_number: int) -> None:
    """Set each element to its own number times a weight."""
    for start, part in _chunks(values):
        part.copy_(_numbers(start, part, round_number) * weight)


def wrong_elements(values: torch.Tensor, weight: int, round_number: int) -> int:
    """Return how many values are not what ``fill`` sets."""
    wrong = (part != _numbers(start, part, round_number) * weight for start, part in _chunks(values))
    return sum(int(elements.sum().item()) for elements in wrong)


def _chunks(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, values.numel(), CHUNK):
        yield start, values[start : start + CHUNK]


def _numbers(start: int, part: torch.Tensor, round_number: int) -> torch.Tensor:
    """Return 0 to 313 by the place in the chunk, the chunk and the round; halves of it for floats."""
    places = torch.arange(part.numel(), device=part.device)
    numbers = places % 251 + (start // CHUNK * 5 + round_number * 11) % 63
    return numbers.to(part.dtype) * 0.5 if part.dtype.is_floating_point else numbers


def timed(group: Group, size: int, ranks: dist.ProcessGroup | None = None) -> float:
    """Return the seconds of one all-reduce of zeros.

    ranks: the ranks that take part; each of them calls this. None is all, and rank 0 decides how many.
    """
    values = torch.zeros(size // 4, dtype=torch.float32, device=group.device)
    once_s = _each_s(group, values, 1, ranks)  # a warm-up, too
    wanted = max(1, min(MOST_ITERATIONS, int(TIMED_S / BLOCKS / max(once_s, 1e-9))))
    iterations = group.told(wanted) if ranks is None else 1
    return _each_s(group, values, iterations, ranks)


def _each_s(group: Group, values: torch.Tensor, iterations: int, ranks: dist.ProcessGroup | None) -> float:
    """Return the median over BLOCKS of the mean time, so that one disturbance does not count."""
    times_s = []
    for _ in range(BLOCKS):
        group.wait()
        began_s = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(values, group=ranks)
        group.wait()
        times_s.append((time.perf_counter() - began_s) / iterations)
    return statistics.median(times_s)


def pair_size(measured: Sequence[dict[str, Any]]) -> int:
    """Return the largest size that takes all ranks at most PAIR_S."""
    quick = [entry["bytes"] for entry in measured if entry["time_s"] <= PAIR_S]
    return int(max(quick, default=SMALLEST))


class Pairs:
    """All-reduces over pairs of neighbouring nodes, those of a round at the same time; then checks; the slowest alone.

    So any number of nodes takes the same number of steps. Pairs that share a switch may slow each other in a round.
    """

    def __init__(self, group: Group, nodes: int, size: int, timeout: timedelta) -> None:
        self._group, self._nodes, self._timeout = group, nodes, timeout
        self._size = group.told(size)
        self._per_node = group.size // nodes
        self._node = group.rank // self._per_node
        self._ring = neighbours(nodes)
        self._times_s = torch.zeros(len(self._ring), device=group.device)
        self._ranks: dict[tuple[int, ...], Any] = {}

    def in_rounds(self) -> Iterator[dict[str, Any] | None]:
        """Yield for each round the time of this node's pair, None if it has none; time_s: None if no time was left."""
        for several in rounds(self._nodes):
            entry = self._in_round(several)
            if entry and entry["time_s"]:
                self._times_s[self._ring.index(tuple(entry["nodes"]))] = entry["time_s"]
            yield entry
            dist.all_reduce(self._times_s, dist.ReduceOp.MAX)  # no pair begins before all others are done
            self._group.wait()

    def checked(self) -> Iterator[dict[str, Any] | None]:
        """Yield the same for the nodes of slow pairs with others, if there are any."""
        dist.broadcast(self._times_s, 0)
        if several := checks(self._nodes, self._times_s.tolist()):
            yield self._in_round(several)
            self._group.meet()

    def _in_round(self, several: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
        pair = next((pair for pair in several if self._node in pair), None)
        time_s = None
        if self._group.told(int(self._group.left_s > 0)):
            self._connect(pair or (self._node,))
            if pair:
                time_s = self._timed(pair)
        return self._entry(pair, time_s, False) if pair else None

    def alone(self) -> Iterator[dict[str, Any]]:
        """Yield the time of each of the slowest pairs that this node is in, while all others wait."""
        slowest = torch.argsort(self._times_s, descending=True)[:SLOWEST].contiguous()
        dist.broadcast(slowest, 0)
        for place in slowest.tolist():
            if not self._group.told(int(self._group.left_s > 0)):
                return
            pair = self._ring[place]
            if self._node in pair:
                yield self._entry(pair, self._timed(pair), True)
            self._group.meet()

    def _connect(self, nodes: tuple[int, ...]) -> None:
        """Make a group of the ranks of these nodes, without the other ranks.

        A node without a pair is a group of its own: torch names a group by its ranks and by the number of groups that
        a rank has made, which must be equal. All are destroyed with the default group: one of Gloo that is destroyed
        just after an all-reduce may wait for ever for its own thread, which waits for Python's lock.
        """
        members = [node * self._per_node + local for node in nodes for local in range(self._per_node)]
        self._ranks[nodes] = dist.new_group(members, timeout=self._timeout, use_local_synchronization=True)

    def _timed(self, pair: tuple[int, int]) -> float:
        return timed(self._group, self._size, self._ranks[pair])

    def _entry(self, pair: tuple[int, int], time_s: float | None, alone: bool) -> dict[str, Any]:
        return {"nodes": [*pair], "bytes": self._size, "time_s": time_s, "alone": alone}
