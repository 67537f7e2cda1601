"""The #SBATCH lines of job.sh and climb.sh. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ddp_ladder.job_script.shell_text import quote
from ddp_ladder.settings.cluster_keys import Slurm


def sbatch_options(asked: Mapping[str, str | int | None], slurm: Slurm, last: Mapping[str, str]) -> list[str]:
    """Return options of sbatch for ``asked``, the site's key `slurm`, and ``last``; None is left out."""
    site = {
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "reservation": slurm.reservation,
        "nodelist": slurm.nodelist,
        "exclude": slurm.exclude,
    }
    wanted = {**asked, **site, **last}
    return [f"--{name}={quote(str(value))}" for name, value in wanted.items() if value is not None] + [
        *slurm.extra,
        "--no-requeue",
    ]
