"""climb.sh: the whole climb as one batch job, in which every scale is a job step. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ddp_ladder.job_script_header import options
from ddp_ladder.plan import Plan
from ddp_ladder.shell_text import joined, quote
from ddp_ladder.snakemake_settings import CLUSTER, CONFIG, Sources

STARTING_MIN = 5  # Snakemake's own start, gates and report
VENV = ".venv"


def climb_script(plan: Plan, sources: Sources, project: Path, python: Path) -> str:
    """The text of climb.sh. It asks for the nodes of the largest scale, for as long as all scales may take together.

    project: where Snakemake is started. python: the one that runs the workflow here.
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
    return joined(
        [
            "#!/bin/bash",
            "# The whole climb as one job: Snakemake runs on the job's first node, and every scale is a job step.",
            "#     sbatch climb.sh",
            "# Submit it again to go on where it ended. `snakemake eject` writes it from the settings: edit a copy.",
            "#",
            "# time: the sum of all stages' runtime, and some minutes for starting, gates and report.",
            *(f"#SBATCH {option}" for option in options(asked, largest.slurm, {"chdir": str(project), "output": log})),
        ],
        [
            "# The environment; compute nodes of another architecture than the login node need their own:",
            f'#     srun ... make setup TRAINING=1 VENV="{VENV}-$(uname -m)"',
            f"bin={quote(str(python.parent))}",
            f'own="$PWD/{VENV}-$(uname -m)/bin"',
            'if [ -x "$own/snakemake" ]; then bin=$own; fi',
            f'exec "$bin/python" -m snakemake --profile profiles/allocation {" ".join(map(quote, _settings(sources)))}',
        ],
    )


def _settings(sources: Sources) -> list[str]:
    """The options of Snakemake that give the same settings as this start's."""
    words = [] if sources.config == CONFIG else ["--configfile", str(sources.config)]
    config = [] if sources.cluster == CLUSTER else [f"cluster={sources.cluster}"]
    config += [f"{key}={json.dumps(value)}" for key, value in sources.overrides.items()]
    return [*words, *(["--config", *config] if config else [])]
