"""Remarks on a run: worth knowing, but they do not close a gate. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.correctness import MOST_SHARED, distinct_samples, shared_fraction
from ddp_ladder.records.finding import NAMED, End, listed
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.record import Remark


def remarks(spec: RunSpec, raw: RawRun) -> tuple[Remark, ...]:
    """Return what a reader should know although it may be intended."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    return tuple(_remarks(spec, ends))


def _remarks(spec: RunSpec, ends: Sequence[End]) -> Iterator[Remark]:
    loader: Mapping[str, Any] = (ends[0]["loader"] if ends else None) or {}
    if spec.world_size > 1 and len(ends) == spec.world_size:
        yield from _remarks_on_data(ends, loader)
    if loader.get("set_epoch_called") is False:
        yield from _remarks_on_order(loader)
    passing = [end for end in ends if _recovered(end)]
    if passing:
        steps = passing[0]["loss"]["not_finite_steps"]
        yield Remark(
            "finite",
            f"on rank {passing[0]['rank']} the loss was not finite at step {listed(steps[:NAMED])}, later it was",
            "expected now and then with GradScaler, which leaves such steps out; else lower the learning rate",
        )


def _remarks_on_order(loader: Mapping[str, Any]) -> Iterator[Remark]:
    """Yield remarks on a set_epoch that was not called, where this does not close the gate."""
    passes = loader.get("passes", 1)
    if loader.get("shuffle") and passes == 1:
        yield Remark(
            "order of samples",
            "set_epoch was not called; in the one epoch that was run this changes nothing",
            "call sampler.set_epoch(epoch) at the beginning of each epoch, or every epoch has the same order",
        )
    if loader.get("shuffle") is None and passes > 1:
        yield Remark(
            "order of samples",
            f"set_epoch was not called in {passes} passes over the training data; it is unknown whether "
            f"{loader['sampler']} changes the order without it",
            "call set_epoch(epoch) at the beginning of each epoch, unless the order changes without it",
        )


def _remarks_on_data(ends: Sequence[End], loader: Mapping[str, Any]) -> Iterator[Remark]:
    batches = {end["rank"]: end["fingerprint"].get("batch_per_gpu") for end in ends}
    if len(set(batches.values())) > 1:
        seen = ", ".join(f"{batch} on rank {rank}" for rank, batch in sorted(batches.items())[:NAMED])
        yield Remark("batch", f"the ranks use batches of different size: {seen}", "give every rank the same batch size")
    samples = distinct_samples(ends)
    if samples is None:
        yield Remark(
            "disjoint data",
            "not checked: no samples were seen that distinguish the ranks' data "
            "(no DataLoader, batches made on the device, or samples all alike)",
            "",
        )
        return
    most = max(shared_fraction(a, b) for a, b in combinations(samples.values(), 2))
    if 0 < most < MOST_SHARED:
        what = f"two ranks share {100 * most:.0f} % of their first samples"
        yield Remark("disjoint data", what, "expected where the data hold duplicates, or are drawn with replacement")
    if most < MOST_SHARED and loader.get("shards") is False:
        yield Remark(
            "disjoint data",
            f"the sampler ({loader['sampler']}) does not divide the data between the ranks: every rank passes over all "
            "of them, unless its dataset is a part",
            "use DistributedSampler, unless each rank's dataset is a part",
        )


def _recovered(end: End) -> bool:
    loss = end.get("loss")
    return bool(loss and loss["not_finite_steps"] and loss["last"] is not None)
