"""`snakemake new_site` on a real Slurm: the draft is read by the ladder, which climbs with it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from cluster import Cluster
from ddp_ladder.settings.load import CLUSTER, CONFIG, load_settings
from project_copy import NO_TORCH, copy_project

pytestmark = pytest.mark.slurm


def test_the_draft_climbs(cluster: Cluster, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path / "project", cluster)
    file = checkout.path / "config/cluster.yaml"
    # An experiment for large nodes: the site in use, a laptop, does not fit it.
    large = {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": {"scales": ["1x4"], "runtime": 5}}
    checkout.configure(stages=large)
    drafted = checkout.snakemake("new_site")
    assert drafted.returncode == 0, drafted.stdout
    assert "written: config/cluster.yaml" in drafted.stdout
    assert "debug: 2 nodes with 4 GPUs (gpu), 8 CPUs and 16000 MB; MaxTime=00:30:00" in file.read_text()
    with contextlib.chdir(checkout.path):
        site = load_settings(CONFIG, CLUSTER).site
    assert (site.site, site.slurm.partition) == ("ladder", "gpu")
    assert site.node.model_dump() == {"gpus": 4, "device": "cuda", "cpus": 8, "gres": "gpu", "memory_mb": 16000}

    checked = checkout.snakemake("doctor")
    assert "Slurm takes all of them: 1x1 1x4" in " ".join(checked.stdout.split())
    # What a person confirms here: the GPUs are only Slurm's, and the program needs no torchrun.
    (checkout.path / "loop.py").write_text(NO_TORCH)
    confirmed = file.read_text().replace("device: cuda", "device: cpu").replace("launcher: torchrun", "launcher: srun")
    file.write_text(confirmed)
    climbed = checkout.snakemake("--profile", "profiles/slurm")
    assert "Stage 2 reached: 1x4" in climbed.stdout, climbed.stdout

    again = checkout.snakemake("new_site").stdout
    assert (file.read_text(), "written: config/sites/ladder.yaml" in again) == (confirmed, True)
