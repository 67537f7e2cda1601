"""Phases and steps of a run, and the samples in them."""

from __future__ import annotations

import numpy as np
import pytest
from ddp_ladder.usage.timeline import Span, StepTimes, Timeline, timeline
from make_usage import BEGIN_S, make_monitor_file, make_samples, make_timeline


def spans(of: Timeline) -> list[tuple[str, float, float]]:
    return [(span.phase, span.begin_s - BEGIN_S, span.end_s - BEGIN_S) for span in of.spans]


def test_phases_of_a_run() -> None:
    found = make_timeline(100, 1.0, startup_s=10, warmup_steps=5)
    assert spans(found) == [("start-up", 0, 10), ("warm-up", 10, 14), ("training", 14, 97), ("end", 97, 100)]


def test_validation_and_the_time_between_epochs() -> None:
    """Epochs of 4 steps, one second each; 3 s from the last step to the next epoch, 2 of which are a validation."""
    ends_s = BEGIN_S + np.array([10, 11, 12, 13, 17, 18, 19, 20])
    steps = StepTimes(ends_s, np.ones(8), 2, (1, 5), [(BEGIN_S + 13.5, BEGIN_S + 15.5), (BEGIN_S + 20, BEGIN_S + 22)])
    found = timeline(BEGIN_S, BEGIN_S + 23, steps)
    assert spans(found) == [
        ("start-up", 0, 10),
        ("warm-up", 10, 11),
        ("training", 11, 13),
        ("between epochs", 13, 13.5),
        ("validation", 13.5, 15.5),
        ("between epochs", 15.5, 16),
        ("training", 16, 20),
        ("validation", 20, 22),
        ("end", 22, 23),
    ]
    assert [begin - BEGIN_S for begin in found.epochs_s] == [9, 16]


def test_short_interruptions_are_no_spans() -> None:
    short = [(k, k + 0.01) for k in range(20, 80)]
    assert spans(make_timeline(validations_s=short)) == spans(make_timeline())


@pytest.mark.parametrize("steps", [None, StepTimes(np.empty(0), np.empty(0), 10)])
def test_a_run_without_known_steps_is_one_span(steps: StepTimes | None) -> None:
    found = timeline(BEGIN_S, BEGIN_S + 5, steps)
    assert found.spans == (Span("run", BEGIN_S, BEGIN_S + 5),)
    assert found.steps(np.array([BEGIN_S + 1])).tolist() == [0]


def test_fewer_steps_than_the_warm_up() -> None:
    assert [phase for phase, *_ in spans(make_timeline(warmup_steps=10_000))] == ["start-up", "warm-up", "end"]


def test_a_clock_that_was_set_back() -> None:
    ends_s = BEGIN_S + np.array([10.0, 11, 5, 12])
    found = timeline(BEGIN_S, BEGIN_S + 4, StepTimes(ends_s, np.ones(4), 1))
    assert spans(found) == [("start-up", 0, 10), ("training", 10, 12)]
    assert (found.step_ends_s - BEGIN_S).tolist() == [10, 11, 11, 12]


def test_a_sample_has_a_step_and_a_phase() -> None:
    found = make_timeline(20, 1.0, startup_s=5, warmup_steps=3)  # steps end at 5, 6, ... 17
    times_s = BEGIN_S + np.array([-1, 4, 5.5, 8.5, 19, 30])
    assert found.steps(times_s).tolist() == [1, 1, 2, 5, 13, 13]
    assert found.phases(times_s) == ["start-up", "start-up", "warm-up", "training", "end", "end"]


def test_samples_that_are_measured_training() -> None:
    """Samples of 2 s: the one that ends at 8 s is half of warm-up, that at 18 s three quarters of training."""
    found = make_timeline(20, 1.0, startup_s=5, warmup_steps=3)
    samples = make_samples(make_monitor_file(), 11)
    assert found.share_of_training(samples).tolist() == [0, 0, 0, 0, 0.5, 1, 1, 1, 1, 0.5, 0]
    assert found.phases_of(samples)[3:6] == ["start-up", "warm-up", "training"]
    whole = timeline(BEGIN_S, BEGIN_S + 20, None)
    assert whole.share_of_training(samples).tolist() == [0, *[1] * 10]
