"""climb.sh: the whole climb as one batch job, in which every scale is a job step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_ladder.common.paths import OWN, profile
from ddp_ladder.job_script.sbatch_header import sbatch_options
from ddp_ladder.job_script.shell_text import render
from ddp_ladder.plan.plan import Plan
from ddp_ladder.settings.secrets import marked_overrides
from ddp_ladder.settings.sources import CLUSTER, CONFIG, Sources

STARTING_MIN = 5  # Snakemake's own start, gates and report
VENV = ".venv"


def climb_script(plan: Plan, sources: Sources, secrets: Sequence[str], project: Path, python: Path) -> str:
    """Return the text of climb.sh. It asks for the nodes of the largest scale, for the sum of all time limits.

    secrets: variables that the submitting shell has to have. project: where Snakemake is started. python: the
    workflow's Python here.
    """
    largest = max(plan.jobs, key=lambda job: job.scale.world_size)
    widest = max(plan.jobs, key=lambda job: job.scale.gpus_per_node)
    asked: Mapping[str, str | int | None] = {
        "job-name": "ddp-ladder",
        "nodes": max(job.scale.nodes for job in plan.jobs),
        "ntasks-per-node": 1,
        "gres": widest.gres,
        "cpus-per-task": widest.cpus,
        "mem": None if widest.memory_mb is None else f"{widest.memory_mb}M",
        "time": STARTING_MIN + sum(job.runtime_min for job in plan.jobs),
    }
    log = f"{plan.results}/climb-%j.log"
    return render(
        "climb.sh.j2",
        sbatch_options=sbatch_options(asked, largest.slurm, {"chdir": str(project), "output": log}),
        venv=VENV,
        bin=str(python.parent),
        options=[*_snakefile(project), *_settings(sources)],
        secrets=secrets,
    )


def _snakefile(project: Path) -> list[str]:
    """Return the options of Snakemake that find the workflow and its profile from the project."""
    elsewhere = [] if project.samefile(OWN) else ["--snakefile", str(OWN / "Snakefile")]
    return [*elsewhere, "--profile", profile("allocation")]


def _settings(sources: Sources) -> list[str]:
    """Return the options of Snakemake for the same settings as those of this start."""
    config = [] if sources.config == CONFIG else [f"experiment={sources.config}"]
    config += [] if sources.cluster == CLUSTER else [f"cluster={sources.cluster}"]
    config += [f"{key}={json.dumps(value)}" for key, value in marked_overrides(sources.overrides).items()]
    return ["--config", *config] if config else []
