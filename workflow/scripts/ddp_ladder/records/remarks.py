"""Remarks on a run: worth knowing, but they do not close a gate. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.correctness import MOST_SHARED, distinct_samples, shared_fraction
from ddp_ladder.records.diagnosis import NAMED, listed
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import Loader, Loss, RankEnd
from ddp_ladder.records.record import Remark


def remarks(spec: RunSpec, raw: RawRun) -> tuple[Remark, ...]:
    """Return what a reader should know although it may be intended."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    return (*_remarks(spec, ends), *_remarks_on_logs(raw), *_remarks_on_profile(spec, raw))


def _remarks(spec: RunSpec, ends: Sequence[RankEnd]) -> Iterator[Remark]:
    loader = ends[0].loader if ends else None
    if spec.world_size > 1 and len(ends) == spec.world_size:
        yield from _remarks_on_data(ends, loader)
    if loader and loader.set_epoch_called is False:
        yield from _remarks_on_order(loader)
    yield from _remarks_on_counts(ends)
    passing = [(end.rank, end.loss) for end in ends if end.loss and _recovered(end.loss)]
    if passing:
        rank, loss = passing[0]
        yield Remark(
            name="finite",
            what=f"on rank {rank} the loss was not finite at step {listed(loss.not_finite_steps[:NAMED])}, later it "
            "was",
            next="expected now and then with GradScaler, which leaves such steps out; else "
            + ("see the first batch" if loss.not_finite_steps[0] == 1 else "lower the learning rate"),
        )


def _remarks_on_logs(raw: RawRun) -> Iterator[Remark]:
    """Yield remarks on output that is not in the log."""
    logs = [(agent, end.log) for agent, end in raw.agents.items() if end.log]
    if lost := [(agent, log) for agent, log in logs if log.error]:
        agent, log = lost[0]
        yield Remark(
            name="log",
            what=f"the log is incomplete: {agent} could not write {log.lost_bytes:,} bytes: {log.error}",
            next="check space and quota of the results (df -h); the training itself goes on without its log",
        )
    if cut := [(agent, log) for agent, log in logs if log.left_out_bytes]:
        agent, log = cut[0]
        what = f"{agent} printed {log.bytes / 1e6:,.0f} MB, of which {log.left_out_bytes / 1e6:,.0f} MB are left out"
        yield Remark(
            name="log",
            what=f"the log is incomplete: {what}",
            next="print less, as it takes time too, or raise logs.max_mb_per_node in config.yaml",
        )


def _remarks_on_profile(spec: RunSpec, raw: RawRun) -> Iterator[Remark]:
    """Yield why steps that were to be traced were not."""
    problem = raw.profiling.problem if raw.profiling else "rank 0 did not say what became of its profiled steps"
    if spec.profile_steps and raw.ranks and problem:
        next_step = "nothing for the figures, which are complete without a profile"
        yield Remark(name="profile", what=f"not profiled: {problem}", next=next_step)


def _remarks_on_order(loader: Loader) -> Iterator[Remark]:
    """Yield remarks on a set_epoch that was not called, where this does not close the gate."""
    passes = loader.passes
    if loader.shuffle and passes == 1:
        yield Remark(
            name="order of samples",
            what="set_epoch was not called; in the one epoch that was run this changes nothing",
            next="call sampler.set_epoch(epoch) at the beginning of each epoch, or every epoch has the same order",
        )
    if loader.shuffle is None and passes > 1:
        yield Remark(
            name="order of samples",
            what=f"set_epoch was not called in {passes} passes over the training data; it is unknown whether "
            f"{loader.sampler} changes the order without it",
            next="call set_epoch(epoch) at the beginning of each epoch, unless the order changes without it",
        )


def _remarks_on_counts(ends: Sequence[RankEnd]) -> Iterator[Remark]:
    """Yield remarks on samples that the sampler gave and no batch had, and on batches whose size is not clear."""
    short = [(end.rank, end.loader.dropped_samples) for end in ends if end.loader and end.loader.dropped_samples]
    if short:
        rank, dropped = short[0]
        yield Remark(
            name="samples",
            what=f"on rank {rank} {dropped:,} samples that the sampler gave were not in the batches: only what arrived "
            "is counted",
            next="expected if collate_fn leaves out bad samples; else look for what drops them",
        )
    unclear = [(end.rank, end.loader.unclear_sizes) for end in ends if end.source == "guessed" and end.loader]
    if unclear:
        rank, sizes = unclear[0]
        yield Remark(
            name="samples",
            what="how many samples a batch has is a guess: its tensors, and its sampler if there is one, say "
            f"{' or '.join(str(size) for size in sizes[:NAMED])} (rank {rank})",
            next="set workload.samples_per_step in config.yaml to the samples of one process in one optimizer step",
        )


def _remarks_on_data(ends: Sequence[RankEnd], loader: Loader | None) -> Iterator[Remark]:
    batches = {end.rank: end.fingerprint.get("batch_per_gpu") for end in ends}
    if len(set(batches.values())) > 1:
        seen = ", ".join(f"{batch} on rank {rank}" for rank, batch in sorted(batches.items())[:NAMED])
        yield Remark(
            name="batch",
            what=f"the ranks use batches of different size: {seen}",
            next="give every rank the same batch size",
        )
    samples = distinct_samples(ends)
    if samples is None:
        yield Remark(
            name="disjoint data",
            what="not checked: no samples were seen that distinguish the ranks' data "
            "(no DataLoader, batches without tensors or made on the device, or samples all alike)",
            next="",
        )
        return
    most = max(shared_fraction(a, b) for a, b in combinations(samples.values(), 2))
    if 0 < most < MOST_SHARED:
        what = f"two ranks share {100 * most:.0f} % of their first samples"
        yield Remark(
            name="disjoint data",
            what=what,
            next="expected where the data hold duplicates, or are drawn with replacement",
        )
    if most < MOST_SHARED and loader and loader.shards is False:
        yield Remark(
            name="disjoint data",
            what=f"the sampler ({loader.sampler}) does not divide the data between the ranks: every rank passes over "
            "all of them, unless its dataset is a part",
            next="use DistributedSampler, unless each rank's dataset is a part",
        )


def _recovered(loss: Loss) -> bool:
    return bool(loss.not_finite_steps) and loss.last is not None
