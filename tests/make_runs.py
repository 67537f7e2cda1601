"""Write complete run directories and ladders for tests, as the jobs of a good climb do."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any

import numpy as np
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.common.files import Agent, RunDirectory, agents_of, sha256, write_json
from ddp_ladder.node.launch import LOOPBACK
from ddp_ladder.nodes.sampler import MonitorFile
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.records.packed import RawContent
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import Failure, Record, write_record
from ddp_ladder.records.steps import matrix_of
from ddp_ladder_instrument.contract import COLUMNS, HEADER
from ddp_ladder_instrument.machine import RULES
from make_records import CUDA_FINGERPRINT, FINGERPRINT, make_plan_of, make_specs, rank_facts

STEPS = 60
STARTUP_S = 4.2
STARTED_AT_S = 1_800_000_000.0
LOOP_AT_S = STARTED_AT_S + 0.1 + STARTUP_S  # the end of the first step that write_loop writes
SCALES = ("1x1", "1x2", "2x1")
RATES = {"1x1": 1024.0, "1x2": 1843.2, "2x1": 1740.8}  # samples/s: efficiency 1, 0.9, 0.85

TENSORS: Mapping[str, Any] = {
    "not_finite": {"count": 0, "names": []},
    "names": ["0.weight", "0.bias", "2.weight"],
    "digests": "aaaaaaaabbbbbbbbcccccccc",
}
SAMPLER: Mapping[str, Any] = {
    "sampler": "DistributedSampler",
    "shards": True,
    "shuffle": True,
    "set_epoch_called": True,
    "epochs_set": 2,
    "passes": 2,
    "whole_passes": 2,
}

Edit = Callable[[Any], Any]
Rows = list[list[str]]


def write_run(
    results: Path,
    spec: RunSpec,
    samples_per_s: float = 1024.0,
    *,
    steps: int = STEPS,
    wobble: float = 0.01,
    data_wait_fraction: float = 0.02,
    fingerprint: Mapping[str, Any] | None = None,
    agents_per_node: int = 1,
) -> RunDirectory:
    """Write all files of a run of ``spec``, record.json included.

    wobble: relative amplitude of the step times; 0 makes all of them equal.
    fingerprint: fields that replace the usual ones.
    """
    directory = RunDirectory(results / "runs" / spec.name)
    common = {
        "schema_version": 1,
        "spec_hash": spec.hash,
        "job": {"id": f"local-{spec.scale}", "attempt": 1, "run_id": sha256(spec.name.encode())},
    }
    step_s = spec.global_batch / samples_per_s
    wall_s = steps * step_s + 5
    write_json(
        directory.run, {**common, **_run_settings(spec), "schema_version": 2, "agents_per_node": agents_per_node}
    )
    for rank in range(spec.world_size):
        end = _rank_end(spec, rank, wall_s, fingerprint or {})
        write_json(directory.ranks / f"rank{rank}.json", {**common, **end, "schema_version": 2})
        phase = zlib.crc32(f"{spec.name} {rank}".encode()) % 1000 / 100
        times_s = [step_s * (1 + wobble * math.sin(k + phase)) for k in range(steps)]
        rows = [
            [str(k), str(spec.batch_per_gpu), "0", f"{t:.9f}", f"{data_wait_fraction * t:.9f}"]
            for k, t in enumerate(times_s, start=1)
        ]
        write_steps(directory, rank, rows)
    for agent in agents_of(spec.nodes, agents_per_node):
        write_json(directory.agent_end(agent), {**common, **_agent_end(spec, agent, wall_s)})
    write_json(
        directory.ended,
        {
            **common,
            "host": "node0",
            "started_at_s": STARTED_AT_S,
            "ended_at_s": STARTED_AT_S + wall_s,
            "outcome": "finished",
        },
    )
    directory.log.write_text("epoch 1: accuracy 0.97\n")
    reassemble(directory)
    return directory


def _run_settings(spec: RunSpec) -> dict[str, Any]:
    return {
        "spec": spec.model_dump(),
        "nodes": [f"node{k}" for k in range(spec.nodes)],
        "rendezvous": {"id": f"local.{spec.scale}", "host": LOOPBACK, "port": 20_001},
        "start_directory": "/project",
        "run_directory": f"/project/results/runs/{spec.name}",
    }


def _rank_end(spec: RunSpec, rank: int, wall_s: float, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    usual = CUDA_FINGERPRINT if spec.device == "cuda" else FINGERPRINT
    startup_s = {"spawn": 0.4, "import_torch": 2.1, "process_group": 0.1, "total": STARTUP_S}
    return {
        **rank_facts(spec, rank, [f"node{k}" for k in range(spec.nodes)], startup_s),
        "world_size": spec.world_size,
        "backend": spec.backend,
        "ended_at_s": wall_s + STARTED_AT_S - 0.2,
        "exception": None,
        "training_s": wall_s - 0.4 - STARTUP_S,
        "parameters": {"count": 151_306, "checksum": f"sha256:{'a' * 64}", **TENSORS},
        "first_samples": [f"{rank:08x}{k:08x}" for k in range(8)],
        "ddp": {"bucket_bytes": [605_224], "samples": 7, "exposed_comm_s": 0.001},
        "loader": {"num_workers": 0, **SAMPLER},
        "fingerprint": {
            **usual,
            "args": list(spec.args),
            "batch_per_gpu": spec.batch_per_gpu,
            **fingerprint,
        },
        "steps": {"count": 0, "sha256": ""},
        "rules": RULES,
        "not_measured": [],
    }


def _agent_end(spec: RunSpec, agent: Agent, wall_s: float) -> dict[str, Any]:
    return {
        "node_rank": agent.node_rank,
        "local_rank": agent.local_rank,
        "node": f"node{agent.node_rank}",
        "host": f"node{agent.node_rank}",
        "launched_at_s": STARTED_AT_S + 0.1,
        "ended_at_s": STARTED_AT_S + wall_s - 0.1,
        "exit_code": 0,
        "signal": None,
        "argv": ["python3", spec.script, *spec.args],
        "cpus": list(range(spec.cpus_per_node)),
    }


def reassemble(directory: RunDirectory) -> Record:
    """Write record.json again from the raw files, as the job does."""
    record = assemble(directory)
    write_record(directory.record, record)
    return record


def edit(path: Path, change: Edit) -> None:
    """Change a JSON file in place."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def edit_rank(directory: RunDirectory, rank: int, **values: Any) -> None:
    """Change fields of a rank's end record."""
    edit(directory.ranks / f"rank{rank}.json", lambda end: end.update(values))


def edit_part(directory: RunDirectory, rank: int, part: str, **values: Any) -> None:
    """Change fields of a part of a rank's end record."""
    edit(directory.ranks / f"rank{rank}.json", lambda end: end[part].update(values))


def edit_agent(directory: RunDirectory, node: int, **values: Any) -> None:
    """Change fields of the end record of a node's only agent."""
    edit(directory.agent_end(Agent(node)), lambda end: end.update(values))


def failure_of(directory: RunDirectory) -> Failure:
    """Assemble the record of a run again; return its failure."""
    found = reassemble(directory).failure
    assert found is not None
    return found


def rank_end(directory: RunDirectory, rank: int) -> RankEnd:
    """Return a rank's end record, packed or not."""
    return next(end for end in read_raw_run(directory).ends if end.rank == rank)


def monitor_file(directory: RunDirectory, agent: Agent) -> MonitorFile:
    """Return what an agent's samples of its node are of."""
    return MonitorFile.from_json(json.loads(RawContent(directory).read(directory.monitor(agent.node_rank), agent)))


def read_steps(directory: RunDirectory, rank: int) -> Rows:
    """Return the rows of a rank's file, without ends, DDP's times and collectives if they are not known."""
    matrix = matrix_of((directory.ranks / f"rank{rank}.steps").read_bytes())
    counts, known = matrix[:3].T, ~np.isnan(matrix).all(axis=1)
    known[HEADER.index("collectives_s")] = matrix[-1].any()
    last = np.flatnonzero(known).max(initial=2) + 1
    figures = [[f"{each:.0f}" for each in row] for row in counts]
    return [row + [repr(float(each)) for each in times] for row, times in zip(figures, matrix[3:last].T, strict=True)]


def write_steps(directory: RunDirectory, rank: int, rows: Rows) -> None:
    """Write a rank's steps; ends, DDP's times and collectives may be missing in the rows, and known figures empty."""
    unknown = ["", "", "", "", "", "0"]
    full = [[float(each or "nan") for each in row + unknown[len(row) - len(COLUMNS) :]] for row in rows]
    write_content(directory, rank, np.array(full, dtype="<f8").T.tobytes(), len(rows))


def edit_batches(directory: RunDirectory, rank: int, *sizes: int, steps: int | None = None) -> None:
    """Let the steps of a rank have batches of these sizes in turn. steps: keep so many."""
    rows = read_steps(directory, rank)[:steps]
    for number, row in enumerate(rows):
        row[COLUMNS.index("samples")] = str(sizes[number % len(sizes)])
    write_steps(directory, rank, rows)
    edit_part(directory, rank, "fingerprint", batch_per_gpu=median_high(sizes))


def add_ddp_times(
    directory: RunDirectory,
    rank: int,
    compute_s: float,
    exposed_s: float,
    overlap_s: float = 0.0,
    collectives_s: float = 0.0,
) -> None:
    """Add DDP's times to each of a rank's steps; exposed_s: what it waits for gradients; collectives_s: of others."""
    times_s = (compute_s / 3, 2 * compute_s / 3, exposed_s + overlap_s, overlap_s)
    ended = [f"{STARTED_AT_S:.3f}"]
    rows = [[*row[:5], *(row[5:6] or ended), *(f"{s:.9f}" for s in times_s), f"{collectives_s:.9f}"]
            for row in read_steps(directory, rank)]  # fmt: skip
    write_steps(directory, rank, rows)


SAVED = 7 * 10**8  # bytes of a save


def write_loop(
    directory: RunDirectory,
    rank: int,
    *,
    steps_s: Sequence[float],
    pauses: Mapping[int, tuple[str, float]] | None = None,
    data_wait_s: float = 0.0,
    offset_s: float = 0.0,
    end_s: float = 0.3,
    **end: Any,
) -> float:
    """Write a rank's steps with their ends, and its end record; return when the rank ends, by the job's clock.

    pauses: before which step, counted from 1, in no step, which kind (validation, save, rest, eval mode, epoch,
    nothing) and how long. offset_s: of the clock of the rank's host. end_s: from the last step to the rank's end.
    end: other fields.
    """
    phases: dict[str, Any] = {
        name: [] for name in ("epoch_steps", "validations_s", "without_a_pass_s", "saves_s", "rests_s")
    }
    rows, now_s = [], LOOP_AT_S - steps_s[0] + offset_s
    begun_s = now_s + steps_s[0]
    (_, samples, *_), *_ = read_steps(directory, rank)
    for k, step_s in enumerate(steps_s, start=1):
        kind, pause_s = (pauses or {}).get(k, ("nothing", 0.0))
        span = (now_s, now_s + pause_s)
        if kind == "epoch":
            phases["epoch_steps"].append(k)
        for name in {"validation": ["validations_s"], "save": ["saves_s"], "rest": ["rests_s"]}.get(kind, []):
            phases[name].append(span)
        if kind == "eval mode":
            phases["validations_s"].append(span)
            phases["without_a_pass_s"].append(span)
        now_s += pause_s + step_s
        rows.append([str(k), samples, "0", f"{step_s:.9f}", f"{data_wait_s:.9f}", f"{now_s:.3f}"])
    write_steps(directory, rank, rows)
    saved_s = [end_s - begin_s for begin_s, end_s in phases["saves_s"]]
    phases["saves"] = {"count": len(saved_s), "seconds": sum(saved_s), "aside_s": 0.0, "bytes": len(saved_s) * SAVED}
    ended_s = now_s + end_s
    known = {"ended_at_s": ended_s, "training_s": ended_s - begun_s, "phases": phases}
    edit_rank(directory, rank, **{**known, **end})
    return ended_s - offset_s


def edit_phases(directory: RunDirectory, rank: int, **spans_s: Sequence[tuple[float, float]]) -> None:
    """Replace the validations_s and saves_s of a rank; spans_s: seconds after the end of its first step."""
    known = {name: [[LOOP_AT_S + edge_s for edge_s in span] for span in spans] for name, spans in spans_s.items()}
    edit_rank(directory, rank, phases={"epoch_steps": [], "validations_s": [], **known})


def end_run(directory: RunDirectory, ended_s: float, after_s: float = 0.5) -> None:
    """Let the job see the run end ``after_s`` after its ranks."""
    edit(directory.ended, lambda end: end.update(ended_at_s=ended_s + after_s))


def write_content(directory: RunDirectory, rank: int, content: bytes, count: int = STEPS) -> None:
    """Write any content as a rank's steps, with their number and the matching digest in its end record."""
    (directory.ranks / f"rank{rank}.steps").write_bytes(content)
    edit(
        directory.ranks / f"rank{rank}.json",
        lambda end: end["steps"].update(count=count, sha256=sha256(content)),
    )


def write_ladder(
    results: Path,
    *,
    scales: Sequence[str] = SCALES,
    repeats: int = 2,
    variants: Sequence[str] = ("default",),
    modes: Sequence[str] = ("weak",),
    rates: Mapping[str, float] = RATES,
    min_efficiency: float | None = 0.8,
    wobble: float = 0.01,
    **changes: Any,
) -> Plan:
    """Write plan.json and every run of a complete ladder.

    rates: samples/s by scale. changes: fields of RunSpec, the same in every run.
    """
    specs = make_specs(scales, repeats=repeats, variants=variants, modes=modes, **changes)
    plan = make_plan_of(specs, min_efficiency=min_efficiency)
    write_json(results / "plan.json", plan.to_json())
    for spec in specs:
        write_run(results, spec, rates[str(spec.scale)], wobble=wobble)
    return plan
