"""plan.json, read back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.messages import UserError
from ddp_ladder.plan.file import read_plan
from ddp_ladder.plan.plan import Plan, PreflightWanted
from ddp_ladder.settings.keys import GateThresholds, Slurm
from make_records import make_plan_of, make_specs

PLAN = make_plan_of(make_specs(["1x1", "1x2", "2x2"], modes=["weak", "strong"], lr=0.1))
CONTAINER = {"image": "a.sif", "engine": "apptainer", "binds": ["/data"], "args": []}
SLURM = Slurm(
    account="me",
    partition="gpu",
    qos="debug",
    constraint="a100",
    reservation="course",
    nodelist="n[1-2]",
    exclude="n3",
    extra=("--exclusive", "--hint=nomultithread"),
)


def test_the_inverse_of_writing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json(path, PLAN.to_json())
    read = read_plan(path)
    assert read == PLAN
    assert [run.hash for run in read.runs] == [run.hash for run in PLAN.runs]


def test_what_a_job_asks_slurm_for(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = make_plan_of(
        make_specs(["1x1"], modules=("A/1",), setup="ulimit -l", container=CONTAINER, interface={"node01": "eth0"})
    )
    job = replace(plan.jobs[0], cpus=8, memory_mb=64_000, gres="gpu:a100:1", slurm=SLURM)
    wanted = PreflightWanted(enabled=True, timeout_s=30.0, min_busbw_gb_per_s=20.0, transport="ib")
    job = replace(job, preflight=wanted)
    plan = replace(plan, jobs=(job,), may_differ=("num_workers",), gates={"stage1": GateThresholds(certain=True)})
    write_json(path, plan.to_json())
    assert read_plan(path) == plan


def test_an_empty_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    empty = Plan("local", "results", ())
    write_json(path, empty.to_json())
    assert read_plan(path) == empty


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_plan(tmp_path / "plan.json")
    assert "there is no plan here" in str(error.value)
    assert "snakemake" in str(error.value)


def test_truncated_anywhere_is_one_message_with_a_next_step(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    text = json.dumps(PLAN.to_json())
    for length in range(0, len(text), max(1, len(text) // 40)):
        path.write_text(text[:length])
        with pytest.raises(UserError) as error:
            read_plan(path)
        assert "next" in str(error.value)


def test_a_directory_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_plan(tmp_path)


def damaged(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(PLAN.to_json()))
    data.update(changes)
    return data


def edited_run(**changes: Any) -> dict[str, Any]:
    data = damaged()
    data["jobs"][0]["runs"][0].update(changes)
    return data


def edited_job(**changes: Any) -> dict[str, Any]:
    data = damaged()
    data["jobs"][0].update(changes)
    return data


def test_a_plan_whose_runs_lack_a_key_is_of_another_version(tmp_path: Path) -> None:
    data, path = damaged(), tmp_path / "plan.json"
    del data["jobs"][0]["runs"][0]["directory"]
    write_json(path, data)
    with pytest.raises(UserError) as error:
        read_plan(path)
    (problem,) = error.value.problems
    assert (problem.what, problem.found) == (
        "this plan is of another version of ddp-ladder, or was edited",
        "directory is missing",
    )
    assert problem.next is not None
    assert problem.next.startswith("make the report with the version of ddp-ladder that wrote it; or, ")
    assert f"run `snakemake --cores 1 {path}`" in problem.next


def moved_run() -> dict[str, Any]:
    data = damaged()
    data["jobs"][0]["runs"].append(data["jobs"][1]["runs"][0])
    return data


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in damaged().items() if name != key}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "list"),
        (None, "None"),
        (damaged(schema_version=2), "schema_version is 2"),
        (damaged(jobs=None), "None"),
        (damaged(gates=[]), "list"),
        (damaged(gates={"stage2": {"min_efficency": 0.8}}), "min_efficency"),
        (without("jobs"), "'jobs' is missing"),
        (without("site"), "'site' is missing"),
        (edited_run(global_batch=4096), "default/weak/1x1/r1 was edited"),
        (edited_run(extra=1), "extra"),
        (edited_job(slurm={"partitions": "gpu", "extra": []}), "partitions"),
        (edited_job(slurm={}), "'extra' is missing"),
        (moved_run(), "is in the job of stage1, 1x1"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, data: Any, words: str) -> None:
    path = tmp_path / "plan.json"
    write_json(path, data)
    with pytest.raises(UserError) as error:
        read_plan(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
