"""`snakemake compare`: on records alone, as typed."""

from __future__ import annotations

from make_runs import write_ladder
from project_copy import Checkout


def test_compares_variants_as_typed(checkout: Checkout) -> None:
    write_ladder(checkout.results, scales=("1x1",), variants=("default", "other"))
    done = checkout.snakemake("compare")
    assert done.returncode == 0, done.stdout
    assert "At 1x1 weak, not beyond chance: other 1.0" in done.stdout
    assert "written  results/report/comparison.csv" in done.stdout
    assert "Nothing has been measured" not in done.stdout  # the summary of a climb
