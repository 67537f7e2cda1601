"""How long a run will take: scripts that count epochs, and scripts that count steps."""

import pytest
from ddp_ladder.analysis.run_length import RunLength, steps_at, wall_s_at
from ddp_ladder.settings.terms import Scale

ONE = RunLength(Scale(1, 1), wall_s=110.0, startup_s=10.0, steps=1000, step_time_s=0.1, batch=64, ended_by="script")
EPOCHS = RunLength(Scale(1, 2), wall_s=65.0, startup_s=15.0, steps=500, step_time_s=0.1, batch=128, ended_by="script")
STEPS = RunLength(Scale(1, 2), wall_s=115.0, startup_s=15.0, steps=1000, step_time_s=0.1, batch=128, ended_by="script")


def test_after_one_scale_the_steps_are_taken_as_equal() -> None:
    assert wall_s_at([ONE], step_time_s=0.1, batch=128) == pytest.approx(110.0)
    assert wall_s_at([ONE], step_time_s=0.2, batch=128) == pytest.approx(210.0)


def test_two_scales_tell_what_the_script_counts() -> None:
    assert steps_at([ONE, EPOCHS], 256) == pytest.approx(250)
    assert wall_s_at([ONE, EPOCHS], 0.1, 256) == pytest.approx(15 + 25)
    assert steps_at([ONE, STEPS], 256) == 1000
    assert wall_s_at([ONE, STEPS], 0.1, 256) == pytest.approx(115)


def test_limits_of_the_measurement_hold_at_every_scale() -> None:
    limited = RunLength(Scale(1, 2), 65.0, 15.0, 500, 0.1, 128, "max_steps")
    assert steps_at([ONE, limited], 256) == 500
    timed = RunLength(Scale(1, 2), 65.0, 15.0, 500, 0.1, 128, "max_seconds")
    assert wall_s_at([ONE, timed], 0.9, 256) == 65.0


def test_a_fixed_global_batch_keeps_its_steps() -> None:
    strong = RunLength(Scale(1, 2), 65.0, 15.0, 1000, 0.05, 64, "script")
    assert wall_s_at([ONE, strong], 0.025, 64) == pytest.approx(15 + 25)


def test_nothing_below() -> None:
    assert wall_s_at([], 0.1, 64) is None
