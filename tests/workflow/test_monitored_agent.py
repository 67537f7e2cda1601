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
from fake_nvml import A100, H100, GpuValues, compiled, write_gpus
from project_copy import ROOT, environment

SCRIPT = "import time\ntime.sleep(1)\n"


def run_agent(directory: Path, gpus: list[GpuValues] | None, **changes: object) -> AgentEnd:
    """Run the script as a process that trains on CUDA, to its end; return the agent's end record."""
    shipped = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml"))).runs[0]
    script = directory / "script.py"
    script.write_text(SCRIPT)
    spec = shipped.replace(script=str(script), args=(), device="cuda", launcher="srun", **changes)
    run = RunFile(
        schema_version=1,
        spec=spec,
        spec_hash=spec.hash,
        job=Job(id="test", attempt=1, run_id="1"),
        rendezvous=Rendezvous(id="monitored", host="127.0.0.1", port=20_000),
        start_directory=str(ROOT),
        run_directory=str(directory),
        nodes=(node_name(),),
        agents_per_node=1,
        repository=None,
        max_log_mb_per_node=1,
        hang=None,
        monitor=Monitor(every_s=0.2),
        goes_on=False,
    )
    write_json(RunDirectory(directory).run, run.model_dump())
    env = {**environment(), "LD_LIBRARY_PATH": str(directory), "FAKE_NVML": str(directory / "gpus")}
    if gpus is not None:
        compiled(directory)
        write_gpus(directory / "gpus", gpus)
    argv = [sys.executable, str(ROOT / "workflow/scripts/agent.py"), "--run", str(directory), "--node-rank", "0"]
    assert subprocess.run(argv, env=env, timeout=120, check=False).returncode == 0
    return AgentEnd.from_json(read_json(RunDirectory(directory).agent_end(Agent(0))))


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_gpus_of_a_fake_library_that_the_run_may_use(tmp_path: Path) -> None:
    end = run_agent(tmp_path, [A100, H100], env={"CUDA_VISIBLE_DEVICES": "1"})
    assert end.monitor is not None
    assert (end.monitor.error, end.monitor.samples >= 4) == (None, True)
    about = MonitorFile.from_json(read_json(RunDirectory(tmp_path).monitor(0)))
    assert [gpu.name for gpu in about.gpus] == [H100["name"]]
    assert (about.spec_hash, about.job, about.every_s) == (end.spec_hash, end.job, 0.2)
    rows = list(csv.DictReader(RunDirectory(tmp_path).samples(0).open()))
    assert not [name for name in rows[0] if name.startswith("gpu1")]
    assert {row["gpu0_throttle_reasons"] for row in rows} == {"power_cap"}
    assert {row["gpu0_power_w"] for row in rows} == {"699.81"}


def test_a_throttled_gpu_of_a_fake_library_is_a_finding(tmp_path: Path) -> None:
    """Bit 0x20 is NVML's thermal slowdown by software; the clock is what an A100 falls to."""
    end = run_agent(tmp_path, [A100, {**A100, "uuid": "GPU-hot", "reasons": 0x20, "sm_mhz": 1065}])
    about = MonitorFile.from_json(read_json(RunDirectory(tmp_path).monitor(0)))
    samples = read_samples(RunDirectory(tmp_path).samples(0), about)
    ranks = tuple(
        RankUse(rank=k, local_rank=k, node_rank=0, gpu=uuid) for k, uuid in enumerate([A100["uuid"], "GPU-hot"])
    )
    node = node_usage(samples, timeline(end.launched_at_s, end.ended_at_s, None), ranks)
    run = RunUse(
        nodes=(node,),
        ranks=ranks,
        simulated=False,
        on_gpus=True,
    )
    (found,) = (each for each in findings(run) if each.kind == "GPU throttled")
    assert (found.node, found.gpu) == (node_name(), 1)
    assert "thermal" in found.in_words


def test_without_a_driver_the_run_is_sampled_without_gpus(tmp_path: Path) -> None:
    end = run_agent(tmp_path, gpus=None)
    assert end.monitor is not None
    assert end.monitor.error is None
    about = MonitorFile.from_json(read_json(RunDirectory(tmp_path).monitor(0)))
    assert about.gpus == ()
    assert any(note.startswith("NVML: NVML Shared Library Not Found") for note in about.notes)
    header = RunDirectory(tmp_path).samples(0).read_text().partition("\n")[0]
    assert "gpu" not in header


def test_a_fake_library_that_never_answers_does_not_keep_the_run(tmp_path: Path) -> None:
    end = run_agent(tmp_path, [{**A100, "power_mw": "hang"}])
    assert end.exit_code == 0
    assert end.monitor is not None
    assert "a driver may hang" in str(end.monitor.error)
