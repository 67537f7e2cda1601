"""A hang on several nodes of a real Slurm: each task's agent reports it, and the job ends the step."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster
from ddp_ladder.common.files import read_json
from project_copy import copy_project
from scales import GPU_SITE, prepare, salloc, scale_job

JOB = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8000", "--gres=gpu:2"]
pytestmark = pytest.mark.slurm
SCRIPT = """
import time
def load():
    time.sleep(10_000)
load()
"""


def test_the_agents_of_all_nodes_agree_on_a_hang(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    checkout = copy_project(tmp_path / "project")
    hang = {"first_step_s": 4, "at_least_s": 2}
    site = {**GPU_SITE, "launcher": "srun"}
    prepare(checkout, SCRIPT, "2x2", site, hang=hang, repeats=1, preflight={"enabled": False})
    salloc(cluster_without_accounting, checkout, JOB, scale_job("2x2"))
    run = checkout.results / "runs/default/weak/2x2/r1"
    failure = read_json(run / "record.json")["failure"]
    assert failure["verdict"] == "no first step"
    assert 'loop.py", line 4, in load' in failure["why"]
    assert "1 more" in failure["why"]
    assert len(list((run / "nodes").glob("hang-*.json"))) == 4
