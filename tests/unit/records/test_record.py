"""record.json: written, read back, and refused when it is not one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.records.record import (
    Record,
    read_record,
    write_record,
)
from make_records import make_failed_record, make_record, make_spec

Change = Callable[[dict[str, Any]], None]


@pytest.mark.parametrize(
    "record",
    [
        make_record(make_spec("2x2"), exposed_comm_fraction=0.05),
        make_record(make_spec("1x4", device="cuda", mode="strong", lr=0.4, env={"A": "b"})),
        make_record(make_spec("1x1"), startup_s=None),
        make_failed_record(make_spec("1x2")),
        make_failed_record(make_spec("1x2"), "not run", started=False),
    ],
    ids=["cpu", "cuda", "no start-up", "failed", "not started"],
)
def test_round_trip(tmp_path: Path, record: Record) -> None:
    path = tmp_path / "record.json"
    write_record(path, record)
    assert read_record(path) == record


def put(value: object, *path: str | int) -> Change:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def remove(*path: str | int) -> Change:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(2, "schema_version"), "schema_version"),
        (put("good", "status"), "status"),
        (put("failed", "status"), "failure"),
        (put(None, "throughput"), "throughput"),
        (put([], "ranks"), "ranks"),
        (put(1, "colour"), "colour"),
        (put("abc", "spec_hash"), "spec_hash"),
        (put("1", "spec", "nodes"), "spec/nodes"),
        (put(0, "spec", "repeat"), "spec/repeat"),
        (put(7, "spec", "surprise"), "surprise"),
        (remove("spec", "lr"), "spec/lr is missing"),
        (remove("fingerprint"), "fingerprint"),
        (put("fast", "throughput", "samples_per_s"), "throughput/samples_per_s"),
        (put(-1, "throughput", "samples_per_s"), "throughput/samples_per_s"),
        (put([], "throughput", "blocks_samples_per_s"), "blocks_samples_per_s"),
        (put(1.5, "timing", "straggler_fraction"), "straggler_fraction"),
        (put(None, "timing", "wall_s"), "wall_s"),
        (put("0", "ranks", 0, "exit_code"), "ranks/0/exit_code"),
        (put("died", "ranks", 0, "ended_by"), "ranks/0/ended_by"),
        (put("yes", "checks", 0, "ok"), "checks/0/ok"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change: Change, words: str) -> None:
    data = json.loads(json.dumps(make_record(make_spec("1x2")).model_dump()))
    change(data)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="not a record of version 1") as error:
        read_record(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3"])
def test_truncated_or_foreign_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"record\.json"):
        read_record(path)


def test_not_a_number_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finite number"):
        make_record(make_spec("1x1"), startup_s=float("nan"))
    record = make_record(make_spec("1x1"), fingerprint={"torch": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path / "record.json", record)
    assert not list(tmp_path.iterdir())
