"""A real agent samples GPUs that cannot exist here: those of a library in place of NVIDIA's."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_ladder.common.files import Agent, RunDirectory, read_json, write_json
from ddp_ladder.node.launch import Rendezvous
from ddp_ladder.node.network import node_name
from ddp_ladder.nodes.files import MonitorFile
from ddp_ladder.nodes.findings import RunUse, findings
from ddp_ladder.nodes.read import read_samples, timeline
from ddp_ladder.nodes.usage import RankUse, node_usage
from ddp_ladder.plan.plan import Job, make_plan
from ddp_ladder.records.raw_models import AgentEnd, RunFile
from ddp_ladder.settings.keys import Monitor
from ddp_ladder.settings.load import load_settings
from fake_nvml import A100, H100, compiled, write_gpus
from project_copy import ROOT, environment

# Bit 0x20 is NVML's thermal slowdown by software; the clock is what an A100 falls to.
HOT = {**A100, "uuid": "GPU-hot", "reasons": 0x20, "sm_mhz": 1065}


def test_gpus_of_a_fake_library_that_the_run_may_use_and_one_that_is_throttled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that trains on CUDA, with the second and the third GPU of its node."""
    monkeypatch.chdir(ROOT)
    shipped = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml"))).runs[0]
    script, directory = tmp_path / "script.py", RunDirectory(tmp_path)
    script.write_text("import time\ntime.sleep(1)\n")
    chosen = {"CUDA_VISIBLE_DEVICES": "1,2"}
    spec = shipped.replace(script=str(script), args=(), device="cuda", launcher="srun", env=chosen)
    run = RunFile(
        schema_version=1,
        spec=spec,
        spec_hash=spec.hash,
        job=Job(id="test", attempt=1, run_id="1"),
        rendezvous=Rendezvous(id="monitored", host="127.0.0.1", port=20_000),
        start_directory=str(ROOT),
        run_directory=str(tmp_path),
        nodes=(node_name(),),
        agents_per_node=1,
        repository=None,
        max_log_mb_per_node=1,
        hang=None,
        monitor=Monitor(every_s=0.2),
        goes_on=False,
    )
    write_json(directory.run, run.model_dump())
    compiled(tmp_path)
    write_gpus(tmp_path / "gpus", [A100, H100, HOT])
    env = {**environment(), "LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML": str(tmp_path / "gpus")}
    argv = [sys.executable, str(ROOT / "workflow/scripts/agent.py"), "--run", str(tmp_path), "--node-rank", "0"]
    assert subprocess.run(argv, env=env, timeout=120, check=False).returncode == 0

    end = AgentEnd.from_json(read_json(directory.agent_end(Agent(0))))
    assert end.monitor is not None
    assert (end.monitor.error, end.monitor.samples >= 4) == (None, True)
    about = MonitorFile.from_json(read_json(directory.monitor(0)))
    assert [gpu.name for gpu in about.gpus] == [H100["name"], A100["name"]]
    assert (about.spec_hash, about.job, about.every_s) == (end.spec_hash, end.job, 0.2)
    rows = list(csv.DictReader(directory.samples(0).open()))
    assert not [name for name in rows[0] if name.startswith("gpu2")]
    assert {row["gpu0_power_w"] for row in rows} == {"699.81"}
    assert {(row["gpu0_throttle_reasons"], row["gpu1_throttle_reasons"]) for row in rows} == {("power_cap", "thermal")}

    ranks = tuple(RankUse(rank=k, local_rank=k, node_rank=0, gpu=str(gpu["uuid"])) for k, gpu in enumerate((H100, HOT)))
    samples = read_samples(directory.samples(0), about)
    node = node_usage(samples, timeline(end.launched_at_s, end.ended_at_s, None), ranks)
    use = RunUse(nodes=(node,), ranks=ranks, simulated=False, on_gpus=True)
    (hot,) = (each for each in findings(use) if each.kind == "GPU throttled" and "thermal" in each.in_words)
    assert (hot.node, hot.gpu) == (node_name(), 1)
