"""Figures that texts quote are those of the files that benchmarks wrote, or of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.analysis import decisions, prediction
from ddp_ladder.archive import archive
from ddp_ladder.assembly import run_records
from ddp_ladder.diagnosis import correctness
from ddp_ladder.gates import attribution
from ddp_ladder.measuring import owners, timing
from ddp_ladder.nodes import critical_rank, findings
from ddp_ladder.plan import short_runs
from ddp_ladder.preflight import nodes as node_facts
from ddp_ladder.production import slower
from ddp_ladder.run import interruption
from ddp_ladder.run import preflight as run_preflight
from ddp_ladder.settings.keys import BatchRange, Monitor, Report
from ddp_ladder_instrument import contract

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


def percent(fraction: float) -> str:
    return f"{100 * fraction:g} %"


def default(section: type, key: str) -> Any:
    return section.model_fields[key].default  # type: ignore[attr-defined]


SINGLE, ROWS = contract.SINGLE_ROWS, contract.MOST_ROWS
# Page, and what it says with the values of the code.
OF_CODE = [
    ("archive", f"texts of more than {archive.LARGEST / 1e6:g} MB"),
    ("attribution", f"in at least {percent(critical_rank.MOST_STEPS)} of the steps"),
    ("attribution", f"memory is more than {percent(attribution.FULL)} full"),
    ("attribution", f"more than {ROWS:,} steps, the parts are those of the first {SINGLE:,}"),
    ("climbing", f"within {interruption.END_S:g} seconds"),
    ("closed-gate", {0.5: "at least half of them"}[correctness.MOST_SHARED]),
    ("measuring", f"above {percent(owners.MOST_UNEXPLAINED)} the figure is doubtful"),
    ("measuring", f"takes over {percent(timing.NOTABLE_EXCESS)} longer"),
    ("measuring", f"more than {ROWS:,} steps those after {SINGLE:,}"),
    ("measuring", f"{short_runs.SLOWER} slower"),
    ("own-sbatch", f"{short_runs.SLOWER} slower"),
    ("monitoring", f"busy less than {percent(findings.LEAST_BUSY)} of the time"),
    ("monitoring", f"in {percent(findings.MUCH_THROTTLED)} of the samples"),
    ("monitoring", f"{percent(findings.FULL_CPUS)} busy, with loader workers"),
    ("monitoring", f"wait for data {percent(findings.MUCH_WAIT)} of the step time"),
    ("monitoring", f"carry {percent(findings.FULL_LINK)} of their rate"),
    ("monitoring", f"above {run_records.MOST_RANKS} ranks"),
    ("monitoring", f"a line every {default(Monitor, 'every_s'):g} seconds"),
    ("my-script", f"within {percent(1 - short_runs.NEARLY_BEST)} of the best throughput"),
    ("my-script", f"leaves {percent(default(BatchRange, 'headroom_percent') / 100)} of a GPU's memory free"),
    ("own-sbatch", f"for {contract.WITNESS_STEPS} steps at most"),
    ("preflight", f"{node_facts.MESSAGE_BYTES // 1024} KiB, more than any MTU"),
    ("preflight", f"to {run_preflight.LARGEST_BYTES // 1024**2} MiB"),
    ("production", f"the mean of {slower.WINDOWS * slower.WINDOW_S / 60:g} minutes".replace("10", "ten")),
    ("proposal", f"or {percent(decisions.DEFAULT_EFFICIENCY)}, and"),
    ("proposal", f"`report.reserve` is {default(Report, 'reserve'):g}"),
    ("proposal", f"wider than a factor of {prediction.MOST_FACTOR:g}"),
]  # fmt: skip


@pytest.mark.parametrize(("page", "words"), OF_CODE)
def test_a_figure_in_a_page_is_that_of_the_code(page: str, words: str) -> None:
    assert words in " ".join((ROOT / f"docs/{page}.md").read_text().split())
