"""Assemble a run's record from its raw files. Pure: the same files always give the same record.

That is also what makes a gate hard to deceive: it assembles each record anew and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ddp_ladder.blocks import measure
from ddp_ladder.files import RunDirectory
from ddp_ladder.plan import RunSpec
from ddp_ladder.raw_files import RankFiles, RawRun, read_raw_run
from ddp_ladder.record import Failure, Job, Rank, Record, Throughput, Timing, World
from ddp_ladder.sanity import run_checks


def assemble(directory: RunDirectory) -> Record:
    """Read the run directory and build its record.

    Raises OSError or ValueError when run.json, which says what was run, is missing or damaged.
    """
    spec, spec_hash, job = read_identity(directory)
    raw = read_raw_run(directory, spec.nodes, spec.world_size)
    checks = run_checks(spec, raw)
    ok = all(check.ok for check in checks)
    throughput, timing = _figures(spec, raw)
    return Record(
        status="ok" if ok else "failed",
        spec=spec,
        spec_hash=spec_hash,
        job=job,
        world=_world(raw),
        ranks=tuple(_rank(spec, raw.ranks[k]) for k in sorted(raw.ranks)),
        throughput=throughput,
        timing=timing,
        fingerprint=raw.ranks[0].end["fingerprint"] if 0 in raw.ranks else {},
        checks=checks,
        failure=None if ok else explain(spec, raw, directory),
    )


def not_run(spec: RunSpec, why: str, next_step: str) -> Record:
    """The record of a run that was left out on purpose, so that the plan stays accounted for."""
    return Record(
        status="failed",
        spec=spec,
        spec_hash=spec.hash,
        job=None,
        world=World(None, None, ()),
        ranks=(),
        throughput=None,
        timing=None,
        fingerprint={},
        checks=(),
        failure=Failure("not run", why, next_step),
    )


def read_identity(directory: RunDirectory) -> tuple[RunSpec, str, Job]:
    """Spec, spec hash and job of run.json. Raises OSError or ValueError."""
    from ddp_ladder.files import read_json

    data = read_json(directory.run)
    try:
        spec, job = RunSpec.from_json(data["spec"]), Job(**data["job"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory.run} does not describe a run: {error}") from error
    if data.get("spec_hash") != spec.hash:
        raise ValueError(f"{directory.run}: spec_hash is not that of its spec")
    return spec, spec.hash, job


def _world(raw: RawRun) -> World:
    ends = [rank.end for rank in raw.ranks.values()]
    sizes = {end["world_size"] for end in ends}
    backends = {end["backend"] for end in ends}
    return World(
        size=sizes.pop() if len(sizes) == 1 else None,
        backend=backends.pop() if len(backends) == 1 else None,
        hosts=tuple(sorted({end["host"] for end in ends})),
    )


def _rank(spec: RunSpec, files: RankFiles) -> Rank:
    end, steps = files.end, files.steps
    measured = slice(spec.warmup_steps, None)
    times = steps.step_time_s[measured]
    return Rank(
        rank=end["rank"],
        local_rank=end["local_rank"],
        host=end["host"],
        pid=end["pid"],
        device=end["device"],
        exit_code=end["exit_code"],
        ended_by=end["ended_by"],
        steps=len(steps),
        samples=int(steps.samples.sum()),
        padding_samples=int(steps.padding_samples.sum()),
        step_time_s=float(np.median(times)) if len(times) else None,
        data_wait_fraction=float(steps.data_wait_s[measured].sum() / times.sum())
        if len(times)
        else None,
        startup_s=end["startup_s"],
        peak_memory_bytes=end["peak_memory_bytes"],
        parameters=end["parameters"],
        csv_sha256=files.csv_sha256,
    )


def _figures(spec: RunSpec, raw: RawRun) -> tuple[Throughput | None, Timing | None]:
    """Figures where every rank is there with the same number of steps; else there is nothing to add up."""
    ranks = [raw.ranks[k] for k in sorted(raw.ranks)]
    counts = {len(rank.steps) for rank in ranks}
    if raw.ended is None or len(ranks) != spec.world_size or len(counts) != 1:
        return None, None
    if counts.pop() <= spec.warmup_steps:
        return None, None
    exposed = [rank.end["ddp"]["exposed_comm_s"] for rank in ranks if rank.end["ddp"]]
    startups = [rank.end["startup_s"]["total"] for rank in ranks]
    return measure(
        [rank.steps for rank in ranks],
        spec.warmup_steps,
        [value for value in exposed if value is not None],
        max((value for value in startups if value is not None), default=None),
        raw.ended["ended_at_s"] - raw.ended["started_at_s"],
    )


def explain(spec: RunSpec, raw: RawRun, directory: RunDirectory) -> Failure:
    """Say what went wrong, most telling evidence first: the ladder's own verdict, an exception, an exit, a check."""
    log = directory.path / "train.log"
    look = f"read {log}, mend the cause, and start snakemake again: only failed runs are repeated"
    outcome = raw.ended["outcome"] if raw.ended else "unknown"
    if outcome == "time limit":
        key = f"stages.{spec.stage}.runtime"
        return Failure(
            "time limit",
            f"the job of scale {spec.scale} reached its {key}",
            f"raise {key}, or shorten the run with measure.max_steps or measure.max_seconds",
        )
    raised = [
        (k, rank.end["exception"]) for k, rank in sorted(raw.ranks.items()) if rank.end["exception"]
    ]
    if raised:
        rank, exception = raised[0]
        return Failure("the script raised an exception", f"rank {rank}: {exception}", look)
    exits = [(k, _exit(end)) for k, end in sorted(raw.nodes.items()) if end["exit_code"] != 0]
    if exits:
        return Failure("the launcher failed", f"node {exits[0][0]}: {exits[0][1]}", look)
    failed = [check for check in run_checks(spec, raw) if not check.ok]
    first = failed[0]
    return Failure(first.name, f"measured {first.measured}, wanted {first.wanted}", look)


def _exit(end: Mapping[str, Any]) -> str:
    return f"ended by {end['signal']}" if end["signal"] else f"exit code {end['exit_code']}"
