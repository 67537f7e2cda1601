"""A run that the ladder did not start: where its files go, and the summary that its rank 0 prints at its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument import host, slow_settings
from ddp_ladder_instrument.contract import (
    DIRECTORY_VARIABLE,
    LEAST_UNCLEAR,
    NO_SPEC,
    WARMUP_STEPS,
    WITNESS_STEPS,
    WITNESS_VARIABLE,
)
from ddp_ladder_instrument.files import RunSettings, one_line
from ddp_ladder_instrument.table import StepTable
from ddp_ladder_instrument.testimony import in_words

if TYPE_CHECKING:
    from ddp_ladder_instrument.torch_facts import GroupStore

LONGEST_WAIT_S = 30.0  # for rank 0, which leaves init_process_group at the same time


def own_run_settings(environment: Mapping[str, str] = os.environ) -> RunSettings:
    """Return the default settings, with a directory that all ranks of this run share, and no other run."""
    job = environment.get("SLURM_JOB_ID") or "local"
    # Job steps of one job, and launchers on one node, may run at the same time.
    parts = (job, environment.get("SLURM_STEP_ID"), environment.get("MASTER_PORT"))
    usual = "-".join(["ddp-ladder", *filter(None, parts)])
    base = Path.cwd() / (environment.get(DIRECTORY_VARIABLE) or usual)
    place = host.place(environment)
    try:
        directory = _claimed(base, place.rank, place.size)
    except OSError:  # writing the record fails too, and that error is reported
        directory = base
    is_witness = environment.get(WITNESS_VARIABLE, "0") not in ("", "0")
    return RunSettings(
        directory=directory,
        spec_hash=NO_SPEC,
        job={"id": job, "attempt": 1, "run_id": directory.name},
        warmup_steps=WARMUP_STEPS,  # at most half of a short run
        max_steps=WITNESS_STEPS if is_witness else None,
        is_own=True,
        is_witness=is_witness,
    )


def agreed(run: RunSettings, store: GroupStore) -> RunSettings:
    """Return the settings with rank 0's directory: an earlier run may have left another one free to this rank.

    Raises OSError, or RuntimeError if rank 0 names none, as if it is not measured.
    """
    if store.rank == 0:
        store.set("directory", str(run.directory))
        return run
    directory = Path(store.get("directory", LONGEST_WAIT_S))
    if directory != run.directory:
        claim = Path("ranks", f"rank{store.rank}of{store.size}.claim")
        (directory / claim).touch()
        (run.directory / claim).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another rank or run has files there
            (run.directory / "ranks").rmdir()
            run.directory.rmdir()
    return replace(run, directory=directory, job={**run.job, "run_id": directory.name})


def _claimed(base: Path, rank: int, world_size: int) -> Path:
    """Return the first of ``base``, ``base-2``, ... in which no other run has begun, as far as this rank can see.

    Raises OSError.
    """
    claim = f"of{world_size}.claim"
    for number in itertools.count(1):
        ranks = (base if number == 1 else base.with_name(f"{base.name}-{number}")) / "ranks"
        ranks.mkdir(parents=True, exist_ok=True)
        if all(path.name.endswith(claim) for path in ranks.glob("*.claim")):
            try:
                os.close(os.open(ranks / f"rank{rank}{claim}", os.O_CREAT | os.O_EXCL))
                return ranks.parent
            except FileExistsError:
                continue
    raise AssertionError("itertools.count ends")


def print_summary(
    record: Mapping[str, Any], table: StepTable, run: RunSettings, testimony: Mapping[str, Any] | None = None
) -> None:
    """Print rank 0's summary to standard error; an error in it is printed in its place.

    testimony: of a run that follows its batches, which is too slow for figures on time.
    """
    try:
        lines = _summary(record, table, run) if testimony is None else _seen(record, testimony, run)
        text = "\n    ".join(f"{name:<14} {value}" if value else name for name, value in lines)
    except Exception as error:  # the training has ended well, and its record is written
        text = f"instrument.py: no summary: {one_line(error)}"
    print(text, file=sys.stderr, flush=True)


def _summary(record: Mapping[str, Any], table: StepTable, run: RunSettings) -> Iterator[tuple[str, str]]:
    world_size, device = record["world_size"], record["device"]
    first = table.row_after(min(run.warmup_steps, table.count // 2))
    warm = sum(table.sizes()[:first])
    times_s, samples, count = table.step_time_s[first:], sum(table.samples[first:]), table.count - warm
    yield f"ddp-ladder: rank 0 of {world_size} on {device['name']} ended with exit code {record['exit_code']}", ""
    if world_size > 1 and record["backend"] is None:
        what = "that do not talk to each other: rank 0 made no process group (torch.distributed.init_process_group)"
        yield "processes", f"{world_size} {what}"
    tasks, launchers = (int(os.environ.get(name) or 0) for name in ("SLURM_STEP_NUM_TASKS", "GROUP_WORLD_SIZE"))
    if 0 < launchers < tasks:
        what = f"of {launchers} torchrun, in a job step of {tasks} tasks: if each of these starts one, the other ranks"
        alone = "start one on each node: srun --ntasks-per-node=1"
        yield "processes", f"{world_size} {what} train apart, on the same GPUs if on the same node; {alone}"
    if record["exception"]:
        yield "exception", record["exception"]
    if times_s:
        rows = table.sizes()[first:]  # as if all steps of a block were equal
        each_s = sorted((seconds / steps, steps) for seconds, steps in zip(times_s, rows))
        total_s, median_s = sum(times_s), _reached_by(0.5, each_s)
        rate = samples / total_s
        # Rank 0 does not wait for what the others have counted: they may be gone.
        if_alike = " if all ranks are alike" if world_size > 1 else ""
        of_ranks = f"{if_alike}: {_figure(rate)} of rank 0 x {world_size} ranks" if if_alike else ""
        source = "" if record["source"] == "counted" else f" (samples: {record['source']})"
        if samples:
            yield "throughput", f"{_figure(rate * world_size)} samples/s{of_ranks}{source}"
        else:
            steps = f"{_figure(count / total_s)} steps/s, of unknown samples: no batch came from a DataLoader"
            yield "throughput", f"{steps}; in the ladder, workload.samples_per_step sets them"
        if record["source"] == "guessed":
            sizes = " or ".join(map(str, record["loader"]["unclear_sizes"]))
            yield "samples", f"a guess: a batch may have {sizes}; in the ladder, workload.samples_per_step sets them"
        batches = record["batches"]
        if samples and batches and (batches["unclear"] or 0) > LEAST_UNCLEAR * batches["drawn"]:
            what = "batches are joined or left out, and the loop does not show which train; DDP_LADDER_WITNESS=1 does"
            yield "doubtful", f"the samples: {what}"
        tokens = record["loader"] and record["loader"].get("tokens_per_sample")
        if tokens and record["source"] == "counted":
            each = f", as input_ids has {tokens} of each sample"
            yield "tokens", f"{_figure(rate * world_size * tokens)} tokens/s{if_alike}{each}"
        most_s = _reached_by(0.95, each_s)
        steps = f"{count} steps after {warm} of warm-up"
        yield "step", f"median {_figure(1e3 * median_s)} ms, 95 % below {_figure(1e3 * most_s)} ms; {steps}"
        yield "data wait", f"{100 * sum(table.data_wait_s[first:]) / total_s:.1f} % of the step time"
        ddp = record["ddp"]
        if ddp and ddp["exposed_comm_s"] is not None:
            exposed_s, gradients = ddp["exposed_comm_s"], sum(ddp["bucket_bytes"])
            yield (
                "communication",
                f"{_figure(1e3 * exposed_s)} ms of a step not hidden behind the backward pass "
                f"({100 * exposed_s / median_s:.1f} %), in {ddp['samples']} timed steps; "
                f"gradients {_figure(gradients / 1e6)} MB in {len(ddp['bucket_bytes'])} buckets ({record['backend']}); "
                "waits for slower ranks are in it",
            )
    slow = slow_settings.in_words(record["fingerprint"]["slow_settings"], device["kind"] != "cpu")
    if slow:
        yield "slowed by", slow
    if world_size > 1 and record["loader"] and record["loader"]["shards"] is False:
        yield "data", "the sampler does not divide the samples between the ranks"
    memory = [f"{_figure(size / 1e9)} GB on the {where}" for where, size in record["peak_memory_bytes"].items() if size]
    yield "peak memory", ", ".join(memory)
    if record["startup_s"]["total"] is not None:
        yield "start-up", f"{_figure(record['startup_s']['total'])} s to the end of the first step"
    for quantity in record["not_measured"] or ([] if times_s else ["steps: no optimizer of torch made a step"]):
        yield "not measured", quantity
    yield "files", str(run.directory)


def _seen(record: Mapping[str, Any], testimony: Mapping[str, Any], run: RunSettings) -> Iterator[tuple[str, str]]:
    rank, steps = f"rank 0 of {record['world_size']}", testimony["steps"]
    yield f"ddp-ladder: {rank} was followed through {steps} steps, and ended with exit code {record['exit_code']}", ""
    if record["exception"]:
        yield "exception", record["exception"]
    for place in testimony["places"]:
        yield "trains" if place["trained"] else "does not train", in_words(place)
    if testimony["steps_in_a_row"] > 1:
        yield "counts once", f"a batch of {testimony['steps_in_a_row']:.3g} steps in a row, on average"
    for text, count in {**testimony["doubts"], **testimony["not_followed"]}.items():
        yield "not followed" if text in testimony["not_followed"] else "doubtful", f"{text} ({count})"
    flops = testimony["flops"]
    if flops.get("why"):
        yield "FLOPs", f"not counted: {flops['why']}"
    else:
        yield "FLOPs", f"{_figure((flops['forward'] + flops['backward']) / 1e9)} GFLOP per sample"
    for quantity in record["not_measured"]:
        yield "not measured", quantity
    yield "files", str(run.directory)


def _reached_by(share: float, rows: Sequence[tuple[float, int]]) -> float:
    """Return the time of a step that this share of the steps does not exceed. rows: such times, with their steps."""
    left = int(share * (sum(steps for _, steps in rows) - 1))
    reached = itertools.accumulate(steps for _, steps in rows)
    return next(step_s for (step_s, _), end in zip(rows, reached) if end > left)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
