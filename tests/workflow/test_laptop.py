"""The experiment of a guide for a cluster, on this machine as its own comment says."""

from __future__ import annotations

import re
import shlex

from project_copy import Checkout


def test_a_guides_experiment_is_scaled_down_as_its_comment_says(checkout: Checkout) -> None:
    """One that asks for NCCL, and has no second stage. tests/unit/settings/test_experiments.py has the plans."""
    file = checkout.path / "config/experiments/ethernet6-mlp.yaml"
    command = re.search(r"On a laptop, scaled down:\n# +snakemake (.+)", file.read_text())
    assert command is not None
    planned = checkout.snakemake(*shlex.split(command[1]), "--dry-run")
    assert planned.returncode == 0, planned.stdout
    scales = [line.split()[1] for line in planned.stdout.splitlines() if re.match(r"stage\d  \dx\d ", line)]
    assert scales == ["1x1", "1x2", "2x1"]
    assert "--backend gloo" in planned.stdout
    assert "nccl" not in planned.stdout
