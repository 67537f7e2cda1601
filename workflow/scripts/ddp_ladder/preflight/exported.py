"""Whether there are environment variables to check: apart from the check, which most starts need not load."""

from __future__ import annotations

from collections.abc import Mapping

from ddp_ladder.preflight.known_variables import is_one_edit
from ddp_ladder.settings.models import Settings

PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "OMP_", "GOMP_", "KMP_", "CUDA_", "FI_", "UCX_")
"""Of the names that are looked for in the shell's environment."""
SET_FOR_EVERY_RUN = frozenset({"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"})
"""By the launch of a run, whatever the shell exports."""


def exported(shell: Mapping[str, str]) -> list[str]:
    """Return the names that a shell exports of communication libraries' variables, without those that each run sets.

    Also names that begin nearly like one: NCLL_DEBUG.
    """
    return [name for name in sorted(shell) if _begins_like_one(name) and name not in SET_FOR_EVERY_RUN]


def _begins_like_one(name: str) -> bool:
    return name.startswith(PREFIXES) or any(
        is_one_edit(name[: len(prefix) + longer], prefix) for prefix in PREFIXES for longer in (-1, 0, 1)
    )


def anything_to_check(settings: Settings, shell: Mapping[str, str]) -> bool:
    """Return True if a settings file sets a variable, or the shell exports one of a communication library."""
    experiment = settings.experiment
    in_files = (settings.site.network.env, experiment.workload.env, *(each.env for each in experiment.variants))
    return any(in_files) or bool(exported(shell))
