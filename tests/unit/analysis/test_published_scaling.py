"""Predictions against published tables, each with losses found without the table's source: the bars of the page."""

from __future__ import annotations

import json
from dataclasses import asdict

import prediction
import pytest
from prediction import METHODS, OURS, Score

TABLES = prediction.read_tables()


@pytest.fixture(scope="module")
def scores() -> dict[str, Score]:
    return prediction.scores(TABLES)


def test_the_tables_are_many_of_many_sources_and_each_says_where_it_is_from() -> None:
    assert len(TABLES) >= 300
    assert len({table.source for table in TABLES}) >= 30
    networks = ("PCIe", "NVLink", "NVSwitch", "InfiniBand", "25 Gbit/s", "Ethernet", "Aries")
    assert all(any(name in table.hardware for table in TABLES) for name in networks)
    for table in TABLES:
        assert len(table.series.points) >= 3, table.model
        assert table.url.startswith("https://"), table.model
        assert all(len(point.repeats) == 1 for point in table.series.points), table.model
        rates = [1 / point.gpu_s_per_sample for point in table.series.points]
        assert max(rates) <= 1.05 * rates[0], table.model


@pytest.mark.parametrize("cut", prediction.CUTS)
def test_intervals_hold_nine_of_ten_and_say_something(cut: str, scores: dict[str, Score]) -> None:
    score = scores[cut]
    assert 0.87 <= score.inside <= 0.95
    assert score.factor < 2, "the median interval"
    assert score.known > 0.6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", prediction.CUTS)
def test_it_is_nearer_than_what_anybody_would_draw(cut: str, method: str, scores: dict[str, Score]) -> None:
    (ours, our_tail), (others, their_tail) = scores[cut].errors[OURS], scores[cut].errors[method]
    assert ours <= others
    assert our_tail <= 1.05 * their_tail, "within the noise of one table more or less"


def test_the_page_and_the_calibration_are_those_of_this_code(scores: dict[str, Score]) -> None:
    text = prediction.DOC.read_text()
    assert prediction.results(scores) in text, "run python benchmarks/prediction.py"
    half = scores["the largest scale, from half of its GPUs or fewer"]
    median, tail = half.errors[OURS]
    said = " ".join((prediction.ROOT / "docs/proposal.md").read_text().split())
    assert f"Of {half.cases} published tables" in said
    assert f"{half.inside:.0%} of the largest scales".replace("%", " %") in said
    assert f"half of the errors were below {median:.1%}, nine of ten below {tail:.0%}".replace("%", " %") in said
    shipped = json.loads(prediction.CALIBRATION.read_text())
    found = {kind: asdict(losses) for kind, losses in prediction.calibrate(TABLES).items()}
    assert shipped.keys() == found.keys()
    assert all(found[kind] == pytest.approx(losses, abs=2e-3) for kind, losses in shipped.items())
