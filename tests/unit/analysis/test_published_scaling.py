"""Predictions against published tables: cut after the small scales, the largest one is predicted."""

from __future__ import annotations

import statistics

import prediction
import pytest
from prediction import Score

TABLES = prediction.read_tables()
HELD_OUT = prediction.read_tables(prediction.HELD_OUT)


def test_there_are_tables_enough_and_each_says_where_it_is_from() -> None:
    assert len(TABLES) >= 12
    assert len({table.source for table in TABLES}) >= 8
    for table in (*TABLES, *HELD_OUT):
        assert len(table.series.points) >= 4, table.model
        assert table.url.startswith("https://"), table.model
        assert all(len(point.repeats) == 1 for point in table.series.points), table.model


@pytest.mark.parametrize("tables", [TABLES, HELD_OUT], ids=["tables", "held out"])
@pytest.mark.parametrize("cases", [prediction.largest_from_all_others, prediction.largest_from_half])
def test_the_largest_scale_is_predicted_and_the_interval_holds_it(
    cases: prediction.Cut, tables: tuple[prediction.Table, ...]
) -> None:
    score = Score.of(cases(tables))
    assert score.cases == len(tables)
    assert score.median_error <= 0.05
    assert score.covered >= 0.8
    assert score.median_width <= 0.3, "an interval that holds everything says nothing"


def test_from_one_node_the_first_scale_of_several_is_held_by_the_interval() -> None:
    score = Score.of(prediction.first_of_several_nodes(TABLES))
    assert score.cases >= 50
    assert score.covered >= 0.8


def test_each_source_alone_is_predicted_with_constants_found_without_it() -> None:
    held = prediction.covered_without_own_source(TABLES)
    assert statistics.mean(one for values in held.values() for one in values) >= 0.8


def test_the_page_shows_the_figures_of_this_code() -> None:
    text = prediction.DOC.read_text()
    assert prediction.summary(TABLES) in text
    assert prediction.summary(HELD_OUT) in text, "run python benchmarks/prediction.py"
