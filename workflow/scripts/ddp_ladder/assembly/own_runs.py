"""The record of a run that instrument.py has measured without the ladder: there are the files of its ranks alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_ladder.assembly.assemble import assemble, record_of
from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.platform.launchers.launcher import Rendezvous
from ddp_ladder.records.judging import is_of_other_rules, to_judge_anew
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.raw_models import RankEnd, RunEnd, RunFile
from ddp_ladder.records.record import Record
from ddp_ladder.settings.keys import Measure

CHECKED_BY_THE_JOB = ("placement",)  # against the files of its agents
UNKNOWN = (
    "lr", "samples_per_step", "throughput_regex", "directory", "data_dir", "python", "container", "max_steps",
    "max_seconds",
)  # fmt: skip
DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(UNKNOWN),
    "stage": "stage1", "variant": "default", "mode": "weak", "repeat": 1, "seed": 0, "script": "script",
    "modules": [], "setup": "", "env": {}, "env_template": {}, "launcher": "torchrun", "interface": "auto",
    "backend_wanted": "auto", "cpus_per_node": 1, "threads_per_rank": 1, "batch_per_gpu": 1, "global_batch": 1,
}  # fmt: skip
"""Of a spec, what is not seen in a run, and decides nothing in its figures."""


def record_in(path: Path) -> Record:
    """Return the record of a run's directory, of the ladder or of instrument.py alone. Raises UserError."""
    directory = RunDirectory(path)
    try:
        if directory.run.exists():
            return assemble(directory)
        first = read_json(directory.ranks / "rank0.json")
        return _own_record(directory, RankEnd.from_json(to_judge_anew(first) if is_of_other_rules(first) else first))
    except (OSError, ValueError) as error:
        advice = (
            "name the directory that the summary of instrument.py names, or one below results/runs with a run.json; "
            "measure a run of another version again"
        )
        raise UserError(Problem(str(path), f"it has no run: {error}", next=advice)) from error


def _own_record(directory: RunDirectory, first: RankEnd) -> Record:
    files = (directory.ranks / f"rank{k}.json" for k in range(first.world_size))
    ranks = Counter(str(read_json(file)["host"]) for file in files if file.exists())  # on each host, in their order
    run = RunFile(
        schema_version=first.schema_version,
        spec_hash=first.spec_hash,
        job=first.job,
        spec=_spec(ranks, first),
        rendezvous=Rendezvous("", first.host, 0),
        start_directory="",
        run_directory=str(directory.path),
        nodes=tuple(ranks),
        agents_per_node=1,
    )
    raw = read_raw_run(directory, run=run)
    last_s = max(end.ended_at_s for end in raw.ends)
    first = raw.ranks[0].end if 0 in raw.ranks else first
    began_s = first.ended_at_s - (first.training_s or 0.0) - (first.startup_s.get("total") or 0.0)
    times: dict[str, Any] = {"started_at_s": began_s, "ended_at_s": last_s}
    ended = RunEnd(**run.identity, host=first.host, outcome="finished", **times)
    problems = tuple(problem for problem in raw.problems if problem.startswith("ranks/"))
    return record_of(replace(raw, ended=ended, problems=problems), CHECKED_BY_THE_JOB)


def _spec(ranks: Counter[str], first: RankEnd) -> RunSpec:
    """Return the settings that the run shows, and defaults for those that matter before it. ranks: on each host."""
    world_size = first.world_size
    nodes = len(ranks) if set(ranks.values()) == {world_size / len(ranks)} else 1
    args = [*first.fingerprint.args]
    device = first.device.kind if is_gpu(first.device.kind) else "cpu"
    return RunSpec.from_json(
        {
            **DEFAULTS,
            "args": args,
            "args_template": args,
            "nodes": nodes,
            "gpus_per_node": world_size // nodes,
            "device": device,
            "backend": "nccl" if first.backend == "nccl" else "gloo",
            "warmup_steps": Measure().warmup_steps_on(device),
            "min_steps": Measure().min_steps,
        }
    )
