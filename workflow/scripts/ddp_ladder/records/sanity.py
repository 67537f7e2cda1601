"""Sanity checks of one run: did it work, apart from how well. Every check shows what was measured and wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.common.files import Agent
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records import agreement, correctness
from ddp_ladder.records.after_training import is_complete
from ddp_ladder.records.agreement import on_hosts
from ddp_ladder.records.correctness import world
from ddp_ladder.records.diagnosis import Diagnosis
from ddp_ladder.records.evidence import IN_WORDS, own_account
from ddp_ladder.records.placement import placement
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import RankEnd, RawFile
from ddp_ladder.records.record import Check, Failure, Throughput

SAMPLES_SEEN = "samples seen"


def diagnoses(spec: RunSpec, raw: RawRun, throughput: Throughput | None) -> tuple[Diagnosis, ...]:
    """Return all sanity checks of a run, with their failures. A check that lacks its evidence fails."""
    return tuple(each if isinstance(each, Diagnosis) else Diagnosis(each) for each in _checks(spec, raw, throughput))


def _checks(spec: RunSpec, raw: RawRun, throughput: Throughput | None) -> Iterator[Check | Diagnosis]:
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    yield Check(
        name="complete",
        ok=not raw.problems,
        measured="; ".join(raw.problems[:3])
        or f"{len(ends)} ranks, {len({agent.node_rank for agent in raw.agents})} nodes",
        wanted=f"the files of {spec.world_size} ranks and {spec.nodes} nodes",
    )
    yield _same_origin(spec, raw)
    yield _exit_codes(spec, raw, ends)
    is_own_account = (
        throughput is not None and own_account(throughput.source) and not any(end.parameters for end in ends)
    )
    yield _world_size(spec, ends) if is_own_account else world(spec, raw)
    yield placement(spec, raw)
    yield agreement.ranks_agree(ends)
    if throughput is not None and is_own_account:
        yield Check(
            name="evidence",
            ok=True,
            measured=IN_WORDS[throughput.source],
            wanted="the program's own account, as there is no better one",
        )
    else:
        yield from correctness.diagnoses(spec, raw)
    if spec.launcher != "python":
        yield agreement.backend(spec, ends)
    if raw.reads_log:
        yield _whole_log(raw)
        yield _printed(spec, throughput)
        return
    yield _steps(spec, raw)
    yield _samples(raw, throughput)


def _same_origin(spec: RunSpec, raw: RawRun) -> Check:
    """Check that all files are of this spec, this job and this attempt: none is stale or foreign."""
    job = raw.run.job
    parts: dict[str, RawFile] = {f"rank {k}": rank.end for k, rank in raw.ranks.items()}
    parts |= {str(agent): end for agent, end in raw.agents.items()}
    if raw.ended is not None:
        parts["ended.json"] = raw.ended
    foreign = [name for name, part in parts.items() if part.spec_hash != raw.run.spec_hash or part.job != job]
    exchanged = [f"rank {k}" for k, rank in raw.ranks.items() if rank.end.rank != k]
    exchanged += [str(agent) for agent, end in raw.agents.items() if Agent(end.node_rank, end.local_rank) != agent]
    measured = f"foreign: {', '.join(foreign)}" if foreign else "one" if parts else "nothing"
    if exchanged:
        measured = f"another's number in the file of {', '.join(exchanged)}"
    twice = _processes_of_two_ranks(spec, raw)
    if twice and not foreign and not exchanged:
        measured = twice
    return Check(
        name="one origin",
        ok=bool(parts) and not foreign and not exchanged and not twice,
        measured=measured,
        wanted=f"one spec, job {job.id}, attempt {job.attempt}",
    )


def _processes_of_two_ranks(spec: RunSpec, raw: RawRun) -> str:
    """Return processes that claim two ranks, in words. In containers process ids may repeat; they are not checked."""
    held: dict[tuple[str, int], list[int]] = {}
    for k, rank in sorted(raw.ranks.items()):
        held.setdefault((rank.end.host, rank.end.pid), []).append(k)
    several = {} if spec.container else {process: ranks for process, ranks in held.items() if len(ranks) > 1}
    parts = [
        f"process {pid} of {host} is {' and '.join(f'rank {k}' for k in ranks)}"
        for (host, pid), ranks in several.items()
    ]
    return "; ".join(parts[:3])


def _exit_codes(spec: RunSpec, raw: RawRun, ends: Sequence[RankEnd]) -> Check:
    bad = [f"rank {end.rank}: {end.exception or end.exit_code}" for end in ends if end.exit_code != 0 or end.exception]
    bad += [
        f"{agent}: {end.signal or end.exit_code}"
        for agent, end in raw.agents.items()
        if end.exit_code != 0 or end.signal
    ]
    outcome = raw.ended.outcome if raw.ended else "no end recorded"
    if outcome != "finished":
        bad.append(str(outcome))
    after = bool(bad) and is_complete(spec, raw)
    return Check(
        name="exit codes",
        ok=bool(ends) and (not bad or after),
        measured=("after the training: " if after else "") + (", ".join(bad) or "all 0"),
        wanted="0 on every rank and node",
    )


def _world_size(spec: RunSpec, ends: Sequence[RankEnd]) -> Check:
    odd = {end.rank: end.host for end in ends if end.world_size != spec.world_size}
    sizes = ", ".join(sorted({str(end.world_size) for end in ends})) or "nothing"
    measured = f"{sizes}, other than planned on {on_hosts(list(odd), odd)}" if odd else sizes
    return Check(name="world size", ok=bool(ends) and not odd, measured=measured, wanted=str(spec.world_size))


def _steps(spec: RunSpec, raw: RawRun) -> Check:
    counts = sorted({len(rank.steps) for rank in raw.ranks.values()})
    wanted = spec.warmup_steps + spec.min_steps
    ok = len(counts) == 1 and counts[0] >= wanted
    measured = " and ".join(str(count) for count in counts) or "none"
    return Check(
        name="enough steps",
        ok=ok,
        measured=f"{measured} optimizer steps",
        wanted=f"at least {wanted} on every rank (measure.warmup_steps + measure.min_steps), equally many",
    )


def _printed(spec: RunSpec, throughput: Throughput | None) -> Check:
    """Check that the regular expression matched a line after the warm-up."""
    count = len(throughput.blocks_samples_per_s) if throughput else 0
    return Check(
        name="throughput printed",
        ok=count > 0,
        measured=f"{count} matches after the warm-up",
        wanted=f"at least 1 match of workload.throughput_regex ({spec.throughput_regex}) in the log",
    )


def _whole_log(raw: RawRun) -> Diagnosis:
    """Check that nothing that the program printed is missing: the rates in the middle of the run may be."""
    missing = sum(end.log.left_out_bytes + end.log.lost_bytes for end in raw.agents.values() if end.log)
    check = Check(
        name="whole log",
        ok=not missing,
        measured=f"{missing:,} bytes of the output are not in the log" if missing else "all of the output",
        wanted="all of the output, as its throughput is read from it (workload.throughput_regex)",
    )
    next_step = (
        "print less, or raise logs.max_mb_per_node in config.yaml, and see that the disk of the results has room "
        "(df -h); then start snakemake again"
    )
    return Diagnosis(check, Failure(verdict="the log is incomplete", why=check.measured, next=next_step))


def _samples(raw: RawRun, throughput: Throughput | None) -> Check:
    """Check that every rank counted samples from start to end; without them the throughput means nothing."""
    empty = [str(k) for k, rank in sorted(raw.ranks.items()) if rank.steps.samples.sum() == 0]
    rates = throughput.blocks_samples_per_s if throughput else ()
    idle = sum(rate == 0 for rate in rates)
    measured = "on every rank, all the time"
    if empty:
        measured = f"none on rank {', '.join(empty)}"
    elif idle:
        measured = f"none in {idle} of {len(rates)} blocks of steps"
    return Check(
        name=SAMPLES_SEEN,
        ok=bool(raw.ranks) and not empty and not idle,
        measured=measured,
        wanted="training batches from a torch DataLoader on every rank, all the time",
    )
