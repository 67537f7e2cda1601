"""Assemble a run's record from its raw files: the same files always give the same record.

A job lets a process of its own do it, so that the next run need not wait.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from ddp_ladder_instrument.redaction import redacted

from ddp_ladder.common.files import SCRIPTS, RunDirectory
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import one_of, shortened
from ddp_ladder.common.model import Model
from ddp_ladder.common.process import die_with_parent
from ddp_ladder.diagnosis.checks import diagnoses
from ddp_ladder.diagnosis.correctness import Diagnosis, most_shared, remarks_on_run
from ddp_ladder.diagnosis.failures import after_training, explain
from ddp_ladder.measuring.fingerprint import samples_of_a_step, unread, varying_batches
from ddp_ladder.measuring.node_usage import usage_of
from ddp_ladder.measuring.owners import in_equal_rows, owners_of, remark_on_owners, to_shortest, without_waits
from ddp_ladder.measuring.statistic import Warmup, find_warmup, median
from ddp_ladder.measuring.timing import (
    data_wait_fraction,
    exposed_comm_fraction,
    log_figures,
    measure,
    parts_of_run,
    printed_rates,
    remark_on_loop,
)
from ddp_ladder.nodes.critical_rank import StepParts
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_files import RankFiles, RawRun, read_raw_run
from ddp_ladder.records.raw_models import Flops, Parameters, RankSummary
from ddp_ladder.records.record import (
    SCHEMA_VERSION,
    Failure,
    FailureKind,
    Fingerprint,
    Head,
    Rank,
    Record,
    Saves,
    Throughput,
    Timing,
    World,
    read_record,
    weakest,
)

Part = TypeVar("Part", bound=Model)
SENDS_ITSELF = "ZeroRedundancyOptimizer"  # it sends the new parameters, which DDP does not time


def assemble(directory: RunDirectory) -> Record:
    """Read the run directory and build its record. Raises OSError or ValueError if run.json is missing or damaged."""
    return record_of(read_raw_run(directory))


def record_of(raw: RawRun) -> Record:
    """Build the record of a run from its raw files."""
    whole, on_waits = without_waits(in_equal_rows(raw))
    raw, on_uneven = to_shortest(whole)
    warmup = _warmup(raw)
    ranks = _alike(raw, warmup)
    throughput, timing = _figures(raw, ranks, warmup)
    judged = tuple(diagnoses(raw, throughput))
    failure = None if all(check.finding.ok for check in judged) else explain(raw, judged)
    step = None
    if ranks and throughput is not None:
        step = parts_of_run(ranks, [raw.node_rank(rank.end) for rank in ranks], warmup, throughput.statistic)
    if ranks and timing is not None and not raw.reads_log:
        timing = timing.replace(exposed_comm_fraction=_exposed_comm_fraction(raw, timing, step))
    usage = usage_of(raw, warmup, timing, step)
    owners_s = owners_of(whole, step)
    remarks = (*on_waits, *on_uneven, *_remarks(raw, judged, throughput, warmup, owners_s))
    return Record(
        status="failed" if failure else "ok",
        spec=raw.spec,
        spec_hash=raw.run.spec_hash,
        job=raw.run.job,
        world=_world(raw),
        ranks=tuple(_rank(warmup, files) for files in raw.ranks.values()),
        throughput=throughput,
        timing=timing,
        fingerprint=_fingerprint(raw),
        checks=tuple(_without_secrets(check.finding) for check in judged),
        failure=failure and _without_secrets(failure),
        remarks=tuple(map(_without_secrets, remarks)),
        step=step,
        files=raw.digests,
        flops=_flops(raw),
        usage=usage and _without_secrets(usage),
        rules=min((end.rules for end in raw.ends), default=0),
        saves=_saves(raw),
        owners_s=owners_s,
        witness=raw.run.witness,
        schema_version=SCHEMA_VERSION,
    )


def _flops(raw: RawRun) -> Flops | None:
    """Return the FLOPs that the witness run counted; of a run of an earlier version, those that it counted itself."""
    if not raw.spec.count_flops:
        return None
    if 0 in raw.ranks and (counted := raw.ranks[0].end.flops):
        return counted
    witness = raw.run.witness
    if witness is None:
        return Flops.from_json({"why": "there was no witness run"})
    return witness.flops or Flops.from_json({"why": f"they are counted in a witness run: {witness.why}"})


def _saves(raw: RawRun) -> Saves | None:
    known = {end.rank: end.phases.saves for end in raw.ends if end.phases and end.phases.saves}
    if not raw.has_all_ranks or len(known) < len(raw.ends):
        return None
    longest = max(known, key=lambda rank: (known[rank].seconds, known[rank].count))
    sizes = [saves.bytes for saves in known.values() if saves.bytes is not None]
    return Saves(**{**dict(known[longest]), "bytes": sum(sizes) if len(sizes) == len(known) else None}, rank=longest)


def not_run(spec: RunSpec, kind: FailureKind, why: str, next_step: str, verdict: str = "not run") -> Record:
    """Return the record of a run that was left out on purpose, or lost its files: each planned run has a record."""
    return Record(
        status="failed",
        spec=spec,
        spec_hash=spec.hash,
        job=None,
        world=World(size=None, backend=None, nodes=(), hosts=()),
        ranks=(),
        throughput=None,
        timing=None,
        fingerprint=Fingerprint(),
        checks=(),
        failure=_without_secrets(Failure(kind=kind, verdict=verdict, why=why, next=next_step)),
        remarks=(),
        schema_version=SCHEMA_VERSION,
    )


def _without_secrets(part: Part) -> Part:
    """Return a part of the record whose texts may quote a script, a library or Slurm, without passwords and tokens.

    Texts do not grow with the ranks; what they quote may still be too long.
    """
    return part.from_json(_redacted(part.model_dump(mode="json")))


def _redacted(data: Any) -> Any:
    if isinstance(data, str):
        return shortened(redacted(data))
    if isinstance(data, list):
        return [_redacted(item) for item in data]
    return {key: _redacted(value) for key, value in data.items()} if isinstance(data, dict) else data


def _world(raw: RawRun) -> World:
    return World(
        size=one_of(end.world_size for end in raw.ends),
        backend=one_of(end.backend for end in raw.ends),
        nodes=raw.run.nodes,
        hosts=tuple(dict.fromkeys(end.host for end in raw.ends)),
        head=Head(
            node=raw.run.nodes[0],
            address=raw.run.rendezvous.host,
            interface=next((end.interface for end in raw.agents.values() if end.node_rank == 0), None),
        ),
    )


def _rank(warmup: Warmup, files: RankFiles) -> Rank:
    end, steps = files.end, files.steps
    measured = steps.after(warmup.steps)
    return Rank(
        **{key: getattr(end, key) for key in RankSummary.model_fields},
        steps=steps.count,
        samples=int(steps.samples.sum()),
        padding_samples=int(steps.padding_samples.sum()),
        step_time_s=median(measured.mean_step_s) if measured.count else None,
        data_wait_fraction=data_wait_fraction(measured.data_wait_s, measured.step_time_s),
        parameters=end.parameters
        and Parameters(**{key: getattr(end.parameters, key) for key in Parameters.model_fields}),
        ddp=end.ddp,
    )


def _fingerprint(raw: RawRun) -> Fingerprint:
    if 0 not in raw.ranks:
        return Fingerprint()
    first, repository, unknown = raw.ends[0], raw.run.repository, unread(raw.ends)
    ddp = first.ddp
    buckets = tuple(ddp.bucket_bytes) if ddp and ddp.bucket_bytes else None
    # Of driver and power limits those of the GPUs that were used, by their names: a node may have others too.
    names = {end.device.name for end in raw.ends if is_gpu(end.device.kind)}
    gpus = [gpu for agent in raw.agents.values() for gpu in agent.gpus if gpu.name in names]
    of_first = {
        **dict(first.fingerprint),
        **dict.fromkeys(unknown),
        "unread": tuple(unknown),
    }
    return Fingerprint(
        **of_first,
        batch_varies=varying_batches(raw.ranks[0]),
        git_commit=repository.commit if repository else None,
        git_dirty=repository.dirty if repository else None,
        passes=first.loader.passes if first.loader else None,
        dataset_size=_dataset_size(raw),
        tokens_per_sample=_tokens_per_sample(raw),
        goes_on=raw.run.goes_on,
        global_batch=samples_of_a_step(raw),
        gradient_bytes=sum(buckets) if buckets else None,
        bucket_bytes=buckets,
        comm_hook=ddp.comm_hook if ddp else None,
        exchanges=ddp.exchanges if ddp else None,
        cpu_sets=tuple(sorted({known for end in raw.ends if (known := end.fingerprint.cpu_set)})),
        driver=" + ".join(sorted({gpu.driver for gpu in gpus})) or None,
        power_limit_w=tuple(sorted({gpu.power_limit_w for gpu in gpus if gpu.power_limit_w is not None})) or None,
    )


def _dataset_size(raw: RawRun) -> int | None:
    """Return the samples of the whole training data; None if it is not known which part of them a rank has."""
    ends = raw.ends
    loaders = [end.loader for end in ends if end.loader]
    sizes = [loader.dataset_size for loader in loaders if loader.dataset_size]
    if not raw.has_all_ranks or len(sizes) < len(ends):
        return None
    if len(ends) == 1 or all(loader.shards for loader in loaders):
        return one_of(sizes)
    # In their own order, parts begin with different samples. Shuffled, the same whole data does so, too.
    shared = most_shared(ends)
    in_order = all(loader.shuffle is False for loader in loaders)
    return sum(sizes) if in_order and shared.known > 1 and not shared.fraction else None


def _tokens_per_sample(raw: RawRun) -> int | None:
    """Return the tokens of every sample; None unless the loaders of all ranks counted samples of one length."""
    counted = (end.loader.tokens_per_sample if end.loader and end.source == "counted" else None for end in raw.ends)
    return one_of(counted) if raw.has_all_ranks else None


def _warmup(raw: RawRun) -> Warmup:
    """Return the warm-up of the run: the planned minimum if the ranks have different numbers of steps."""
    spec, steps = raw.spec, [rank.steps for rank in raw.ranks.values()]
    if len({each.count for each in steps}) != 1:
        return Warmup(spec.warmup_steps, stable=False)
    size = steps[0].block
    least, keep = (math.ceil(number / size) for number in (spec.warmup_steps, spec.min_steps))
    found = find_warmup(np.max([each.in_blocks(size).mean_step_s for each in steps], axis=0), least, keep)
    return replace(found, steps=spec.warmup_steps if found.steps == least else size * found.steps)


def _alike(raw: RawRun, warmup: Warmup) -> list[RankFiles]:
    """Return all ranks if they have the same number of steps, more than the warm-up's; else none."""
    counts = {rank.steps.count for rank in raw.ranks.values()}
    return [*raw.ranks.values()] if raw.has_all_ranks and len(counts) == 1 and min(counts) > warmup.steps else []


def _figures(raw: RawRun, ranks: Sequence[RankFiles], warmup: Warmup) -> tuple[Throughput | None, Timing | None]:
    spec, ended = raw.spec, raw.ended
    if ended is None:
        return None, None
    if raw.reads_log:
        rates = printed_rates(raw.directory.log, spec.throughput_regex or "")
        return log_figures(rates, spec.warmup_steps, spec.global_batch, ended.wall_s) if rates else (None, None)
    if not ranks:
        return None, None
    ends, steps = [rank.end for rank in ranks], [rank.steps for rank in ranks]
    exposed_s = [end.ddp.exposed_comm_s for end in ends if end.ddp and end.ddp.exposed_comm_s is not None]
    startup_s = max((total for end in ends if (total := end.startup_s.get("total")) is not None), default=None)
    trained_s = [value for end in ends if (value := end.training_s) is not None]
    training_s = max(trained_s) if len(trained_s) == len(ranks) else None
    wall_s = max(0.0, ended.wall_s - (raw.profiling.took_s if raw.profiling else 0.0))
    return measure(steps, warmup, exposed_s, startup_s, wall_s, training_s, weakest(end.source for end in ends))


def _exposed_comm_fraction(raw: RawRun, timing: Timing, step: StepParts | None) -> float | None:
    """Return the part of a step that is communication which nobody hides.

    A rank that waits for a slower one counts as communicating, in DDP's times and in a trace. The rank with the longest
    own work waits for none, so its figure is taken where the ranks' steps were timed together.
    """
    fraction = timing.exposed_comm_fraction
    if step and step.exposed_comm_s is not None and step.step_s:
        fraction = step.exposed_comm_s / step.step_s
    outside_ddp = fraction is None or SENDS_ITSELF in (raw.ranks[0].end.fingerprint.optimizer or "")
    if outside_ddp and raw.spec.world_size > 1 and raw.profiling and not raw.profiling.problem:
        # A damaged trace costs this figure alone.
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError, zlib.error):
            return exposed_comm_fraction(raw.directory.trace(0))
    return fraction


def _remarks(
    raw: RawRun,
    judged: Sequence[Diagnosis],
    throughput: Throughput | None,
    warmup: Warmup,
    owners_s: Mapping[str, float],
) -> Iterator[Finding]:
    yield from remarks_on_run(raw)
    if throughput is not None and throughput.source != "log":
        steps = [(rank.steps, rank.end.phases) for rank in raw.ranks.values()]
        is_witnessed = raw.run.witness is not None and raw.run.witness.status == "witnessed"
        of_loop = [*remark_on_loop(throughput.samples_per_s, steps, warmup.steps, is_witnessed)]
        yield from of_loop or remark_on_owners(owners_s)  # both are about time in no step: the first says more
    if raw.agents and all(check.finding.ok for check in judged):
        yield from after_training(raw, judged)


ASSEMBLE = SCRIPTS / "assemble.py"
LEAST_PRIORITY = 19  # of nice: ranks of the next run train on the same node


class Assembler:
    """The process that assembles the records of a job, one after the other: it imports what it needs once.

    It starts with the first run that has ended, and again if it has died. It waits without work, and ends with the job.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1)  # asks the process, and waits for its answers

    def begin(self, directory: RunDirectory, spec: RunSpec, wall_s: float) -> Assembly:
        """Begin to assemble the record of a run."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, str(ASSEMBLE), "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the job alone
                preexec_fn=_in_the_background,
            )
        return Assembly(self._thread.submit(_is_assembled, self._process, directory), directory, spec, wall_s)

    def close(self) -> None:
        """End the process; what it has not assembled, the job assembles if it needs it."""
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown()
        if self._process is not None:
            self._process.communicate()


def _is_assembled(process: subprocess.Popen[bytes], directory: RunDirectory) -> bool:
    """Let the process assemble a record, and return whether it could; False if it has died."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(str(directory.path)).encode() + b"\n")
    answer = process.stdout.read(1)
    if not answer:
        process.wait()  # so that the next record is asked of another one
    return answer == b"1"


class Assembly:
    """A record that is being assembled."""

    def __init__(self, is_assembled: Future[bool], directory: RunDirectory, spec: RunSpec, wall_s: float) -> None:
        self.spec, self.wall_s = spec, wall_s  # what the run took
        self._is_assembled, self._directory, self._began_s = is_assembled, directory, time.monotonic()

    @property
    def is_done(self) -> bool:
        # What failed is assembled by the job, between two runs.
        return self._is_assembled.done() and self._is_assembled.result()

    @cached_property
    def record(self) -> Record:
        """Return the record, as soon as it is there."""
        try:
            if self._is_assembled.result():
                with contextlib.suppress(OSError, ValueError):
                    return read_record(self._directory.assembled)
            return assemble(self._directory)  # here, to see why it failed there
        except OSError as error:
            gone = f"{error.filename} is gone: the script, or someone else, deleted it during the run"
            if not isinstance(error, FileNotFoundError):
                gone = f"{error.filename} cannot be read: {error.strerror}"
            advice = f"let nothing delete what is below {self._directory.path}, and start snakemake again"
            return not_run(self.spec, "files deleted", gone, advice, "the run directory was deleted")

    @cached_property
    def took_s(self) -> float:
        """Return the seconds from the end of the run to its record."""
        assert self.record
        return time.monotonic() - self._began_s


def _in_the_background() -> None:
    die_with_parent(signal.SIGTERM)
    with contextlib.suppress(OSError):
        os.nice(LEAST_PRIORITY)
