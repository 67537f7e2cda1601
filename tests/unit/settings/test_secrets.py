"""Secrets of the settings come from the shell: no file, no plan and no script has a value."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.messages import UserError
from ddp_ladder.node.launch import Places, node_environment
from ddp_ladder.node.software import SetUpError, check_secrets
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.run.job_script import climb_script, write_job_script
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.load import Sources, load_settings
from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT

CLUSTER: dict[str, Any] = {"site": "here", "node": {"gpus": 2, "device": "cpu", "cpus": 2}}
WORKLOAD: dict[str, Any] = {"script": "train.py", "batch_per_gpu": 32}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def load(variants: dict[str, Any] | None = None, network: dict[str, Any] | None = None, **workload: Any) -> Settings:
    config = {"workload": {**WORKLOAD, **workload}, "stages": {"stage1": {"scales": ["1x1"]}}}
    Path("config.yaml").write_text(yaml.safe_dump({**config, "variants": {"default": {}, **(variants or {})}}))
    Path("cluster.yaml").write_text(yaml.safe_dump({**CLUSTER, "network": {"env": network or {}}}))
    return load_settings(Path("config.yaml"), Path("cluster.yaml"))


def test_a_run_has_the_marker_in_its_plan_and_the_shells_value_in_its_environment() -> None:
    run = make_plan(load(env={"LEVEL": "{seed}", "RUN_TOKEN": "{seed}"}, secrets=["WANDB"])).runs[0]
    assert run.env == {"LEVEL": "1", "RUN_TOKEN": "1", "WANDB": FROM_ENVIRONMENT}
    with pytest.raises(SetUpError, match=r"workload\.secrets: WANDB is a secret, .*: export WANDB="):
        check_secrets(run, {})
    shell = {"WANDB": "s3cr{t'$x"}
    check_secrets(run, shell)
    env = node_environment(run, Places(Path("/"), Path("/run")), shell, Path("/run.json"), "lo", 0.0)
    assert (env["WANDB"], env["LEVEL"]) == ("s3cr{t'$x", "1")


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"env": {"HF_TOKEN": "s3cret"}}, "config.yaml: workload.env.HF_TOKEN"),
        ({"env": {"PROXY": "s3cret"}, "secrets": ["PROXY"]}, "config.yaml: workload.env.PROXY"),
        ({"variants": {"a": {"env": {"A_KEY": "s3cret"}}}}, "config.yaml: variants.a.env.A_KEY"),
        ({"env": {"TRACKING_URI": "https://me:s3cret@host"}}, "config.yaml: workload.env.TRACKING_URI"),
        ({"network": {"NCCL_PSK": "s3cret"}}, "cluster.yaml: network.env.NCCL_PSK"),
        ({"args": ["--epochs", 8, "--token=s3cret"]}, "config.yaml: workload.args[2]"),
        ({"args": ["--api-key", "s3cret"]}, "config.yaml: workload.args[1]"),
        ({"args": ["--env=WANDB_API_KEY=s3cret"]}, "config.yaml: workload.args[0]"),
        ({"args": ["--db", "postgres://bob:s3cret@host/db"]}, "config.yaml: workload.args[1]"),
        ({"variants": {"a": {"args": ["--password", "s3cret"]}}}, "config.yaml: variants.a.args[1]"),
        ({"prepare": ["train.py", "--token", "s3cret"], "data_dir": "data"}, "config.yaml: workload.prepare[2]"),
    ],
)
def test_a_secret_in_a_file_is_refused_and_not_shown(keys: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError) as caught:
        load(**keys)
    said, name = str(caught.value), where.rpartition(".")[2]
    assert re.sub(r", line \d+", "", said).startswith(f"{where}: the value of a secret in a file")
    advice = f"add {name} to workload.secrets, and `export {name}=...`" if ".env." in where else "name a variable in wo"
    assert advice in said
    assert "s3cret" not in said


def test_scripts_demand_them(tmp_path: Path) -> None:
    plan = make_plan(load(secrets=["HF_TOKEN"]))
    script = write_job_script(plan.jobs[0], plan.runs[0], RunDirectory(tmp_path / "r1")).read_text()
    sources = Sources(Path("config.yaml"), Path("cluster.yaml"), {})
    for text in (script, climb_script(plan, sources, ["HF_TOKEN"], tmp_path, Path("/bin/python"))):
        assert FROM_ENVIRONMENT not in text
        (line,) = [line for line in text.splitlines() if line.startswith("export HF_TOKEN=")]
        shell = ["bash", "-c", f"{line}\necho $HF_TOKEN"]
        asked = subprocess.run(shell, env={}, capture_output=True, text=True, check=False)
        assert asked.returncode != 0
        assert "before it is started: export HF_TOKEN=..." in asked.stderr
        assert subprocess.check_output(shell, env={"HF_TOKEN": "abc"}, text=True) == "abc\n"
