"""docs/torchrun-or-srun.md shows the figures that were measured last, and what they are called."""

from __future__ import annotations

import json

import pytest
import torchrun_or_srun as benchmark

KEPT = json.loads(benchmark.RESULTS.read_text())


def test_the_page_shows_the_kept_figures() -> None:
    page = benchmark.DOC.read_text()
    assert benchmark.with_table(page, KEPT) == page, "run python benchmarks/torchrun_or_srun.py"


def test_the_conclusions_below_the_table_follow_from_it() -> None:
    """Read them again, and change them, if new figures fail here."""
    found = {(cause["part"], cause["variant"], cause["against"]): cause for cause in KEPT["causes"]}

    def no_difference(part: str, variant: str, against: str) -> bool:
        cause = found[part, variant, against]
        return bool(cause["low"] <= 1 <= cause["high"])

    assert no_difference("binding", "own-cores", "srun")
    assert no_difference("nodes", "default", "srun")
    assert no_difference("binding", "default", "own-cores")
    assert no_difference("binding", "workers", "workers-own-cores")
    assert 0.5 < found["binding", "same-cores", "own-cores"]["ratio"] < 0.68
    assert 0.45 < found["binding", "all-threads", "default"]["ratio"] < 0.6
    assert found["order", "cyclic", "block"]["high"] < 0.75


def test_the_causes_are_those_of_the_kept_rates() -> None:
    assert benchmark.explained(KEPT["samples_per_s"]) == [pytest.approx(cause) for cause in KEPT["causes"]]
