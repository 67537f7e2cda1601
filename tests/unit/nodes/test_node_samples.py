"""The samples of a node: what is read, and what is refused; phases of a run, and the samples in them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ddp_ladder.nodes.usage import StepTimes, Timeline, parse_samples, timeline
from make_usage import BEGIN_S, make_monitor_file, make_samples, make_timeline, samples_text


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


def test_samples_that_are_measured_training() -> None:
    """Samples of 2 s: the one that ends at 8 s is half of warm-up, that at 18 s three quarters of training."""
    found = make_timeline(20, 1.0, startup_s=5, warmup_steps=3)
    samples = make_samples(make_monitor_file(), 11)
    assert found.share_of_training(samples).tolist() == [0, 0, 0, 0, 0.5, 1, 1, 1, 1, 0.5, 0]
    whole = timeline(BEGIN_S, BEGIN_S + 20, None)
    assert whole.share_of_training(samples).tolist() == [0, *[1] * 10]


def test_columns_of_node_and_gpus() -> None:
    about = make_monitor_file(gpu_count=2)
    read = parse_samples(samples_text(about, 3, gpu1_throttle_reasons=["none", "power_cap+thermal", ""]), about)
    assert len(read) == 3
    assert read.times_s.tolist() == [BEGIN_S, BEGIN_S + 2, BEGIN_S + 4]
    assert read.begins_s.tolist() == [BEGIN_S, BEGIN_S, BEGIN_S + 2]
    assert read.column("cpu_fraction").tolist() == [0.35] * 3
    assert read.gpus[1].columns["power_w"].tolist() == [340.0] * 3
    assert read.gpus[1].throttle_reasons == ((), ("power_cap", "thermal"), None)
    assert not any(name.startswith("gpu") for name in read.columns)


def test_a_cut_last_line_is_left_out_and_a_header_is_no_sample() -> None:
    about = make_monitor_file(gpu_count=1)
    text = samples_text(about, 3)
    assert [len(parse_samples(text[:-cut], about)) for cut in (1, 7, 40)] == [2, 2, 2]
    assert len(parse_samples(samples_text(about, 0), about)) == 0


DAMAGED = {
    "it has no column time_s": lambda text: text[:30],
    "it has no column cpu_fraction": lambda text: text.replace("cpu_fraction", "cpu_share", 1),
    "a line is incomplete": lambda text: text.replace(",340.0", "", 1),
    "gpu0_power_w contains something else than numbers": lambda text: text.replace(",340.0", ",much", 1),
    "gpu0_power_w contains an impossible figure": lambda text: text.replace(",340.0", ",-1", 1),
    "cpu_fraction contains an impossible figure": lambda text: text.replace(",0.35,", ",nan,", 1),
    "its time_s is missing or goes back": lambda text: text.replace(f"{BEGIN_S + 2:.3f}", f"{BEGIN_S - 2:.3f}"),
}


@pytest.mark.parametrize("problem", DAMAGED)
def test_damage_is_named(problem: str) -> None:
    about = make_monitor_file(gpu_count=2)
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_samples(DAMAGED[problem](samples_text(about, 3)), about)
