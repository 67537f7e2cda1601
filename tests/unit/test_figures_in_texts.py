"""Figures of benchmarks that texts quote are those of the files that the benchmarks wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "CHANGELOG.md", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
Found = Any  # the content of a file of benchmarks/results


def of_scale(found: Found) -> Iterator[str]:
    rows = {(row["ranks"], row["steps"]): row for row in found["rows"]}
    for place in ((1024, 500), (4096, 20_000)):
        row = rows[place]
        yield "{} s of CPU and {:.0f} MB at {:,} ranks x {:,} steps".format(
            in_digits(row["assemble_s"]), row["peak_memory_mb"], *place
        )


def of_hooks(found: Found) -> Iterator[str]:
    added_us = sorted(each["added_us"] for each in found["steps"])
    longest = max(found["steps"], key=lambda each: each["step_ms"])
    share = 100 * longest["added_us"] / (1000 * longest["step_ms"])
    yield f"{added_us[0]:.0f} to {added_us[-1]:.0f} microseconds per step: {share:.1f} % of a step of 5 ms"


QUOTED: Sequence[tuple[str, Callable[[Found], Iterator[str]], str]] = [
    ("scale", of_scale, r"MB at [\d,]+ ranks x [\d,]+ steps"),
    ("instrument_overhead", of_hooks, r"microseconds per step: [\d.]+ %"),
]


def in_digits(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


@pytest.mark.parametrize(("file", "sentences", "form"), QUOTED, ids=[file for file, *_ in QUOTED])
def test_a_figure_in_a_text_is_that_of_its_benchmark(
    file: str, sentences: Callable[[Found], Iterator[str]], form: str
) -> None:
    """All texts that have such a sentence, and at least one of them: see the benchmark's own head for how to repeat."""
    wanted = [*sentences(json.loads((ROOT / f"benchmarks/results/{file}.json").read_text()))]
    texts = [" ".join(path.read_text().split()) for path in TEXTS]
    for sentence in wanted:
        assert any(sentence in text for text in texts), sentence
    quoted = sum(len(re.findall(form, text)) for text in texts)
    assert quoted == sum(text.count(sentence) for text in texts for sentence in wanted)


def test_the_page_of_10000_runs_is_small() -> None:
    assert json.loads((ROOT / "benchmarks/results/report_10000_records.json").read_text())["page_mb"] <= 6
