"""Secrets of the settings: none of their values reaches a plan, a script, a command line or a message."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.messages import UserError
from ddp_ladder.job_script.script import climb_script, write_job_script
from ddp_ladder.node.launch import Places, node_environment
from ddp_ladder.node.software import SetUpError, with_secrets
from ddp_ladder.plan.plan import Plan, make_plan
from ddp_ladder.preflight.variables import check_variables
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT, export_secrets, missing_secrets, written_secrets
from ddp_ladder.settings.sources import Sources
from make_records import make_spec

SECRET = "s3cr{t'$x"
CLUSTER: dict[str, Any] = {"site": "here", "node": {"gpus": 2, "device": "cpu", "cpus": 2}}
WORKLOAD: dict[str, Any] = {"script": "train.py", "batch_per_gpu": 32}
STAGES = {"stage1": {"scales": ["1x1"]}}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def load(env: dict[str, Any], cluster: dict[str, Any] | None = None, **keys: Any) -> Settings:
    config = {"workload": {**WORKLOAD, "env": env, **keys.pop("workload", {})}, "stages": STAGES, **keys}
    Path("config.yaml").write_text(yaml.safe_dump(config))
    Path("cluster.yaml").write_text(yaml.safe_dump({**CLUSTER, **(cluster or {})}))
    return load_settings(Path("config.yaml"), Path("cluster.yaml"))


def refused(env: dict[str, Any], **keys: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(env, **keys)
    return str(caught.value)


def test_a_plan_has_the_marker_and_its_hash_not_the_value() -> None:
    plans = []
    for value in (SECRET, "another"):
        env = {
            "HF_TOKEN": value,
            "PROXY": f"http://me:{value[:3]}@proxy:3128",
            "LEVEL": "{seed}",
            "RUN_TOKEN": "{seed}",
        }
        plan = make_plan(load(env, workload={"secrets": ["PROXY", "WANDB"]}))
        assert plan.runs[0].env == {
            "HF_TOKEN": FROM_ENVIRONMENT,
            "PROXY": FROM_ENVIRONMENT,
            "WANDB": FROM_ENVIRONMENT,
            "LEVEL": "1",
            "RUN_TOKEN": "1",  # filled in for each run
        }
        plans.append(json.dumps(plan.to_json()))
    assert plans[0] == plans[1]


def environment_of(plan: Plan, variant: str, inherited: dict[str, str]) -> dict[str, str]:
    (run,) = {run.variant: run for run in plan.runs if run.variant == variant}.values()
    site = with_secrets(run, inherited, inherited)
    return node_environment(run, Places(Path("/"), Path("/run")), site, Path("/run.json"), "lo", 0.0)


def test_each_run_gets_its_own_secrets_and_no_others() -> None:
    settings = load({"HF_TOKEN": SECRET}, variants={"default": {}, "other": {"env": {"OTHER_KEY": "of other"}}})
    inherited: dict[str, str] = {"HF_TOKEN": "of the shell", "OTHER_KEY": "of the shell", "HOME": "/home/me"}
    plan, shell = make_plan(settings), dict(inherited)
    export_secrets(settings, inherited)
    default, other = (environment_of(plan, name, inherited) for name in ("default", "other"))
    assert (default["HF_TOKEN"], default["OTHER_KEY"]) == (SECRET, "of the shell")
    assert (other["HF_TOKEN"], other["OTHER_KEY"]) == (SECRET, "of other")
    assert not [name for name in default if name.startswith("DDP_LADDER_SECRET")]
    # By hand, without the start that exports them, the variable itself counts; a missing one is named.
    assert environment_of(plan, "default", shell)["HF_TOKEN"] == "of the shell"
    del shell["HF_TOKEN"]
    with pytest.raises(SetUpError, match=r"workload\.env: HF_TOKEN is a secret, .*: export HF_TOKEN="):
        environment_of(plan, "default", shell)


def test_what_cannot_be_passed_on_is_refused_without_showing_it() -> None:
    variants = {"default": {}, "other": {"env": {"HF_TOKEN": "another"}}}
    differs = refused({"HF_TOKEN": SECRET}, variants=variants)
    assert "variants.other.env.HF_TOKEN: a secret with another value than in another variant" in differs
    argument = refused({}, workload={"args": ["--api-key", SECRET]})
    assert "workload.args[1]: braces that are no placeholder" in argument
    wrong = (
        {"HF_TOKEN": [SECRET]},
        {"HF_TOKEN": f"{SECRET}\nsecond line"},
        {"HF_TOKEN": {SECRET: None}},
    )
    for env in wrong:
        assert "(not shown)" in refused(env)
    for said in (differs, argument, *map(refused, wrong)):
        assert not [word for word in (SECRET, "another\n") if f"found    {word}" in said]
        assert "s3cr" not in said


def test_scripts_demand_them(tmp_path: Path) -> None:
    settings = load({"HF_TOKEN": SECRET})
    plan = make_plan(settings)
    script = write_job_script(plan.jobs[0], plan.runs[0], RunDirectory(tmp_path / "r1")).read_text()
    assert FROM_ENVIRONMENT not in script
    (line,) = [line for line in script.splitlines() if line.startswith("export HF_TOKEN=")]
    shell = ["bash", "-c", f"{line}\necho $HF_TOKEN"]
    asked = subprocess.run(shell, env={}, capture_output=True, text=True, check=False)
    assert asked.returncode != 0
    assert (
        "HF_TOKEN: a secret that this script does not hold; before it is started: export HF_TOKEN=..." in asked.stderr
    )
    assert subprocess.check_output(shell, env={"HF_TOKEN": "abc"}, text=True) == "abc\n"


def test_overrides_of_a_command_line_or_a_module_are_passed_on_without_them(tmp_path: Path) -> None:
    load({})
    overrides = {
        "workload": {**WORKLOAD, "env": {"HF_TOKEN": SECRET, "LEVEL": 3}},
        "variants": {"default": {}, "other": {"env": {"OTHER_KEY": SECRET}}, "empty": None},
        "stages": STAGES,
    }
    sources = Sources(None, Path("cluster.yaml"), overrides)
    assert sources.load().experiment.workload.env["HF_TOKEN"] == SECRET
    passed_on = Sources(None, Path("cluster.yaml"), json.loads(sources.overrides_json))
    there, here = (make_plan(each.load()).runs for each in (passed_on, sources))
    assert {run.hash for run in there} == {run.hash for run in here}
    with_file = Sources(Path("config.yaml"), Path("cluster.yaml"), {"workload": {"env": {"HF_TOKEN": SECRET}}})
    text = climb_script(make_plan(sources.load()), with_file, ["HF_TOKEN"], tmp_path, Path("/bin/python"))
    assert 'export HF_TOKEN="${HF_TOKEN:?' in text
    for written in (*sources.options, text, json.dumps(make_plan(sources.load()).to_json())):
        assert "s3cr" not in written


def test_a_secret_that_the_files_leave_to_the_environment() -> None:
    settings = load({"HF_TOKEN": FROM_ENVIRONMENT})
    (missing,) = missing_secrets(settings, {})
    assert missing.where == "config.yaml: HF_TOKEN"
    assert missing_secrets(settings, {"HF_TOKEN": "x"}) == []
    environment: dict[str, str] = {}
    export_secrets(settings, environment)
    assert environment == {}


def test_secrets_that_have_to_be_written_are_named() -> None:
    settings = load(
        {},
        cluster={"software": {"python": None, "setup": f"export HF_TOKEN={SECRET}\nexport WANDB_API_KEY=$(cat ~/key)"}},
        workload={"args": ["--epochs", 3, "--api-key", "s3cret", "--data-url=https://me:hunter2@host/x"]},
        variants={"default": {}, "other": {"args": ["--auth_token=abc"]}},
    )
    found = list(written_secrets(settings))
    assert [problem.where.rpartition(": ")[2] for problem in found] == [
        "workload.args[3]",
        "workload.args[4]",
        "variants.other.args[0]",
        "software.setup",
    ]
    said = "".join(map(str, found))
    assert "--api-key ***" in said
    assert not [secret for secret in ("s3cr", "hunter2", "=abc") if secret in said]


def test_those_that_are_named_come_from_the_shell() -> None:
    settings = load({}, workload={"secrets": ["WANDB"]})
    assert [problem.where for problem in missing_secrets(settings, {})] == ["config.yaml: WANDB"]
    shell = {"WANDB": SECRET}
    assert missing_secrets(settings, shell) == []
    export_secrets(settings, shell)
    assert environment_of(make_plan(settings), "default", shell)["WANDB"] == SECRET


def test_the_linter_shows_none() -> None:
    settings = load({"NCCL_PSK": SECRET, "NCCL_DEBUG_TOKEN": SECRET})
    shell = {"CUDA_SECRET": SECRET, "NCCL_APIKEY": SECRET}
    assert "s3cr" not in str(check_variables(settings, shell))


def test_a_shell_that_quotes_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_LADDER_SECRET_HF_TOKEN", "no well-known form")
    error = SetUpError("software.setup", "the snippet failed", "login with no well-known form failed")
    assert str(error) == "software.setup: the snippet failed\nlogin with *** failed"
    assert make_spec().env == {}
