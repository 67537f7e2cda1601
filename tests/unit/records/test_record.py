"""record.json: written, read back, and refused when it is not one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.records.record import Record, read_record, write_record
from make_records import FINGERPRINT, make_failed_record, make_record, make_spec
from make_runs import edit


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


@pytest.mark.parametrize("known", [FINGERPRINT, {}])
def test_a_record_of_an_earlier_version_is_read(tmp_path: Path, known: Mapping[str, Any]) -> None:
    path = tmp_path / "record.json"
    write_record(path, make_record(make_spec("1x1")))
    edit(path, lambda data: data.update(fingerprint=dict(known)))
    fingerprint = read_record(path).fingerprint
    assert (fingerprint.torch, fingerprint.dataset_size, fingerprint.unread) == (known.get("torch"), None, ())


def test_not_a_number_is_in_no_record() -> None:
    with pytest.raises(ValueError, match="finite number"):
        make_record(make_spec("1x1"), startup_s=float("nan"))
    with pytest.raises(ValueError, match="finite number"):
        make_record(make_spec("1x1"), fingerprint={"power_limit_w": (float("nan"),)})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"schema_version": 3', '"schema_version": 2', "schema_version"),
        ('"exit_code": 0', '"exit_code": "0"', "ranks/0/exit_code"),
        ('"remarks": []', '"remarks": [], "colour": 1', "colour: there is no such key"),
        ("{", "", "is not JSON"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "record.json"
    write_record(path, make_record(make_spec("1x2")))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=words) as error:
        read_record(path)
    assert str(path) in str(error.value)
