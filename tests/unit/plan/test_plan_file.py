"""plan.json, read back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.messages import UserError
from ddp_ladder.plan.plan import Plan, read_plan
from ddp_ladder.settings.keys import Container, GateThresholds, Hang, Monitor, Preflight, Slurm
from make_records import make_plan_of, make_specs

PLAN = make_plan_of(make_specs(["1x1", "1x2", "2x2"], modes=["weak", "strong"], lr=0.1))
CONTAINER = Container(image="a.sif", engine="apptainer", binds=("/data",))
SLURM = Slurm(account="me", partition="gpu", nodelist="n[1-2]", extra=("--exclusive", "--hint=nomultithread"))


def test_the_inverse_of_writing(tmp_path: Path) -> None:
    spec = make_specs(["1x1"], modules=("A/1",), setup="ulimit -l", container=CONTAINER, interface={"node01": "eth0"})
    limits = {"preflight": Preflight(timeout_s=30.0, min_busbw_gb_per_s=20.0), "hang": Hang(first_step_s=None)}
    of_site = {"gres": "gpu:a100:1", "slurm": SLURM, "transport": "ib", "monitor": Monitor(every_s=5)}
    job = replace(make_plan_of(spec).jobs[0], **limits, **of_site)
    full = replace(PLAN, jobs=(job,), may_differ=("num_workers",), gates={"stage1": GateThresholds(min_efficiency=0.8)})
    for plan in (PLAN, full, Plan("local", "results", ())):
        write_json(tmp_path / "plan.json", plan.to_json())
        read = read_plan(tmp_path / "plan.json")
        assert read == plan
        assert [run.hash for run in read.runs] == [run.hash for run in plan.runs]


def edited(*path: str | int, **changes: Any) -> dict[str, Any]:
    part = data = json.loads(json.dumps(PLAN.to_json()))
    for key in path:
        part = part[key]
    part.update(changes)
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "Plan"),
        (edited(schema_version=2), "schema_version"),
        (edited(jobs=None), "jobs"),
        (edited(gates={"stage2": {"min_efficency": 0.8}}), "min_efficency"),
        ({"site": "local"}, "results is missing"),
        (edited("jobs", 0, "runs", 0, extra=1), "extra"),
        (edited("jobs", 0, slurm={"partitions": "gpu"}), "partitions"),
        (edited("jobs", 0, scale="2X2"), "jobs/0/scale"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, data: Any, words: str) -> None:
    path = tmp_path / "plan.json"
    write_json(path, data)
    with pytest.raises(UserError) as error:
        read_plan(path)
    said = str(error.value)
    assert said.startswith(f"{path}: this is no plan of this version of ddp-ladder\n")
    assert words in said
    assert "or run `snakemake --cores 1 plan`" in said


def test_what_cannot_be_read_is_one_message_with_a_next_step(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(UserError, match="there is no plan here"):
        read_plan(path)
    path.write_text(json.dumps(PLAN.to_json())[:1000])
    for file in (path, tmp_path):
        with pytest.raises(UserError, match="this is no plan") as error:
            read_plan(file)
        assert "next" in str(error.value)
