"""Did the ranks train one model on different data? Judged on what each rank saw of itself, causes before consequences.

Every finding names what to change in the script. What may well be meant is remarked on, and closes no gate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ddp_ladder import failed_ranks
from ddp_ladder.plan import RunSpec
from ddp_ladder.raw_files import RawRun
from ddp_ladder.record import Check, Failure, Remark

End = Mapping[str, Any]
Table = list[list[str]]
"""Name and digest of each parameter."""

MOST_SHARED = 0.5  # of the first samples of two ranks; disjoint shards share none
NAMED = 3  # parameters in a message

LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "transport/tcp/pair.",
    "transport/tcp/unbound_buffer.",
    "Gloo connectFullMesh failed",
    "failed to pass monitoredBarrier",
    "Timed out waiting",
    "Application timeout",
    "collective operation timeout",
    "Connection closed by remote peer",
    "communicator was aborted",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
)
"""What a rank's exception holds when all it tells is that another rank is gone, or elsewhere."""

OWN_FAULT = (
    "Duplicate GPU detected",
    "ncclInvalidUsage",
    "ncclInvalidArgument",
    "ncclUnhandledCudaError",
    "EADDRINUSE",
)
"""What it holds when the fault is this rank's own, although the same kind of exception tells it."""

LONG_BEFORE_S = 60.0  # the end of a job: longer than any script is given to end in order

EQUALLY_MANY = (
    "let every rank make the same number of steps: no break or return on a condition that holds on one rank only, and "
    "equally many batches on all (DistributedSampler pads; a stream has to be cut to the same length on each rank)"
)


@dataclass(frozen=True)
class Finding:
    """A check, and what a closed gate says when it does not hold."""

    check: Check
    failure: Failure


def findings(spec: RunSpec, raw: RawRun) -> tuple[Finding, ...]:
    """All that can be judged, causes first."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    return tuple(_findings(spec, ends))


def _findings(spec: RunSpec, ends: Sequence[End]) -> Iterator[Finding]:
    yield _devices(spec, ends)
    data = _disjoint_data(ends)
    if data is not None:
        yield data
    finite = _finite(ends)
    if finite is not None:
        yield finite
    yield _parameters(spec, ends)
    if len(ends) > 1:
        yield _steps(ends)
    order = _order(ends)
    if order is not None:
        yield order


def _finding(name: str, ok: bool, measured: str, wanted: str, verdict: str, why: str, next_step: str) -> Finding:
    return Finding(Check(name, ok, measured, wanted), Failure(verdict, why, next_step))


# World


def world(spec: RunSpec, raw: RawRun) -> Finding:
    """Whether all ranks are in one process group. Without one they train alone, and look all the faster for it."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    sizes = sorted({end["world_size"] for end in ends})
    judged = spec.world_size > 1 and spec.throughput_regex is None  # which may be of a program without torch
    alone = [end["rank"] for end in ends if judged and end["backend"] is None]
    measured = " and ".join(str(size) for size in sizes) or "nothing"
    others = [end["rank"] for end in ends if end["world_size"] != spec.world_size]
    who = "all ranks" if len(others) == len(ends) else f"rank {_numbers(others)}"
    told = " and ".join(str(size) for size in sizes if size != spec.world_size)
    why = f"{spec.world_size} ranks were started; for {who} the world has {told or measured}"
    if alone:
        measured = f"no process group on {'any rank' if len(alone) == len(ends) else f'rank {_numbers(alone)}'}"
        why = f"{measured}, so each of them trained a model of its own"
    return _finding(
        "world size",
        sizes == [spec.world_size] and not alone,
        measured,
        str(spec.world_size),
        "no process group was formed" if alone else "the ranks are not in one process group",
        why,
        "call torch.distributed.init_process_group() before the model is made, without rank and world size: the "
        "launcher puts them into the environment (RANK, WORLD_SIZE, LOCAL_RANK); then wrap the model in "
        "DistributedDataParallel and give the loader a DistributedSampler; if the script does so only when an argument "
        "says so, add it to workload.args",
    )


# Devices


def _devices(spec: RunSpec, ends: Sequence[End]) -> Finding:
    held: dict[tuple[str, str], list[int]] = {}
    for end in ends:
        held.setdefault((end["host"], end["device"]["id"]), []).append(end["rank"])
    kinds = sorted({end["device"]["kind"] for end in ends})
    several = {host: ranks for (host, _), ranks in held.items() if len(ranks) > 1}
    shared = [f"ranks {_numbers(ranks)} on {host} use one device" for host, ranks in several.items()]
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
    return _finding("distinct devices", ok, measured, wanted, verdict, why, next_step)


# Data


def _disjoint_data(ends: Sequence[End]) -> Finding | None:
    """None where nothing can be said: one rank, no samples seen, or samples that are all alike."""
    telling = _telling_samples(ends)
    if telling is None:
        return None
    shares = {pair: _shared(telling[pair[0]], telling[pair[1]]) for pair in combinations(sorted(telling), 2)}
    (first, second), most = max(shares.items(), key=lambda item: item[1])
    loader = ends[0]["loader"] or {}
    next_step = _give_each_its_own(loader)
    if any((end["parameters"] or {}).get("sharded") for end in ends):
        next_step += (
            "; ranks that work on the same samples with parts of one model (tensor parallelism) would each count them: "
            "their throughput cannot be measured here"
        )
    measured = f"ranks {first} and {second} share {100 * most:.0f} % of their first samples"
    return _finding(
        "disjoint data",
        most < MOST_SHARED,
        measured if most else "no two ranks share any of their first samples",
        "other samples on each rank",
        "ranks train on the same data",
        f"{measured} (training loader with {loader.get('sampler', 'no sampler')})",
        next_step,
    )


def _give_each_its_own(loader: Mapping[str, Any]) -> str:
    """What to do where the ranks draw the same samples, by what is known of the training loader."""
    sampler = loader.get("sampler")
    if loader.get("iterable"):
        return (
            "let the IterableDataset give each rank its own part: by torch.distributed.get_rank() and "
            "get_world_size(), and by torch.utils.data.get_worker_info() with loader workers"
        )
    if loader.get("shards"):
        return (
            f"{sampler} divides the data: see that it has this process's own rank, and that other indices give other "
            "samples; data made at random need a seed that differs by rank"
        )
    if loader.get("shards", False) is None:
        return (
            f"let {sampler} give each rank its own part, by torch.distributed.get_rank() and get_world_size(), or put "
            "DistributedSampler(dataset) in its place; data made at random need a seed that differs by rank"
        )
    return (
        "give the training DataLoader sampler=DistributedSampler(dataset) in place of shuffle=True, and call its "
        "set_epoch(epoch); data made at random need a seed that differs by rank"
    )


def _telling_samples(ends: Sequence[End]) -> dict[int, set[str]] | None:
    """By rank, the digests of first samples that occur once there: a constant tells nothing."""
    telling = {}
    for end in ends:
        counts = Counter(end.get("first_samples") or [])
        telling[end["rank"]] = {digest for digest, count in counts.items() if count == 1}
    return telling if len(telling) > 1 and all(telling.values()) else None


def _shared(a: set[str], b: set[str]) -> float:
    return len(a & b) / min(len(a), len(b))


def _order(ends: Sequence[End]) -> Finding | None:
    """Whether each epoch had an order of its own; None where there was one epoch, or no sampler that shuffles by it."""
    loaders = [end["loader"] for end in ends if end["loader"] and end["loader"].get("set_epoch_called") is not None]
    repeated = [loader for loader in loaders if loader.get("shuffle") and loader.get("passes", 1) > 1]
    if not repeated:
        return None
    passes = repeated[0]["passes"]
    called = all(loader["set_epoch_called"] for loader in repeated)
    ok = called and all(loader.get("epochs_set") != 1 for loader in repeated)
    what = "was called" if ok else "was called with one and the same epoch" if called else "was not called"
    return _finding(
        "order of samples",
        ok,
        f"set_epoch {what} in {passes} passes over the training data",
        "set_epoch before each pass of a sampler that shuffles",
        "every epoch has the same order",
        f"{repeated[0]['sampler']} shuffles, but set_epoch {what} in {passes} passes over the training data",
        "call sampler.set_epoch(epoch) at the beginning of each epoch",
    )


# Loss and parameters


def _finite(ends: Sequence[End]) -> Finding | None:
    """None where neither loss nor parameters were seen."""
    seen = [end for end in ends if end["parameters"] or end.get("loss")]
    if not seen:
        return None
    bad = [text for end in seen if (text := _not_finite(end))]
    return _finding(
        "finite",
        not bad,
        bad[0] if bad else "loss and parameters",
        "finite loss and parameters to the end",
        "the training diverged",
        "; ".join(bad[:NAMED]),
        "lower the learning rate ({lr} grows with the global batch by workload.lr_rule; a longer warm-up helps), "
        "use GradScaler with float16, or look for bad values in the data; the speed of a diverged run says nothing",
    )


def _not_finite(end: End) -> str:
    """What was not finite in the end on this rank; empty when all was."""
    broken = (end["parameters"] or {}).get("not_finite") or {"count": 0, "names": []}
    loss = end.get("loss")
    parts = []
    if broken["count"]:
        tensors = len((end["parameters"] or {}).get("tensors") or [])
        parts.append(f"{broken['count']} of {tensors} parameters at the end ({_some(broken['names'])})")
    if loss and loss["last"] is None:
        parts.append(f"the loss, first seen so at step {loss['not_finite_steps'][0]}")
    return f"rank {end['rank']}: not finite: {' and '.join(parts)}" if parts else ""


def _parameters(spec: RunSpec, ends: Sequence[End]) -> Finding:
    """Replicas that were trained together end with the same bits."""
    checksums = [end["parameters"]["checksum"] for end in ends if end["parameters"]]
    sharded = bool(ends) and len(checksums) == spec.world_size and all(end["parameters"].get("sharded") for end in ends)
    if sharded:
        return _shards(ends)
    measured = f"{len(set(checksums))} distinct on {len(checksums)} ranks"
    wanted = f"1 distinct on {spec.world_size} ranks"
    ok = len(checksums) == spec.world_size and len(set(checksums)) == 1
    return _finding("equal parameters", ok, measured, wanted, *_why_apart(ends, measured, wanted))


def _shards(ends: Sequence[End]) -> Finding:
    """Each rank holds another part (FSDP, tensor parallelism): compared is only what says that it is replicated."""
    which = _which_differ({end["rank"]: _replicated(end["parameters"]) for end in ends})
    return _finding(
        "equal parameters",
        not which,
        f"sharded over {len(ends)} ranks{which}",
        "shards on every rank, and what is replicated equal",
        "the ranks ended with different parameters",
        f"of what is replicated, not sharded{which}",
        "a replicated DTensor stays the same only where all ranks of its mesh step it by the same gradient: see that "
        "they compute it from the same samples, or that it is averaged over them",
    )


def _replicated(parameters: Mapping[str, Any]) -> Table:
    tensors = parameters.get("tensors") or []
    return [tensors[place] for place in parameters.get("replicated") or [] if place < len(tensors)]


def _why_apart(ends: Sequence[End], measured: str, wanted: str) -> tuple[str, str, str]:
    """Verdict, why and next of replicas that differ."""
    without = [end["rank"] for end in ends if not end["parameters"]]
    if without or not ends:
        why = f"no trained parameters were seen on {f'rank {_numbers(without)}' if without else 'any rank'}"
        return "equal parameters", why, "see not_measured in the end records of these ranks, in ranks/"
    tables = {end["rank"]: end["parameters"].get("tensors") or [] for end in ends}
    which = f"{measured}, wanted {wanted}{_which_differ(tables)}"
    if not any(end["ddp"] for end in ends):
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
    """``; rank 1 differs from rank 0 in 2 of 10: 4.weight, 4.bias``; empty when none does, or it is not known."""
    first = min(tables)
    for rank, table in sorted(tables.items()):
        if table == tables[first]:
            continue
        names = [here[0] for here, there in zip(table, tables[first], strict=False) if here != there]
        if names:
            return f"; rank {rank} differs from rank {first} in {len(names)} of {len(table)}: {_some(names)}"
        return f"; rank {rank} has {len(table)} parameters, rank {first} has {len(tables[first])}"
    return ""


# Steps


def _steps(ends: Sequence[End]) -> Finding:
    counts = {end["rank"]: end["steps"]["count"] for end in ends}
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    ok = counts[fewest] == counts[most]
    measured = f"rank {fewest} made {counts[fewest]} steps, rank {most} made {counts[most]}"
    return _finding(
        "equal steps",
        ok,
        f"{counts[most]} on every rank" if ok else measured,
        "as many steps on every rank",
        "the ranks made different numbers of steps",
        measured,
        EQUALLY_MANY,
    )


# A rank that left


def left_early(spec: RunSpec, raw: RawRun) -> Failure | None:
    """The failure of ranks that ended well while others waited for them, or that wait for each other; else None."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    raised = [end for end in ends if end["exception"]]
    if any(not is_consequence(end) for end in raised):
        return None
    timed_out = raw.ended is not None and raw.ended["outcome"] == "time limit"
    # A script may save its state and end well when it is told that the time is up: that is no leaving.
    latest_s = raw.ended["ended_at_s"] - LONG_BEFORE_S if raw.ended and timed_out else math.inf
    well = [end for end in ends if not end["exception"] and end["exit_code"] == 0]
    done = [end for end in well if end["ended_at_s"] < latest_s]
    # NCCL's watchdog aborts a rank that has waited for its timeout; one that aborts soon has a reason of its own.
    waited_s = min((end["ended_at_s"] for end in done), default=math.inf) + LONG_BEFORE_S
    aborted = {rank["rank"] for rank in failed_ranks.aborted(raw) if rank["ended_at_s"] > waited_s} - raw.ranks.keys()
    missing = [rank for rank in range(spec.world_size) if rank not in raw.ranks and rank not in aborted]
    if missing and not timed_out:
        return None  # whoever left no record was killed, and is the one that the others lost
    waiting = [f"rank {end['rank']} was in its step {end['steps']['count'] + 1}" for end in raised]
    waiting += [f"rank {rank} was aborted" for rank in sorted(aborted)]
    waiting += [f"rank {rank} had not ended" for rank in missing]
    if done and waiting:
        left = ", ".join(f"rank {end['rank']} ended after {end['steps']['count']} steps" for end in done[:NAMED])
        return Failure(
            "a rank left the others",
            f"{left}; {', '.join(waiting[:NAMED])} and waited for it",
            EQUALLY_MANY,
        )
    if len(raised) > 1 and len(raised) == spec.world_size:
        where = "; ".join(
            f"rank {end['rank']} after {end['steps']['count']} steps: {end['exception']}" for end in raised[:NAMED]
        )
        return Failure(
            "the ranks waited for each other",
            where,
            "look in the log for the line at which each rank stood: one of them made a collective call (barrier, "
            "all_reduce, broadcast) that the others do not make, or left it out",
        )
    return None


def is_consequence(end: End) -> bool:
    """Whether a rank's exception only tells that another rank is gone."""
    said = end["exception"]
    return any(sign in said for sign in LOST_PEER) and not any(sign in said for sign in OWN_FAULT)


# Remarks


def remarks(spec: RunSpec, raw: RawRun) -> tuple[Remark, ...]:
    """What a reader should know and may well be meant."""
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
            f"on rank {passing[0]['rank']} the loss was not finite at step {_numbers(steps[:NAMED])}, later it was",
            "expected now and then with GradScaler, which leaves such steps out; else lower the learning rate",
        )


def _remarks_on_order(loader: Mapping[str, Any]) -> Iterator[Remark]:
    """Of a set_epoch that was not called and closes no gate."""
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
            f"set_epoch was not called in {passes} passes over the training data; whether {loader['sampler']} has "
            "another order in each without it is unknown",
            "call set_epoch(epoch) at the beginning of each epoch, unless the order changes without it",
        )


def _remarks_on_data(ends: Sequence[End], loader: Mapping[str, Any]) -> Iterator[Remark]:
    batches = {end["rank"]: end["fingerprint"].get("batch_per_gpu") for end in ends}
    if len(set(batches.values())) > 1:
        seen = ", ".join(f"{batch} on rank {rank}" for rank, batch in sorted(batches.items())[:NAMED])
        yield Remark("batch", f"the ranks use batches of different size: {seen}", "give every rank the same batch size")
    telling = _telling_samples(ends)
    if telling is None:
        yield Remark(
            "disjoint data",
            "not checked: no samples were seen that would tell the ranks' data apart "
            "(no DataLoader, batches made on the device, or samples all alike)",
            "",
        )
        return
    most = max(_shared(a, b) for a, b in combinations(telling.values(), 2))
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


# Words


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
