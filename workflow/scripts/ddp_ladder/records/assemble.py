"""Assemble a run's record from its raw files. Pure: the same files always give the same record."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import numpy as np

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.model import Model
from ddp_ladder.common.redaction import redacted
from ddp_ladder.nodes.critical_rank import StepParts
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.checks import diagnoses, weakest
from ddp_ladder.records.correctness import remarks_on_run
from ddp_ladder.records.failures import after_training, explain
from ddp_ladder.records.fingerprint import whole_fingerprint
from ddp_ladder.records.node_usage import node_rank, usage_of
from ddp_ladder.records.raw_files import RankFiles, RawRun, digests, read_raw_run
from ddp_ladder.records.raw_models import Parameters, RankFacts
from ddp_ladder.records.record import SCHEMA_VERSION, Failure, Rank, Record, Remark, Throughput, Timing, World
from ddp_ladder.records.statistic import Warmup, find_warmup, median
from ddp_ladder.records.timing import (
    compare_with_log,
    data_wait_fraction,
    log_figures,
    measure,
    parts_of_run,
    printed_rates,
    remark_on_loop,
)

Part = TypeVar("Part", bound=Model)
NOT_RUN = "not run"


def assemble(directory: RunDirectory) -> Record:
    """Read the run directory and build its record.

    Raises OSError or ValueError if run.json, which describes the run, is missing or damaged.
    """
    raw = read_raw_run(directory)
    spec = raw.run.spec
    warmup = _warmup(spec, raw)
    throughput, timing = _figures(spec, raw, warmup, directory)
    found = diagnoses(spec, raw, throughput)
    checks = tuple(each.check for each in found)
    ok = all(check.ok for check in checks)
    failure = None if ok else explain(spec, raw, found, directory)
    step = _step_parts(raw, warmup, throughput)
    usage = usage_of(raw, warmup, timing, step, directory)
    ranks = tuple(_rank(warmup, raw.ranks[k]) for k in sorted(raw.ranks))
    found_remarks = (
        *remarks_on_run(spec, raw),
        *_on_loop(raw, throughput, timing),
    )
    if throughput is not None and not raw.reads_log:
        found_remarks += compare_with_log(spec, throughput.samples_per_s, directory.log)
    if ok:
        found_remarks += after_training(spec, raw, found, directory)
    return Record(
        status="ok" if ok else "failed",
        spec=spec,
        spec_hash=raw.run.spec_hash,
        job=raw.run.job,
        world=_world(raw),
        ranks=ranks,
        throughput=throughput,
        timing=timing,
        fingerprint=whole_fingerprint(spec, raw),
        checks=tuple(map(_without_secrets, checks)),
        failure=failure and _without_secrets(failure),
        remarks=tuple(map(_without_secrets, found_remarks)),
        step=step,
        files=digests(directory),
        usage=usage and _without_secrets(usage),
        schema_version=SCHEMA_VERSION,
    )


def not_run(spec: RunSpec, why: str, next_step: str) -> Record:
    """Return the record of a run that was left out on purpose, so that each planned run has a record."""
    return Record(
        status="failed",
        spec=spec,
        spec_hash=spec.hash,
        job=None,
        world=World(size=None, backend=None, nodes=(), hosts=()),
        ranks=(),
        throughput=None,
        timing=None,
        fingerprint={},
        checks=(),
        failure=_without_secrets(Failure(verdict=NOT_RUN, why=why, next=next_step)),
        remarks=(),
        schema_version=SCHEMA_VERSION,
    )


def _without_secrets(part: Part) -> Part:
    """Return a part of the record whose texts may quote a script, a library or Slurm, without passwords and tokens."""
    without: Part = _redacted(part)
    return without


def _redacted(data: Any) -> Any:
    """Return the data without secrets; if there are none, the same object."""
    if isinstance(data, str):
        text = redacted(data)
        return data if text == data else text
    if isinstance(data, list | tuple):
        items = type(data)(map(_redacted, data))
        return data if all(map(operator.is_, data, items)) else items
    if isinstance(data, dict | Model):
        pairs = data.items() if isinstance(data, dict) else data
        changed = {key: new for key, value in pairs if (new := _redacted(value)) is not value}
        if changed:
            return data.replace(**changed) if isinstance(data, Model) else {**data, **changed}
    return data


def _world(raw: RawRun) -> World:
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    sizes = {end.world_size for end in ends}
    backends = {end.backend for end in ends}
    return World(
        size=sizes.pop() if len(sizes) == 1 else None,
        backend=backends.pop() if len(backends) == 1 else None,
        nodes=tuple(raw.run.nodes),
        hosts=tuple(dict.fromkeys(end.host for end in ends)),
    )


def _rank(warmup: Warmup, files: RankFiles) -> Rank:
    end, steps = files.end, files.steps
    measured = slice(warmup.steps, None)
    times = steps.step_time_s[measured]
    return Rank(
        **{key: getattr(end, key) for key in RankFacts.model_fields},
        steps=len(steps),
        samples=int(steps.samples.sum()),
        padding_samples=int(steps.padding_samples.sum()),
        step_time_s=median(times) if len(times) else None,
        data_wait_fraction=data_wait_fraction(steps.data_wait_s[measured], times),
        parameters=end.parameters
        and Parameters(**{key: getattr(end.parameters, key) for key in Parameters.model_fields}),
        ddp=end.ddp,
    )


def _step_parts(raw: RawRun, warmup: Warmup, throughput: Throughput | None) -> StepParts | None:
    ranks = [raw.ranks[k] for k in sorted(raw.ranks)]
    if throughput is None or not ranks or len(ranks) < raw.run.spec.world_size:
        return None
    return parts_of_run(ranks, [node_rank(raw, files) for files in ranks], warmup, throughput.statistic)


def _warmup(spec: RunSpec, raw: RawRun) -> Warmup:
    """Return the warm-up of the run: the planned minimum if the ranks have different numbers of steps."""
    steps = [rank.steps.step_time_s for rank in raw.ranks.values()]
    if len({len(times) for times in steps}) != 1:
        return Warmup(spec.warmup_steps, stable=False)
    return find_warmup(np.max(steps, axis=0), spec.warmup_steps, spec.min_steps)


def _figures(
    spec: RunSpec, raw: RawRun, warmup: Warmup, directory: RunDirectory
) -> tuple[Throughput | None, Timing | None]:
    """Return throughput and timing; None unless every rank is there with the same number of steps."""
    if raw.reads_log:
        return _printed_figures(spec, raw, directory)
    ranks = [raw.ranks[k] for k in sorted(raw.ranks)]
    counts = {len(rank.steps) for rank in ranks}
    if raw.ended is None or len(ranks) != spec.world_size or len(counts) != 1:
        return None, None
    if counts.pop() <= warmup.steps:
        return None, None
    exposed = [rank.end.ddp.exposed_comm_s for rank in ranks if rank.end.ddp]
    startups = [rank.end.startup_s.get("total") for rank in ranks]
    trained = [value for rank in ranks if (value := rank.end.training_s) is not None]
    return measure(
        [rank.steps for rank in ranks],
        warmup,
        [value for value in exposed if value is not None],
        max((value for value in startups if value is not None), default=None),
        max(0.0, raw.ended.wall_s - (raw.profiling.took_s if raw.profiling else 0.0)),
        max(trained) if len(trained) == len(ranks) else None,
        weakest(rank.end.source for rank in ranks),
    )


def _on_loop(raw: RawRun, throughput: Throughput | None, timing: Timing | None) -> tuple[Remark, ...]:
    """Return the remark on time in no step, if the steps were timed and it is needed."""
    if throughput is None or timing is None or throughput.source == "log":
        return ()
    ranks = [(files.steps, files.end.phases) for _, files in sorted(raw.ranks.items())]
    remark = remark_on_loop(throughput.samples_per_s, ranks, timing.warmup_steps)
    return () if remark is None else (remark,)


def _printed_figures(spec: RunSpec, raw: RawRun, directory: RunDirectory) -> tuple[Throughput | None, Timing | None]:
    assert spec.throughput_regex is not None
    rates = printed_rates(directory.log, spec.throughput_regex)
    if raw.ended is None or not rates:
        return None, None
    return log_figures(rates, spec.warmup_steps, spec.global_batch, raw.ended.wall_s)
