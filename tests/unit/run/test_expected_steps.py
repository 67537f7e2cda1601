from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.records.record import Record
from ddp_ladder.run.expected_steps import Expected, most_alike
from ddp_ladder.run.job import Context, expected_steps
from ddp_ladder.run.progress import state
from ddp_ladder.settings.keys import Slurm
from make_records import make_failed_record, make_record, make_spec
from make_runs import write_run


def at(step: int, epoch_steps: int | None = None) -> dict[str, Any]:
    return {"step": step, "samples_per_s": 1000.0, "elapsed_s": 6.0, "epoch_steps": epoch_steps}


def made(spec: RunSpec, steps: int, samples: int, ended_by: str = "script") -> Record:
    """The record of a run in which each rank made these steps, with these samples."""
    record = make_record(spec)
    changes = {"steps": steps, "samples": samples, "ended_by": ended_by}
    return record.replace(ranks=tuple(rank.replace(**changes) for rank in record.ranks))


def shown(expected: Expected, progress: dict[str, Any] | None) -> str | None:
    total = expected.total(progress)
    return None if total is None else str(total)


# 1437 samples in 5 epochs: 23 batches of 64 a pass on one process, 12 on two.
ONE = made(make_spec("1x1"), 115, 5 * 1437)
TWO = make_spec("1x2", repeat=2)


def test_another_repeat_of_the_scale_has_as_many_steps() -> None:
    expected = Expected(TWO, made(make_spec("1x2"), 60, 5 * 719), 12)
    assert [shown(expected, now) for now in (None, at(1, 12), at(60, 12), at(61, 12))] == ["60", "60", "60", None]


def test_another_scale_makes_as_many_passes() -> None:
    expected = Expected(TWO, ONE, 23)
    # The samples alone give too few: the last batch of each pass is smaller.
    assert shown(expected, None) == "about 56"
    assert shown(expected, at(1, 12)) == "60"
    assert state(at(60, 12), expected, 600.0).startswith("step 60 of 60, ")


def test_an_estimate_that_was_too_low_is_shown_no_more() -> None:
    expected = Expected(TWO, ONE)
    assert shown(expected, at(56)) == "about 56"
    assert state(at(57), expected, 600.0) == "step 57, 1,000 samples/s, at most 10 min 00 s left"


@pytest.mark.parametrize(
    ("most", "other", "steps"),
    [
        (150, None, "150"),
        (150, made(make_spec("1x2", max_steps=150), 150, 9600, "max_steps"), "150"),
        (150, made(make_spec("1x2", max_steps=150), 60, 3595), "60"),  # the script ends before the limit
        (150, made(make_spec("1x1", max_steps=150), 150, 9600, "max_steps"), "150"),  # one that did not show its end
        (150, made(make_spec("1x1", max_steps=150), 115, 7185), "about 56"),
        (40, made(make_spec("1x1", max_steps=40), 30, 7185), "40"),
    ],
)
def test_a_maximum(most: int, other: Record | None, steps: str) -> None:
    assert shown(Expected(make_spec("1x2", max_steps=most), other), None) == steps


def test_a_run_beyond_an_earlier_one_has_its_maximum() -> None:
    spec = make_spec("1x2", max_steps=150)
    assert shown(Expected(spec, made(spec, 60, 3595)), at(61)) == "150"


def test_only_runs_of_the_same_training_count() -> None:
    here, other = make_record(make_spec("1x2")), make_record(make_spec("1x1"))
    assert most_alike(TWO, [other, here]) is here
    assert most_alike(TWO, [other]) is other
    strangers = [
        make_record(make_spec("1x2", args_template=("--epochs", "9"), args=("--epochs", "9"))),
        make_record(make_spec("1x2", variant="gloo")),
        make_record(make_spec("1x2", max_seconds=5)),
        make_failed_record(make_spec("1x2")),
    ]
    assert most_alike(TWO, strangers) is None


def test_what_the_files_of_finished_runs_show(tmp_path: Path) -> None:
    job = ScaleJob("stage2", TWO.scale, 20, (TWO,), cpus=2, slurm=Slurm())
    context: Any = Context(job, tmp_path, nodes=None, deadline_s=0.0, console=None)  # type: ignore[arg-type]
    assert expected_steps(context, TWO) == Expected(TWO)
    other = write_run(tmp_path, make_spec("1x1"), steps=46)
    write_json(other.progress, at(46, 23))
    assert shown(expected_steps(context, TWO), at(1, 12)) == "24"
    write_run(tmp_path, make_spec("1x2"), steps=50)
    assert shown(expected_steps(context, TWO), at(1, 12)) == "50"
