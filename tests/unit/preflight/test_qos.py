"""What the QoS of a job allows. A stand-in prints what sacctmgr would, after its manual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.messages import Problem
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.preflight.admission import check_qos, read_accounting
from ddp_ladder.settings.load import load_settings
from make_files import put_on_path

# As a centre whose default QoS lets nothing run: its guide wants --qos=<project>.
QOS = "normal|00:01:00|gres/gpu=0|\nproj|04:00:00||cpu=900,gres/gpu=8\nfree|||\n"
OWN = "proj|||proj,normal\nother|gpu|normal|normal\n"


def checked(directory: Path, monkeypatch: pytest.MonkeyPatch, own: str = OWN, **slurm: Any) -> list[Problem]:
    for name, printed in (("qos", QOS), ("own", own)):
        (directory / name).write_text(printed)
    shown = f'case "$*" in *associations*) cat {directory}/own;; *qos*) cat {directory}/qos;; esac'
    put_on_path(monkeypatch, directory, sacctmgr=shown)
    stages = {"stage1": {"runtime": 10}, "stage2": {"scales": ["1x4"], "runtime": 20}}
    config = {"workload": {"script": __file__, "batch_per_gpu": 64}, "stages": stages}
    node = {"gpus": 4, "device": "cuda", "cpus": 8, "gres": "gpu"}
    for file, data in (("config", config), ("cluster", {"site": "test", "node": node, "slurm": slurm})):
        (directory / f"{file}.yaml").write_text(json.dumps(data))
    settings = load_settings(directory / "config.yaml", directory / "cluster.yaml")
    return list(check_qos(make_plan(settings).jobs, settings, read_accounting()))


def test_a_default_qos_that_lets_nothing_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "proj||normal|proj,normal,free\n"
    (problem,) = checked(tmp_path, monkeypatch, own)
    assert problem.where.endswith("cluster.yaml: slurm.qos")
    assert problem.what == "the QoS normal (your default one, as slurm.qos names none) does not allow the job of 1x4"
    assert (problem.found, problem.allowed) == ("20 min, 4 GPUs", "up to 1 min, 0 GPUs")
    assert problem.next.startswith("name another one of yours: free, proj, or")
    assert checked(tmp_path, monkeypatch, own, qos="proj") == []
    assert checked(tmp_path, monkeypatch, own, qos="free") == []
    (named,) = checked(tmp_path, monkeypatch, own, qos="normal")
    assert named.what == "the QoS normal does not allow the job of 1x4"
