"""Checks that the ranks trained one model on different data, from what each rank recorded; causes come first.

Every finding names what to change in the script. What may be intended is a remark, and does not close a gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.diagnosis import NAMED, Diagnosis, diagnose, first_names, listed
from ddp_ladder.records.equal_parameters import EQUALLY_MANY, parameters_agree
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import Loader, RankEnd

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
