"""Checks that the ranks trained one model on different data, from what each rank recorded; causes come first.

Every finding names what to change in the script. What may be intended is a remark, and does not close a gate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from ddp_ladder_instrument.contract import FIRST_SAMPLES, LEAST_UNCLEAR
from ddp_ladder_instrument.slow_settings import REMOVE, in_words

from ddp_ladder.common.findings import CheckKind, Finding, Severity, remark
from ddp_ladder.common.formats import grouped, in_short, rank_numbers
from ddp_ladder.measuring.fingerprint import unread, varying_batches
from ddp_ladder.measuring.owners import joins_uneven
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.platform.launchers import LAUNCHERS
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import RankEnd, Witnessed
from ddp_ladder.records.record import Failure, FailureKind
from ddp_ladder.records.witness import doubt_on

MOST_SPREAD = 0.02  # of the FLOPs per sample, between batches
NAMED = 3  # parameters, ranks or hosts in a message
NOT_MEASURED = "see not_measured in the end records of these ranks, in nodes/*.zip (without the ladder: ranks/)"
MOST_SHARED = 0.5  # of the first samples of two ranks; disjoint shards share none

DIVERGED = (
    "lower the learning rate ({lr} grows with the global batch by workload.lr_rule; a longer warm-up helps), use "
    "GradScaler with float16, or look for bad values in the data and a log(0) or a division by 0 in the loss "
    "(torch.autograd.set_detect_anomaly(True) names the operation); the speed of a diverged run says nothing"
)
OWN_SAMPLES = (
    "give each rank its own part of the data: by sampler=DistributedSampler(dataset) in place of shuffle=True; in an "
    "IterableDataset by torch.distributed.get_rank() and get_world_size(), and by torch.utils.data.get_worker_info(); "
    "data made at random need a seed that differs by rank; ranks that work on the same samples with parts of one model "
    "(tensor parallelism) cannot be measured here"
)
EQUALLY_MANY = (
    "let every rank make the same number of steps: no break, continue or return on a condition that holds on one rank "
    "only, and equally many batches on all (DistributedSampler pads; a stream has to be cut to the same length on each "
    "rank), or train within DDP's join() (with model.join():), which allows uneven inputs"
)
WRAP = (
    "after torch.distributed.init_process_group(), wrap the model, before the optimizer is made, and train through the "
    "wrapper: model = DistributedDataParallel(model)"
)


@dataclass(frozen=True)
class Diagnosis:
    """A check, and what it means if it did not pass."""

    finding: Finding
    failure: Failure


def diagnose(
    kind: CheckKind,
    ok: bool | None,
    measured: str,
    wanted: str,
    verdict: str = "",
    why: str = "",
    next_step: str = "",
    failure_kind: FailureKind | None = None,
) -> Diagnosis:
    """Return a check with its failure, used only if it did not pass; by default it says what the check says.

    ok: None if there is nothing to check by, which fails no run.
    """
    severity: Severity = "unknown" if ok is None else "note" if ok else "error"
    why = why or f"measured {measured}, wanted {wanted}"
    failure = Failure(kind=failure_kind, verdict=verdict or kind, why=why, next=next_step)
    return Diagnosis(Finding(kind=kind, severity=severity, measured=measured, wanted=wanted), failure)


def one_model(raw: RawRun) -> Iterator[Diagnosis]:
    """Yield every finding that the evidence allows, causes first."""
    yield _devices(raw)
    yield from _disjoint_data(raw.ends)
    yield from _finite(raw.ends)
    yield _equal_parameters(raw)
    if len(raw.ends) > 1:
        yield _equal_steps(raw)
    yield from _order(raw.ends)


def world(raw: RawRun, own_account: bool) -> Diagnosis:
    """Check that all ranks are in one process group. Without one each trains alone, and appears faster.

    own_account: only the program itself reported figures; it may lack torch.
    """
    spec, ends = raw.spec, raw.ends
    judged = spec.world_size > 1 and not raw.reads_log and not own_account
    alone = [end.rank for end in ends if judged and end.backend is None]
    others = [end for end in ends if end.world_size != spec.world_size]
    measured = in_short(sorted({end.world_size for end in ends}), NAMED, " and ") or "nothing"
    who = "all ranks" if len(others) == len(ends) else rank_numbers([end.rank for end in others])
    seen = in_short(sorted({end.world_size for end in others}), NAMED, " and ") or measured
    why = f"{spec.world_size} ranks were started; for {who} the world has {seen}"
    if alone:
        measured = f"no process group on {'any rank' if len(alone) == len(ends) else rank_numbers(alone)}"
        why = f"{measured}, so each of them trained a model of its own"
    has_slurms = "SLURM_PROCID" in LAUNCHERS[spec.launcher].task_variables(0, 0, 0)
    return diagnose(
        "world size",
        bool(ends) and not others and not alone,
        measured,
        str(spec.world_size),
        "no process group was formed" if alone else "the ranks are not in one process group",
        why,
        "call torch.distributed.init_process_group() before the model is made, without rank and world size: the "
        "launcher puts them into the environment (RANK, WORLD_SIZE, LOCAL_RANK); then wrap the model in "
        "DistributedDataParallel and give the loader a DistributedSampler; if the script does so only when an argument "
        "says so, add it to workload.args"
        + ("" if has_slurms else "; if it reads SLURM_PROCID and SLURM_NTASKS, set launcher: srun"),
    )


def _devices(raw: RawRun) -> Diagnosis:
    held = grouped(((end.host, end.device.id), end.rank) for end in raw.ends)
    kinds = sorted({end.device.kind for end in raw.ends})
    several = [(host, ranks) for (host, _), ranks in held.items() if len(ranks) > 1]
    shared = [f"{rank_numbers(ranks)} on {host} use one device" for host, ranks in several]
    next_step = (
        "let each rank take its own GPU before anything is put on one: "
        f'torch.{raw.spec.device}.set_device(int(os.environ["LOCAL_RANK"])), and device_ids=[local_rank] for '
        "DistributedDataParallel"
    )
    if not shared:
        next_step = f"let the script train on {raw.spec.device}, or correct "
        next_step += "node.gpus and network.backend in cluster.yaml"
    ok, verdict = len(held) == raw.spec.world_size and kinds == [raw.spec.device], "several ranks share one device"
    measured, wanted = f"{len(held)} x {'/'.join(kinds) or 'none'}", f"{raw.spec.world_size} x {raw.spec.device}"
    why = in_short(shared, NAMED, "; ")
    return diagnose("distinct devices", ok, measured, wanted, verdict if shared else "", why, next_step)


def _disjoint_data(ends: Sequence[RankEnd]) -> Iterator[Diagnosis]:
    """Check that no two ranks share samples; nothing for one rank. Without evidence it passes, and says so.

    Two ranks that share them are evidence enough, whatever is known of the others.
    """
    if len(ends) < 2:
        return
    wanted, shared = "other samples on each rank", most_shared(ends)
    if shared.known < len(ends) and shared.fraction < MOST_SHARED:
        yield diagnose("disjoint data", None, f"not checkable: {_why_no_shares(ends)}", wanted)
        return
    loader, ok, verdict = ends[0].loader, shared.fraction < MOST_SHARED, "ranks train on the same data"
    first, second = shared.ranks
    measured = f"ranks {first} and {second} share {100 * shared.fraction:.0f} % of their first samples"
    why = f"{measured} (training loader with {loader.sampler if loader else 'no sampler'})"
    measured = measured if shared.fraction else "no two ranks share any of their first samples"
    yield diagnose("disjoint data", ok, measured, wanted, verdict, why, OWN_SAMPLES)


@dataclass(frozen=True)
class Shared:
    """The two ranks that share the largest fraction of their first samples; of several the first."""

    known: int  # number of ranks whose first samples are known
    ranks: tuple[int, int] = (0, 0)
    fraction: float = 0.0  # of the smaller set; 0 if no two ranks share any


def most_shared(ends: Sequence[RankEnd]) -> Shared:
    """Return which ranks share most. A sample counts if it occurs once on its rank: a constant proves nothing."""
    distinct: dict[int, list[str]] = {}
    for end in sorted(ends, key=lambda end: end.rank):
        if known := [digest for digest, times in Counter(end.first_samples).items() if times == 1]:
            distinct[end.rank] = known
    ranks_with = Counter(chain.from_iterable(distinct.values()))
    of_ranks = ((digest, place) for place, known in enumerate(distinct.values()) for digest in known)
    places = grouped(pair for pair in of_ranks if ranks_with[pair[0]] > 1)
    on_several = {digest: np.array(indices) for digest, indices in places.items()}
    ranks, sizes = [*distinct], np.array([len(known) for known in distinct.values()])
    most = Shared(known=len(ranks))
    for place, known in enumerate(distinct.values()):
        others = [on_several[digest] for digest in known if digest in on_several]
        if not others or most.fraction == 1.0:
            continue
        fractions = np.bincount(np.concatenate(others), minlength=len(ranks)) / np.minimum(sizes, sizes[place])
        fractions[: place + 1] = 0.0
        best = int(fractions.argmax())
        if fractions[best] > most.fraction:
            most = Shared(len(ranks), (ranks[place], ranks[best]), float(fractions[best]))
    return most


def _finite(ends: Sequence[RankEnd]) -> Iterator[Diagnosis]:
    """Check that the parameters are finite at the end, if they were seen."""
    if not any(end.parameters for end in ends):
        return
    bad = [text for end in ends if (text := _not_finite(end))]
    measured, wanted = bad[0] if bad else "all parameters", "finite parameters at the end"
    yield diagnose("finite", not bad, measured, wanted, "the training diverged", in_short(bad, NAMED, "; "), DIVERGED)


def _not_finite(end: RankEnd) -> str:
    """Return which parameters were not finite at the end on this rank; empty if all were."""
    seen = end.parameters
    if seen is None or not seen.not_finite.count:
        return ""
    broken = seen.not_finite
    names = in_short(broken.names, NAMED)
    return f"rank {end.rank}: not finite: {broken.count} of {len(seen.of_each)} parameters at the end ({names})"


def _equal_parameters(raw: RawRun) -> Diagnosis:
    """Check that all replicas end with the same bits, as replicas that were trained together do.

    Of sharded models (FSDP) nothing is compared, but what DDP wraps is a replica, sharded or not.
    """
    ends, world_size = raw.ends, raw.spec.world_size
    seen = {end.rank: end.parameters for end in ends if end.parameters}
    wrapped = any(end.ddp for end in ends)
    if len(seen) == world_size and all(parameters.sharded for parameters in seen.values()) and not wrapped:
        return diagnose("equal parameters", True, f"sharded over {len(ends)} ranks", "shards on every rank")
    distinct = {parameters.checksum for parameters in seen.values()}
    measured, wanted = f"{len(distinct)} distinct on {len(seen)} ranks", f"1 distinct on {world_size} ranks"
    verdict, why = "the ranks ended with different parameters", f"{measured}, wanted {wanted}"
    next_step = (
        "see what is done to these parameters outside DistributedDataParallel's backward pass: set to be ignored, "
        "created or written after wrapping, trained through model.module, or stepped inside no_sync, or in a hook of "
        "the backward pass (register_post_accumulate_grad_hook), before DDP has reduced the gradients"
    )
    if len(seen) < len(ends) or not ends:
        without = [end.rank for end in ends if not end.parameters]
        verdict = "equal parameters"
        why = f"no trained parameters were seen on {rank_numbers(without) if without else 'any rank'}"
        next_step = NOT_MEASURED
    elif not wrapped:
        verdict = "the model is not wrapped in DistributedDataParallel"
        next_step = WRAP
    if seen:
        digests = {rank: parameters.of_each for rank, parameters in seen.items()}
        why += _which_differ(digests, seen[0].names if 0 in seen else ())
    ok = len(seen) == world_size and len(distinct) == 1
    return diagnose("equal parameters", ok, measured, wanted, verdict, why, next_step)


def _which_differ(digests: Mapping[int, Sequence[str]], names: Sequence[str]) -> str:
    """Return ``; rank 1 differs from rank 0 in 2 of 10: 4.weight, 4.bias``; empty if none differs or it is unknown.

    names: of the tensors of rank 0; without its record they are numbered.
    """
    first = min(digests)
    for rank, of_rank in sorted(digests.items()):
        if of_rank == digests[first]:
            continue
        differing = [k for k, pair in enumerate(zip(of_rank, digests[first], strict=False)) if pair[0] != pair[1]]
        if differing:
            which = in_short([names[k] if k < len(names) else f"number {k + 1}" for k in differing], NAMED)
            return f"; rank {rank} differs from rank {first} in {len(differing)} of {len(of_rank)}: {which}"
        return f"; rank {rank} has {len(of_rank)} parameters, rank {first} has {len(digests[first])}"
    return ""


def _equal_steps(raw: RawRun) -> Diagnosis:
    counts = {end.rank: end.steps.count for end in raw.ends}
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    ok = counts[fewest] == counts[most]
    apart = f"rank {fewest} made {counts[fewest]} steps, rank {most} made {counts[most]}"
    measured, wanted = f"{counts[most]} on every rank" if ok else apart, "as many steps on every rank"
    if not ok and joins_uneven(raw.ranks):
        return diagnose("equal steps", True, f"{apart}, in DDP's join()", f"{wanted}, or uneven inputs in join()")
    verdict = "the ranks made different numbers of steps"
    return diagnose("equal steps", ok, measured, wanted, verdict, apart, EQUALLY_MANY)


def _order(ends: Sequence[RankEnd]) -> Iterator[Diagnosis]:
    """Check that each epoch had its own order; nothing for a single epoch, or if no sampler shuffles by epoch.

    A pass that is abandoned and begun anew, as after an out-of-memory, may well have the same order.
    """
    loaders = [end.loader for end in ends if end.loader and end.loader.set_epoch_called is not None]
    # It had several epochs, or one epoch in several whole passes.
    repeated = [each for each in loaders if each.shuffle and max(each.epochs_set or 0, each.whole_passes or 0) > 1]
    if not repeated:
        return
    called = all(loader.set_epoch_called for loader in repeated)
    ok = called and all(loader.epochs_set != 1 for loader in repeated)
    what = "was called with one and the same epoch" if called else "was not called, or only with 0,"
    what = "was called" if ok else what
    measured = f"set_epoch {what} in {repeated[0].whole_passes} whole passes over the training data"
    wanted, verdict = "set_epoch before each pass of a sampler that shuffles", "every epoch has the same order"
    why = f"{repeated[0].sampler} shuffles, but {measured}"
    next_step = "call sampler.set_epoch(epoch) at the beginning of each epoch"
    yield diagnose("order of samples", ok, measured, wanted, verdict, why, next_step)


# Remarks: worth knowing, although it may be intended


def remarks_on_run(raw: RawRun) -> Iterator[Finding]:
    """Yield what a reader should know although it may be intended."""
    for field, ranks in unread(raw.ends).items():
        yield remark(
            "fingerprint",
            f"{field} could not be read on {rank_numbers(ranks)}: it was not compared "
            "between the ranks, and it equals that of no other run",
            NOT_MEASURED,
        )
    settings = [each for end in raw.ends[:1] for each in end.fingerprint.slow_settings or ()]
    if slow := in_words(settings, is_gpu(raw.spec.device)):
        yield remark("slow settings", f"set, and slowing every step: {slow}", REMOVE)
    if raw.spec.wrapper and raw.agents and not any(end.failed for end in raw.agents.values()):
        failed = [end.rank for end in raw.ends if end.exit_code]
        if failed:
            yield remark(
                "wrapper",
                f"{raw.spec.wrapper[0]} does not pass on the exit code of {rank_numbers(failed)}, which failed",
                "look for its option that passes the exit code on",
            )
    if raw.spec.world_size > 1 and raw.has_all_ranks:
        yield from _on_data(raw)
    yield from _on_batches(raw.ends, raw.run.witness)
    yield from _on_samples_per_step(raw)
    for agent, end in raw.agents.items():
        if (log := end.log) and (log.error or log.left_out_bytes):
            bytes_ = log.lost_bytes if log.error else log.left_out_bytes
            why = f"could not be written: {log.error}" if log.error else "are left out of its middle"
            yield remark(
                "log",
                f"the log is incomplete: {bytes_ / 1e6:,.1f} MB of the output of {agent} {why}",
                "print less, as it takes time too, or raise logs.max_mb_per_node in config.yaml, and see that the "
                "disk of the results has room (df -h)",
            )
            break
    problem = raw.profiling.problem if raw.profiling else "rank 0 did not say what became of its profiled steps"
    if raw.spec.profile_steps and raw.ends and problem:
        next_step = "nothing for the figures, which are complete without a profile"
        yield remark("profile", f"not profiled: {problem}", next_step)
    flops = raw.run.witness.flops if raw.run.witness and raw.spec.count_flops else None
    if flops and flops.spread > MOST_SPREAD:
        differ = f"the FLOPs per sample of the witness run's batches differ by {100 * flops.spread:.0f} %"
        next_step = "for a sharper figure, measure with samples of one length"
        yield remark("flops", f"{differ}: TFLOP/s is as uncertain", next_step)


def _why_no_shares(ends: Sequence[RankEnd]) -> str:
    unseen = [end for end in ends if not end.first_samples]
    if not unseen:  # a constant proves nothing
        return "the first batches of a rank are all alike"
    failed = [note for note in unseen[0].not_measured if note.startswith(FIRST_SAMPLES)]
    why = "the first batches hold no tensors in the host's memory"
    if failed:
        why = f"the first batches could not be read ({failed[0].partition(': ')[2]})"
    elif unseen[0].loader is None:
        why = "no DataLoader of torch gave the training a batch"
    return f"on {rank_numbers([end.rank for end in unseen])} {why}"


OWN_COUNT = "compare samples/s with what the script counts itself; if they differ, set workload.samples_per_step"


def _on_batches(ends: Sequence[RankEnd], witness: Witnessed | None) -> Iterator[Finding]:
    """Yield what the ranks' logs, and the witness run, show of the batches beyond their number."""
    known = {end.rank: end.batches for end in ends if end.batches and end.source in ("counted", "guessed")}
    rank = max(known, key=lambda rank: known[rank].untrained, default=-1)
    if rank >= 0 and known[rank].untrained > LEAST_UNCLEAR * known[rank].drawn:
        of = known[rank]
        yield remark(
            "untrained batches",
            f"{of.untrained:,} of {of.drawn:,} batches were drawn and not trained (rank {rank}): no backward pass "
            "and step used them, and they are not counted",
            "nothing, if the script is meant to leave them out; the samples/s are those that it trained on",
        )
    rank = max(known, key=lambda rank: known[rank].again, default=-1)
    if rank >= 0 and known[rank].again:
        yield remark(
            "batch",
            f"{known[rank].again:,} optimizer steps of rank {rank} are further ones on batches that were drawn for an "
            "earlier step: they are parts of that step, and their batches count once",
            "nothing, if the script is meant to; a figure per optimizer step is that of several of them",
        )
    if known and witness is not None and witness.is_seen:
        yield from _on_witness(ends, witness)
        return  # it decides what the form of the loop leaves open
    for rank, of in known.items():
        if (of.unclear or 0) > LEAST_UNCLEAR * of.drawn > 0:
            why = (
                f"batches are joined or left out on rank {rank}, or a loader is drawn from for some steps only "
                f"({of.unclear:,} places in {of.drawn:,} batches), and the loop does not show which were trained on"
            )
            yield remark("doubtful count", f"the number of samples is doubtful: {why}", OWN_COUNT)
            break


def _on_witness(ends: Sequence[RankEnd], witness: Witnessed) -> Iterator[Finding]:
    """Yield where the witness run counted otherwise than the rules, or may not hold for these ranks."""
    if doubt := doubt_on(ends, witness):
        yield remark("doubtful count", f"the number of samples is doubtful: {doubt}", OWN_COUNT)
    elif witness.status == "differs":
        yield remark(
            "witness",
            f"the samples are those that the witness run saw: {witness.why}",
            "nothing, if the script is meant to leave batches out, or to train on them again",
        )


def told_batches(spec: RunSpec) -> set[int]:
    """Return the batch of one backward pass: that in the arguments and variables of the script, or the planned one."""
    texts = [*zip(spec.args_template, spec.args, strict=False)]
    texts += [(template, spec.env.get(name, "")) for name, template in spec.env_template.items()]
    told = (re.findall("[0-9]+", text) for template, text in texts if "{batch_per_gpu}" in template)
    return {int(number) for numbers in told for number in numbers} or {spec.batch_per_gpu}


def samples_per_step_of(spec: RunSpec, backward_passes: int) -> str:
    """Return workload.samples_per_step for a script that takes another batch for each backward pass of a step."""
    of_step = {backward_passes * batch for batch in told_batches(spec)}
    if spec.accumulation is not None:
        return "{batch_per_gpu} * {accumulation}"
    return "{batch_per_gpu}" if spec.batch_per_gpu in of_step else f"{{batch_per_gpu}} * {backward_passes}"


def _on_samples_per_step(raw: RawRun) -> Iterator[Finding]:
    """Yield that workload.samples_per_step does not fit what the witness run saw, or the backward passes of a step."""
    witness = raw.run.witness
    if raw.spec.samples_per_step is not None and witness is not None and witness.status == "differs":
        yield remark(
            "doubtful count",
            f"the number of samples is doubtful: they are what workload.samples_per_step says, and {witness.why}",
            "remove workload.samples_per_step from config.yaml: the batches of this script are followed",
        )
        return
    spec, known = raw.spec, {end.rank: end.fingerprint.backward_passes or 1 for end in raw.ends}
    rank = max(known, key=lambda rank: known[rank], default=0)
    passes, samples = known.get(rank, 1), spec.samples_per_step
    if samples is None or passes == 1 or samples in (passes * batch for batch in told_batches(spec)):
        return
    batches = in_short(
        [f"{passes * batch} ({passes} x {batch})" for batch in sorted(told_batches(spec))], NAMED, " or "
    )
    yield remark(
        "doubtful count",
        f"the number of samples is doubtful: workload.samples_per_step says {samples}, and a step of rank {rank} "
        f"has {passes} backward passes, with a batch each {batches}",
        f'set workload.samples_per_step: "{samples_per_step_of(spec, passes)}" in config.yaml if each backward '
        "pass has a batch of its own; if several share one, let the script write its steps to the file that "
        "DDP_LADDER_METRICS names (docs/my-script.md)",
    )


def _on_data(raw: RawRun) -> Iterator[Finding]:
    ends = raw.ends
    batches = {end.rank: end.fingerprint.batch_per_gpu for end in ends}
    if len(set(batches.values())) > 1:
        by_size = grouped((size, rank) for rank, size in batches.items())
        seen = in_short([f"{size} on {rank_numbers(alike)}" for size, alike in by_size.items()], NAMED)
        what, next_step = f"the ranks use batches of different size: {seen}", "give every rank the same batch size"
        if any(varying_batches(files) for files in raw.ranks.values()):
            what = f"the batches vary in size; in the median step the ranks have {seen}"
            next_step = "nothing, if the script makes them so, as with a budget of tokens"
        yield remark("batch", what, next_step)
    if not all(end.first_samples for end in ends) and any(end.parameters for end in ends):
        yield remark(
            "disjoint data",
            f"whether the ranks train on different data could not be checked: {_why_no_shares(ends)}",
            "see in the script that each rank reads its own part of the data: DistributedSampler, or a dataset "
            "divided by rank",
        )
    loader = ends[0].loader
    if not loader or loader.shards is not False:
        return
    shared = most_shared(ends)
    if shared.known > 1 and shared.fraction < MOST_SHARED:
        yield remark(
            "undivided data",
            f"the sampler ({loader.sampler}) does not divide the data between the ranks: every rank passes over "
            "all of them, unless its dataset is a part",
            "give the loader sampler=DistributedSampler(dataset) in place of shuffle=True, unless each rank's "
            "dataset is a part",
        )
