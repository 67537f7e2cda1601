"""Add the samples of its nodes to a run directory of make_runs, as if its job had monitored them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddp_ladder.common.files import RunDirectory, read_json, write_json
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from make_runs import STARTED_AT_S, STARTUP_S, edit, read_steps, reassemble, write_run, write_steps
from make_usage import make_monitor_file, samples_text


def write_sampled_run(results: Path, spec: RunSpec, *, seconds: float = 60.0, **samples: Any) -> RunDirectory:
    """Write a run whose 60 steps take ``seconds``, and samples of each node. samples: see ``sample_nodes``."""
    run = write_run(results, spec, samples_per_s=spec.global_batch * 60 / seconds)
    sample_nodes(run, **samples)
    return run


def sample_nodes(run: RunDirectory, gpu_count: int = 0, on: int | None = None, **values: Any) -> Record:
    """Write the samples of all nodes, calm but for ``values`` on node ``on`` (None: on all); return the record."""
    data = read_json(run.run)
    common = {key: data[key] for key in ("spec_hash", "job")}
    wall_s = read_json(run.ended)["ended_at_s"] - STARTED_AT_S
    edit(run.run, lambda each: each.update(monitor={"every_s": 2.0}))
    for rank in range(data["spec"]["nodes"] * data["spec"]["gpus_per_node"]):
        rows, end_s = [], STARTED_AT_S + STARTUP_S
        for k, row in enumerate(read_steps(run, rank)):
            end_s += float(row[3]) if k else 0.0
            rows.append([*row[:5], f"{end_s:.3f}"])
        write_steps(run, rank, rows)
    for node_rank, node in enumerate(data["nodes"]):
        about = make_monitor_file(node_rank, gpu_count, node, **common)
        write_json(run.monitor(node_rank), about.model_dump())
        changes = values if on in (None, node_rank) else {}
        run.samples(node_rank).write_text(samples_text(about, int(wall_s / about.every_s) + 1, **changes))
    return reassemble(run)
