"""What is drawn of samples: no peak is lost, bands hold every line, and dips have the phase that explains them."""

import numpy as np
import pytest
from ddp_ladder.nodes.read import Phase, Span
from ddp_ladder.report.traces import Dip, Trace, band, dips, downsampled, labelled, merged

EVERY_S = 2.0
SPANS = [
    Span("start-up", 0, 20),
    Span("warm-up", 20, 40),
    Span("training", 40, 100),
    Span("between epochs", 100, 101),
    Span("training", 101, 200),
    Span("validation", 200, 210),
    Span("training", 210, 300),
    Span("end", 300, 310),
]


def trace(values: list[float] | np.ndarray, label: str = "GPU 0", begin_s: float = EVERY_S) -> Trace:
    figures = np.asarray(values, dtype=np.float64)
    return Trace(label, begin_s + EVERY_S * np.arange(len(figures)), figures)


def busy(changes: dict[float, float], seconds: float = 310) -> Trace:
    """A GPU that is busy but for the samples that end at these times."""
    values = np.full(int(seconds / EVERY_S), 0.98)
    for at_s, value in changes.items():
        values[round(at_s / EVERY_S) - 1] = value
    return trace(values)


def test_a_picture_keeps_the_lowest_and_the_highest_value_at_their_own_times() -> None:
    values = np.random.default_rng(1).random(10_000)
    values[1234], values[8765] = -5.0, 7.0
    full = trace(values)
    shown = downsampled(full, 100)
    assert len(shown.values) <= 200
    assert (np.diff(shown.times_s) > 0).all()
    for value, index in ((-5.0, 1234), (7.0, 8765)):
        assert shown.times_s[list(shown.values).index(value)] == full.times_s[index]


def test_a_short_line_stays_as_it_was_sampled() -> None:
    short = trace([0.1, 0.9, 0.5])
    assert downsampled(short, 2) is short


def test_a_gap_in_the_samples_is_a_gap_in_the_line() -> None:
    values = np.full(1000, 0.5)
    values[400:600] = np.nan
    shown = downsampled(trace(values), 10)
    assert np.isnan(shown.values).sum() == 2  # one point in each of two bins
    assert np.isfinite(shown.values).sum() > 0


def test_a_band_goes_from_the_lowest_to_the_highest_line() -> None:
    traces = [trace(np.full(500, level), f"GPU {k}") for k, level in enumerate([0.2, 0.5, 0.6, 0.9, 0.95])]
    traces[1].values[250] = 0.01  # one sample of one GPU
    found = band("GPUs", traces, 50)
    assert len(found.times_s) == 50
    assert found.traces == 5
    assert set(found.high) == {0.95}
    assert found.middle == pytest.approx(0.6)
    assert sorted(set(found.low)) == [0.01, 0.2]
    assert (found.low == 0.01).sum() == 1


def test_the_line_of_a_band_is_the_median_of_what_the_gpus_did_in_the_mean() -> None:
    """A short pause in each bin shows in the band, but hardly in its line."""
    values = np.tile([*[1.0] * 9, 0.0], 20)
    found = band("GPUs", [trace(values, f"GPU {k}") for k in range(9)], 20)
    assert set(found.low) == {0.0}
    assert set(found.high) == {1.0}
    assert found.middle == pytest.approx(0.9)


def test_a_band_of_few_samples_has_as_many_points_as_samples() -> None:
    found = band("GPUs", [trace([0.1, 0.2, 0.3]), trace([0.3, np.nan, 0.1])], 100)
    assert len(found.times_s) == 3
    assert found.low.tolist() == [0.1, 0.2, 0.1]
    assert found.middle == pytest.approx([0.2, 0.2, 0.2])


def test_a_band_of_nothing_is_empty() -> None:
    assert len(band("GPUs", [], 10).times_s) == 0
    assert len(band("GPUs", [trace([np.nan, np.nan])], 10).times_s) == 0


def test_spans_too_close_to_be_told_apart_are_one() -> None:
    pauses: list[Phase] = ["validation"]
    spans = [Span("validation", float(k), k + 0.5) for k in range(10)] + [Span("validation", 50.0, 51.0)]
    assert [(s.begin_s, s.end_s) for s in merged(spans, pauses, 1.0)] == [(0.0, 9.5), (50.0, 51.0)]
    assert len(merged(spans, pauses, 0.1)) == 11
    assert merged(spans, ["warm-up"], 1.0) == []


def found_dips(changes: dict[float, float], spans: list[Span] | None = None) -> list[tuple[str, float, float]]:
    found = dips([busy({}), busy(changes)], SPANS if spans is None else spans, EVERY_S)
    return [(dip.phase, dip.begin_s, dip.end_s) for dip in found]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({102: 0.5}, [("between epochs", 100, 102)]),  # half of this sample is the pause
        ({150: 0.3}, [("training", 148, 150)]),
        (dict.fromkeys(range(202, 212, 2), 0.1), [("validation", 200, 210)]),
        ({102: 0.5, 150: 0.3}, [("between epochs", 100, 102), ("training", 148, 150)]),
        (dict.fromkeys(range(42, 302, 2), 0.6), [("training", 40, 300)]),  # its pauses do not explain all of it
        ({10: 0.0, 30: 0.1, 306: 0.0}, []),  # start-up, warm-up and end
        ({150: 0.81}, []),
        ({150: 0.79}, [("training", 148, 150)]),
    ],
)
def test_a_dip_has_the_phase_that_explains_it(
    changes: dict[float, float], expected: list[tuple[str, float, float]]
) -> None:
    assert found_dips(changes) == expected


def test_without_phases_a_dip_is_of_the_training() -> None:
    assert found_dips({150: 0.3}, [Span("run", 0, 310)]) == [("training", 148, 150)]


def test_gpus_that_report_nothing_have_no_dips() -> None:
    assert dips([trace([np.nan] * 10)], SPANS, EVERY_S) == []
    assert dips([], SPANS, EVERY_S) == []


def test_labels_do_not_overlap_and_stay_on_the_axis() -> None:
    many = [Dip("between epochs", float(t), t + 2.0, 0.5) for t in range(0, 1000, 10)]
    many.append(Dip("validation", 500.0, 530.0, 0.1))
    shown = labelled(many, 0, 1000, letter_s=20, most=3)
    places = [place for place, _ in shown]
    halves = [10 * (len(dip.phase) + 1) for _, dip in shown]
    assert len(shown) == 3
    assert "validation" in [dip.phase for _, dip in shown]
    for k in (0, 1):
        assert places[k] + halves[k] <= places[k + 1] - halves[k + 1]
    assert places[0] >= halves[0]
    assert places[-1] <= 1000 - halves[-1]


def test_one_dip_of_each_phase_is_labelled_first() -> None:
    long_ones = [Dip("training", 300.0 * k, 300.0 * k + 20, 0.5) for k in range(1, 4)]
    short = Dip("validation", 10.0, 12.0, 0.1)
    assert short in [dip for _, dip in labelled([*long_ones, short], 0, 1200, letter_s=10, most=2)]
