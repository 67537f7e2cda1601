"""Checks that the ranks trained one model on different data, from what each rank recorded; causes come first.

Every finding names what to change in the script. What may be intended is a remark, and does not close a gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import Loader, Loss, RankEnd, RankParameters
from ddp_ladder.records.record import Check, Failure, Remark

DIVERGED = (
    "lower the learning rate ({lr} grows with the global batch by workload.lr_rule; a longer warm-up helps), use "
    "GradScaler with float16, or look for bad values in the data; the speed of a diverged run says nothing"
)
BEFORE_ANY_UPDATE = (
    "look for nan or infinite values in the first batch and in the parameters after initialisation, and for a log(0), "
    "a division by 0 or a mean of nothing in the loss: torch.autograd.set_detect_anomaly(True) names the operation; "
    "with float16 train in bfloat16 or float32, or give GradScaler a smaller init_scale; no learning rate can be the "
    "cause, as no step was made yet"
)
MOST_SHARED = 0.5  # of the first samples of two ranks; disjoint shards share none


def diagnoses(spec: RunSpec, raw: RawRun) -> tuple[Diagnosis, ...]:
    """Return every finding that the evidence allows, causes first."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    return tuple(_diagnoses(spec, ends))


def _diagnoses(spec: RunSpec, ends: Sequence[RankEnd]) -> Iterator[Diagnosis]:
    yield _devices(spec, ends)
    data = _disjoint_data(ends)
    if data is not None:
        yield data
    finite = _finite(ends)
    if finite is not None:
        yield finite
    yield parameters_agree(spec, ends)
    if len(ends) > 1:
        yield _steps(ends)
    order = _order(ends)
    if order is not None:
        yield order


def world(spec: RunSpec, raw: RawRun) -> Diagnosis:
    """Check that all ranks are in one process group. Without one each trains alone, and appears faster."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    sizes = sorted({end.world_size for end in ends})
    judged = spec.world_size > 1 and not raw.reads_log  # a program whose log is read may lack torch
    alone = [end.rank for end in ends if judged and end.backend is None]
    measured = " and ".join(str(size) for size in sizes) or "nothing"
    others = [end.rank for end in ends if end.world_size != spec.world_size]
    who = "all ranks" if len(others) == len(ends) else f"rank {listed(others)}"
    seen = " and ".join(str(size) for size in sizes if size != spec.world_size)
    why = f"{spec.world_size} ranks were started; for {who} the world has {seen or measured}"
    if alone:
        measured = f"no process group on {'any rank' if len(alone) == len(ends) else f'rank {listed(alone)}'}"
        why = f"{measured}, so each of them trained a model of its own"
    return diagnose(
        "world size",
        sizes == [spec.world_size] and not alone,
        measured,
        str(spec.world_size),
        "no process group was formed" if alone else "the ranks are not in one process group",
        why,
        "call torch.distributed.init_process_group() before the model is made, without rank and world size: the "
        "launcher puts them into the environment (RANK, WORLD_SIZE, LOCAL_RANK); then wrap the model in "
        "DistributedDataParallel and give the loader a DistributedSampler; if the script does so only when an argument "
        "says so, add it to workload.args"
        + ("; if it reads SLURM_PROCID and SLURM_NTASKS, set launcher: srun" if spec.launcher == "torchrun" else ""),
    )


def _devices(spec: RunSpec, ends: Sequence[RankEnd]) -> Diagnosis:
    held: dict[tuple[str, str], list[int]] = {}
    for end in ends:
        held.setdefault((end.host, end.device.id), []).append(end.rank)
    kinds = sorted({end.device.kind for end in ends})
    several = {host: ranks for (host, _), ranks in held.items() if len(ranks) > 1}
    shared = [f"ranks {listed(ranks)} on {host} use one device" for host, ranks in several.items()]
    ok = len(held) == spec.world_size and kinds == [spec.device]
    next_step = (
        "let each rank take its own GPU before anything is put on one: "
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])), and device_ids=[local_rank] for DistributedDataParallel'
    )
    if not shared:
        next_step = f"let the script train on {spec.device}, or correct node.gpus and network.backend in cluster.yaml"
    measured = f"{len(held)} x {'/'.join(kinds) or 'none'}"
    wanted = f"{spec.world_size} x {spec.device}"
    verdict = "several ranks share one device" if shared else "distinct devices"
    why = "; ".join(shared[:NAMED]) or f"measured {measured}, wanted {wanted}"
    return diagnose("distinct devices", ok, measured, wanted, verdict, why, next_step)


def _disjoint_data(ends: Sequence[RankEnd]) -> Diagnosis | None:
    """Check that no two ranks share samples; None for one rank, no samples seen, or samples that are all alike."""
    samples = distinct_samples(ends)
    if samples is None:
        return None
    shares = {pair: shared_fraction(samples[pair[0]], samples[pair[1]]) for pair in combinations(sorted(samples), 2)}
    (first, second), most = max(shares.items(), key=lambda item: item[1])
    loader = ends[0].loader
    next_step = _give_each_its_own(loader)
    if any(end.parameters and end.parameters.sharded for end in ends):
        next_step += (
            "; ranks that work on the same samples with parts of one model (tensor parallelism) would each count them: "
            "their throughput cannot be measured here"
        )
    measured = f"ranks {first} and {second} share {100 * most:.0f} % of their first samples"
    return diagnose(
        "disjoint data",
        most < MOST_SHARED,
        measured if most else "no two ranks share any of their first samples",
        "other samples on each rank",
        "ranks train on the same data",
        f"{measured} (training loader with {loader.sampler if loader else 'no sampler'})",
        next_step,
    )


def _give_each_its_own(loader: Loader | None) -> str:
    """Return what to do when the ranks draw the same samples, from what is known of the training loader."""
    if loader and loader.iterable:
        return (
            "let the IterableDataset give each rank its own part: by torch.distributed.get_rank() and "
            "get_world_size(), and by torch.utils.data.get_worker_info() with loader workers"
        )
    if loader and loader.shards:
        return (
            f"{loader.sampler} divides the data: see that it has this process's own rank, and that other indices give "
            "other samples; data made at random need a seed that differs by rank"
        )
    if loader and loader.shards is None:
        return (
            f"let {loader.sampler} give each rank its own part, by torch.distributed.get_rank() and get_world_size(), "
            "or put DistributedSampler(dataset) in its place; data made at random need a seed that differs by rank"
        )
    return (
        "give the training DataLoader sampler=DistributedSampler(dataset) in place of shuffle=True, and call its "
        "set_epoch(epoch); data made at random need a seed that differs by rank"
    )


def distinct_samples(ends: Sequence[RankEnd]) -> dict[int, set[str]] | None:
    """Return, by rank, the digests of first samples that occur once there: a constant proves nothing."""
    distinct = {}
    for end in ends:
        counts = Counter(end.first_samples)
        distinct[end.rank] = {digest for digest, count in counts.items() if count == 1}
    return distinct if len(distinct) > 1 and all(distinct.values()) else None


def shared_fraction(a: set[str], b: set[str]) -> float:
    """Return the fraction of the smaller set that is in both."""
    return len(a & b) / min(len(a), len(b))


def _order(ends: Sequence[RankEnd]) -> Diagnosis | None:
    """Check that each epoch had its own order; None for a single epoch, or if no sampler shuffles by epoch."""
    loaders = [end.loader for end in ends if end.loader and end.loader.set_epoch_called is not None]
    repeated = [loader for loader in loaders if loader.shuffle and loader.passes > 1]
    if not repeated:
        return None
    passes = repeated[0].passes
    called = all(loader.set_epoch_called for loader in repeated)
    ok = called and all(loader.epochs_set != 1 for loader in repeated)
    what = "was called" if ok else "was called with one and the same epoch" if called else "was not called"
    return diagnose(
        "order of samples",
        ok,
        f"set_epoch {what} in {passes} passes over the training data",
        "set_epoch before each pass of a sampler that shuffles",
        "every epoch has the same order",
        f"{repeated[0].sampler} shuffles, but set_epoch {what} in {passes} passes over the training data",
        "call sampler.set_epoch(epoch) at the beginning of each epoch",
    )


def _finite(ends: Sequence[RankEnd]) -> Diagnosis | None:
    """Check that loss and parameters are finite; None if neither was seen."""
    seen = [end for end in ends if end.parameters or end.loss]
    if not seen:
        return None
    bad = {end.rank: text for end in seen if (text := _not_finite(end))}
    at_once = any(end.rank in bad and end.loss and end.loss.not_finite_steps[:1] == (1,) for end in seen)
    return diagnose(
        "finite",
        not bad,
        next(iter(bad.values()), "loss and parameters"),
        "finite loss and parameters to the end",
        "the loss was not finite before the first update" if at_once else "the training diverged",
        "; ".join([*bad.values()][:NAMED]),
        BEFORE_ANY_UPDATE if at_once else DIVERGED,
    )


def _not_finite(end: RankEnd) -> str:
    """Return what was not finite at the end on this rank; empty if everything was."""
    seen, loss = end.parameters, end.loss
    parts = []
    if seen and seen.not_finite.count:
        broken, tensors = seen.not_finite, len(seen.tensors)
        parts.append(f"{broken.count} of {tensors} parameters at the end ({first_names(broken.names)})")
    if loss and loss.last is None:
        parts.append(f"the loss, first seen at step {loss.not_finite_steps[0]}")
    return f"rank {end.rank}: not finite: {' and '.join(parts)}" if parts else ""


def _steps(ends: Sequence[RankEnd]) -> Diagnosis:
    counts = {end.rank: end.steps.count for end in ends}
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    ok = counts[fewest] == counts[most]
    measured = f"rank {fewest} made {counts[fewest]} steps, rank {most} made {counts[most]}"
    return diagnose(
        "equal steps",
        ok,
        f"{counts[most]} on every rank" if ok else measured,
        "as many steps on every rank",
        "the ranks made different numbers of steps",
        measured,
        EQUALLY_MANY,
    )


EQUALLY_MANY = (
    "let every rank make the same number of steps: no break or return on a condition that holds on one rank only, and "
    "equally many batches on all (DistributedSampler pads; a stream has to be cut to the same length on each rank)"
)


def parameters_agree(spec: RunSpec, ends: Sequence[RankEnd]) -> Diagnosis:
    """Check that all replicas end with the same bits, as replicas that were trained together do."""
    checksums = [end.parameters.checksum for end in ends if end.parameters]
    sharded = (
        bool(ends)
        and len(checksums) == spec.world_size
        and all(end.parameters and end.parameters.sharded for end in ends)
    )
    if sharded:
        return _shards(ends)
    measured = f"{len(set(checksums))} distinct on {len(checksums)} ranks"
    wanted = f"1 distinct on {spec.world_size} ranks"
    ok = len(checksums) == spec.world_size and len(set(checksums)) == 1
    return diagnose("equal parameters", ok, measured, wanted, *_why_apart(ends, measured, wanted))


def _shards(ends: Sequence[RankEnd]) -> Diagnosis:
    """Check sharded models (FSDP, tensor parallelism): only parameters marked as replicated are compared."""
    which = _which_differ({end.rank: _replicated(end.parameters) for end in ends if end.parameters})
    return diagnose(
        "equal parameters",
        not which,
        f"sharded over {len(ends)} ranks{which}",
        "shards on every rank, and what is replicated equal",
        "the ranks ended with different parameters",
        f"of what is replicated, not sharded{which}",
        "a replicated DTensor stays the same only where all ranks of its mesh step it by the same gradient: see that "
        "they compute it from the same samples, or that it is averaged over them",
    )


def _replicated(parameters: RankParameters) -> Table:
    tensors = parameters.tensors
    return [tensors[place] for place in parameters.replicated if place < len(tensors)]


def _why_apart(ends: Sequence[RankEnd], measured: str, wanted: str) -> tuple[str, str, str]:
    """Return verdict, why and next of replicas that differ."""
    without = [end.rank for end in ends if not end.parameters]
    if without or not ends:
        why = f"no trained parameters were seen on {f'rank {listed(without)}' if without else 'any rank'}"
        return "equal parameters", why, "see not_measured in the end records of these ranks, in ranks/"
    tables = {end.rank: end.parameters.tensors for end in ends if end.parameters}
    which = f"{measured}, wanted {wanted}{_which_differ(tables)}"
    if not any(end.ddp for end in ends):
        return (
            "the model is not wrapped in DistributedDataParallel",
            f"each rank trained a model of its own: {which}",
            "after torch.distributed.init_process_group(), wrap the model, before the optimizer is made, and train "
            "through the wrapper: model = DistributedDataParallel(model)",
        )
    return (
        "the ranks ended with different parameters",
        which,
        "see what is done to these parameters outside DistributedDataParallel's backward pass: set to be ignored by "
        "it, created or written after wrapping, trained through model.module, or stepped inside no_sync",
    )


def _which_differ(tables: Mapping[int, Table]) -> str:
    """Return ``; rank 1 differs from rank 0 in 2 of 10: 4.weight, 4.bias``; empty if none differs or it is unknown."""
    first = min(tables)
    for rank, table in sorted(tables.items()):
        if table == tables[first]:
            continue
        names = [here[0] for here, there in zip(table, tables[first], strict=False) if here != there]
        if names:
            return f"; rank {rank} differs from rank {first} in {len(names)} of {len(table)}: {first_names(names)}"
        return f"; rank {rank} has {len(table)} parameters, rank {first} has {len(tables[first])}"
    return ""


Table = Sequence[tuple[str, str]]
"""Name and digest of each parameter."""
NAMED = 3  # parameters in a message
SAMPLES_SEEN = "samples seen"  # the name of a check


@dataclass(frozen=True)
class Diagnosis:
    """A check, and what it means if it did not pass; None: only what the check itself shows."""

    check: Check
    failure: Failure | None = None


def diagnose(name: str, ok: bool, measured: str, wanted: str, verdict: str, why: str, next_step: str) -> Diagnosis:
    """Return a check with its failure, which is used only if it did not pass."""
    return Diagnosis(
        Check(name=name, ok=ok, measured=measured, wanted=wanted), Failure(verdict=verdict, why=why, next=next_step)
    )


def first_names(names: Sequence[str]) -> str:
    """Return the first names of a list."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def listed(numbers: Sequence[int]) -> str:
    """Return the numbers as one text."""
    return ", ".join(str(number) for number in numbers)


def remarks_on_run(spec: RunSpec, raw: RawRun) -> tuple[Remark, ...]:
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
