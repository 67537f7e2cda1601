"""Writes benchmarks/results/coverage.md: what intervals, verdicts and warm-ups of simulated ladders are worth.

    python benchmarks/coverage.py      # two minutes

Ladders of two scales whose truth is known go through the functions of records and gates: between jobs the throughput
differs, between the repeats of a job less, and some trainings have slow steps that recur.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests")]

from ddp_ladder.common.findings import Finding  # noqa: E402
from ddp_ladder.gates.gate import performance  # noqa: E402
from ddp_ladder.gates.interval import Estimate, LogMean  # noqa: E402
from ddp_ladder.gates.points import ScalePoint  # noqa: E402
from ddp_ladder.gates.scaling import scale_points  # noqa: E402
from ddp_ladder.measuring.statistic import find_warmup  # noqa: E402
from ddp_ladder.measuring.timing import measure  # noqa: E402
from ddp_ladder.plan.plan import RunSpec  # noqa: E402
from ddp_ladder.records.record import Record  # noqa: E402
from ddp_ladder.records.steps import Steps  # noqa: E402
from ddp_ladder.settings.keys import GateThresholds  # noqa: E402
from ddp_ladder.settings.terms import MOST_REPEATS  # noqa: E402
from make_records import make_plan_of, make_record, make_specs, records_by_name, with_steps  # noqa: E402

RESULT = ROOT / "benchmarks/results/coverage.md"
EFFICIENCY, WITHIN = 0.8, 0.01
NEAR = 0.05  # thresholds are this far from the truth at most, relative
STEPS, PERIOD, SLOW = 200, 16, 5.0
Times = NDArray[np.float64]


@dataclass(frozen=True)
class Ladder:
    """A simulated ladder as the gate sees it. truth: its efficiency in these jobs; EFFICIENCY is that of any job."""

    point: ScalePoint
    points: tuple[ScalePoint, ...]
    figures: tuple[list[float], list[float]]  # of the baseline and of the scale
    truth: float


def ladder(generator: np.random.Generator, jobs: int, repeats: int, between: float, gate: GateThresholds) -> Ladder:
    """Return a ladder whose jobs differ by ``between``, and their repeats by WITHIN."""
    records, truths, all_figures = [], [], []
    for scale, rate in (("1x1", 1000.0), ("1x2", 2000.0 * EFFICIENCY)):
        of_job = rate * np.exp(generator.normal(0, between, jobs))
        figures = np.repeat(of_job, repeats) * np.exp(generator.normal(0, WITHIN, jobs * repeats))
        for spec, figure in zip(make_specs([scale], repeats=jobs * repeats), figures, strict=True):
            records.append(_record(spec, float(figure), (spec.repeat - 1) // repeats))
        truths.append(float(np.exp(np.log(of_job).mean())))
        all_figures.append(figures.tolist())
    points = _points(records, gate)
    return Ladder(points[1], points, (all_figures[0], all_figures[1]), truths[1] / truths[0] / 2)


def _record(spec: RunSpec, samples_per_s: float, job: int) -> Record:
    record = TEMPLATES.setdefault(spec.name, make_record(spec, spread=0.0))
    assert record.throughput
    assert record.job
    throughput = record.throughput.model_copy(
        update={"samples_per_s": samples_per_s, "blocks_samples_per_s": (samples_per_s,) * 12}
    )
    job_of_scale = record.job.model_copy(update={"id": f"{spec.scale}, {job}"})
    return record.model_copy(update={"throughput": throughput, "job": job_of_scale})


TEMPLATES: dict[str, Record] = {}


def _points(records: Sequence[Record], gate: GateThresholds) -> tuple[ScalePoint, ...]:
    specs = [record.spec for record in records]
    return scale_points(specs, records_by_name(list(records)), (), {"stage1": gate, "stage2": gate})


def judged(points: Sequence[ScalePoint], threshold: float, differ_percent: float = 2) -> Finding:
    """Return the gate's finding on the second point."""
    gate = GateThresholds(min_efficiency=threshold, max_efficiency=2, jobs_differ_percent=differ_percent)
    plan = replace(make_plan_of(make_specs(["1x1", "1x2"])), gates={"stage1": gate, "stage2": gate})
    (found,) = performance(plan, points[1], points, Path("results"))
    return found


def certain_before(one: Ladder, threshold: float) -> tuple[bool, bool]:
    """Return verdict and certainty by the rule before: Welch over all repeats; of one repeat, 15 blocks of 1 %."""
    baseline, here = (LogMean.of(figures) for figures in one.figures)
    log = here.over(baseline)
    value = (one.point["efficiency"] or 0) / threshold
    half = log.repeats.half_width if log.repeats else 1.96 * math.sqrt(2 / 15) * WITHIN * 1.25
    return value >= 1, abs(math.log(value)) > half


def coverage(ladders: int) -> Iterator[str]:
    """Yield the rows of the first table."""
    generator = np.random.default_rng(17)
    for between in (0.0, 0.02, 0.05):
        for jobs, repeats in ((1, 1), (1, 2), (1, 3), (1, 10), (2, 1), (2, 3), (2, 10)):
            held, of_any, widths, wrong, wrong_before, sure = [], [], [], 0, 0, 0
            for _ in range(ladders):
                one = ladder(generator, jobs, repeats, between, GateThresholds())
                efficiency = one.point.of("efficiency") or Estimate(0.0)
                if efficiency.low is not None and efficiency.high is not None:
                    truth = one.truth if jobs == 1 else EFFICIENCY
                    held.append(efficiency.low <= truth <= efficiency.high)
                    widths.append(math.log(efficiency.high / efficiency.low) / 2)
                if efficiency.log and efficiency.log.repeats:
                    low, high = efficiency.log.interval_of_any_job(efficiency.value)
                    of_any.append(low is None or high is None or low <= EFFICIENCY <= high)
                threshold = EFFICIENCY * math.exp(generator.uniform(-NEAR, NEAR))
                right = threshold <= EFFICIENCY
                found = judged(one.points, threshold)
                ok, is_certain = found.ok, not found.uncertain
                ok_before, was_certain = certain_before(one, threshold)
                wrong += is_certain and ok != right
                wrong_before += was_certain and ok_before != right
                sure += is_certain
            yield _row(
                f"{100 * between:.0f} %", jobs, repeats, _share(held), _percent(widths), _share(of_any),
                f"{100 * wrong_before / ladders:.1f} %", f"{100 * wrong / ladders:.1f} %",
                f"{100 * sure / ladders:.0f} %",
            )  # fmt: skip


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _share(values: Sequence[bool]) -> str:
    return f"{100 * float(np.mean(values)):.0f} %" if values else "none"


def _percent(half_widths: Sequence[float]) -> str:
    return f"{100 * math.expm1(float(np.median(half_widths))):.1f} %" if half_widths else "none"


def every(generator: np.random.Generator, repeats: int) -> Iterator[Times]:
    """Each 16th step takes 5 times as long, at the same steps of all repeats."""
    first = int(generator.integers(PERIOD))
    for _ in range(repeats):
        times_s = _ordinary(generator)
        times_s[first::PERIOD] *= SLOW
        yield times_s


def at_random(generator: np.random.Generator, repeats: int) -> Iterator[Times]:
    """One step in 16 takes 5 times as long, at other steps of each repeat."""
    for _ in range(repeats):
        times_s = _ordinary(generator)
        times_s[generator.random(STEPS) < 1 / PERIOD] *= SLOW
        yield times_s


def at_random_alike(generator: np.random.Generator, repeats: int) -> Iterator[Times]:
    """One step in 16 takes 5 times as long, at the same steps of all repeats."""
    slow = generator.random(STEPS) < 1 / PERIOD
    for _ in range(repeats):
        times_s = _ordinary(generator)
        times_s[slow] *= SLOW
        yield times_s


def no_slow_steps(generator: np.random.Generator, repeats: int) -> Iterator[Times]:
    """No step is slow."""
    for _ in range(repeats):
        yield _ordinary(generator)


def _ordinary(generator: np.random.Generator) -> Times:
    """Step times of 1 s with 5 % of noise, and WITHIN between repeats: the same in the long run at both scales."""
    return np.asarray(generator.normal(0, WITHIN) + 1 + generator.normal(0, 0.05, STEPS))


Draw = Callable[[np.random.Generator, int], Iterator[Times]]


def slow_steps(draw: Draw, ladders: int) -> str:
    """Return a row of the second table: one job of 3 repeats per scale, jobs do not differ."""
    generator = np.random.default_rng(18)
    gate = GateThresholds(jobs_differ_percent=0)
    held, widths, doubtful = [], [], 0
    for _ in range(ladders):
        specs = make_specs(["1x1", "1x2"], repeats=3)
        templates = [TEMPLATES.setdefault(spec.name, make_record(spec, spread=0.0)) for spec in specs]
        # The 100 draws of each scale keep the ladders those of the published table.
        drawn = {scale: list(draw(generator, MOST_REPEATS)) for scale in ("1x1", "1x2")}
        longer = {"1x1": 1.0, "1x2": 1 / EFFICIENCY}
        times = [longer[str(spec.scale)] * drawn[str(spec.scale)][spec.repeat - 1] for spec in specs]
        first = _points([with_steps(*each) for each in zip(templates, times, strict=True)], gate)
        known = first[1].of("efficiency")
        if known is None or known.low is None or known.high is None:
            continue
        held.append(known.low <= EFFICIENCY <= known.high)
        widths.append(math.log(known.high / known.low) / 2)
        threshold = EFFICIENCY * math.exp(generator.uniform(-NEAR, NEAR))
        found = judged(first, threshold, 0)
        doubtful += found.uncertain
    assert draw.__doc__
    return _row(draw.__doc__.rstrip("."), _share(held), _percent(widths), f"{100 * doubtful / ladders:.0f} %")


# Warm-up: 64 samples in ordinary steps of 0.32 s: 200 samples/s.

STEP_S, SAMPLES = 0.32, 64


def plateau(slow: int, steps: int, factor: float = 5.0) -> Times:
    """The first steps are slow."""
    times_s = np.ones(steps)
    times_s[:slow] *= factor
    return times_s


def epochs(steps: int, length: int, slow: int) -> Times:
    """The last steps of each epoch are slow."""
    times_s = np.ones(steps)
    for first in range(0, steps, length):
        times_s[first + length - slow : first + length] *= 4
    return times_s


def recurring(steps: int) -> Times:
    """Each 16th step is slow."""
    times_s = np.ones(steps)
    times_s[PERIOD - 1 :: PERIOD] *= SLOW
    return times_s


def late(steps: int, first: int) -> Times:
    """The steps from one on take twice as long."""
    times_s = np.ones(steps)
    times_s[first:] *= 2
    return times_s


WARMUPS: tuple[tuple[str, Times, float], ...] = (  # with the samples per second of a long run
    ("25 of 60 steps 5 times as long", plateau(25, 60), 200),
    ("40 of 100 steps 5 times as long", plateau(40, 100), 200),
    ("60 of 400 steps 5 times as long", plateau(60, 400), 200),
    ("60 of 200 steps 1.2 times as long", plateau(60, 200, 1.2), 200),
    ("compilation of 300 steps' time, 40 steps 3 times, 20 steps 1.5 times as long; 200 steps",
     np.concatenate([[300.0], np.full(39, 3.0), np.full(20, 1.5), np.ones(140)]), 200),
    ("from 5 times as long, falling by a tenth in 2 steps; 300 steps", 1 + 4 * np.exp(-np.arange(300) / 20), 200),
    ("55 of 100 steps 5 times as long", plateau(55, 100), 200),
    ("80 of 100 steps 5 times as long", plateau(80, 100), 200),
    ("noise alone, 60 steps", np.ones(60), 200),
    ("noise alone, 1000 steps", np.ones(1000), 200),
    ("20 % faster from the first to the last of 300 steps", np.geomspace(1, 0.8, 300), 200 * math.log(1.25) / 0.2),
    ("25 % slower from the first to the last of 300 steps", np.geomspace(1, 1.25, 300), 200 * math.log(1.25) / 0.25),
    ("each 16th of 300 steps 5 times as long", recurring(300), 200 / (1 + (SLOW - 1) / PERIOD)),
    ("the last 8 steps of each epoch of 50 4 times as long; 300 steps", epochs(300, 50, 8), 200 / (1 + 8 * 3 / 50)),
    ("the last 100 of 300 steps twice as long", late(300, 200), 200 / (1 + 1 / 3)),
)  # fmt: skip


def warmups(runs: int, noise: float) -> Iterator[str]:
    """Yield the rows of the third table."""
    for name, times, truth in WARMUPS:
        ends, steady, rates = [], [], []
        for seed in range(runs):
            generator = np.random.default_rng(seed)
            times_s = STEP_S * times * np.exp(generator.normal(0, noise, len(times)))
            warmup = find_warmup(times_s, 10, 30)
            count = len(times_s)
            size, nothing = np.ones(count, np.int64), np.zeros(count, np.int64)
            steps = Steps(size, np.full(count, SAMPLES), nothing, times_s, np.zeros(count))
            throughput, _ = measure([steps], warmup, [], None, 9.0)
            ends.append(warmup.steps)
            steady.append(warmup.stable)
            rates.append(throughput.samples_per_s)
        low, middle, high = np.quantile(ends, [0.05, 0.5, 0.95])
        left_out = f"{middle:.0f}" + ("" if low == high else f" ({low:.0f} to {high:.0f})")
        yield _row(name, f"{truth:.0f}", f"{np.median(rates):.0f}", left_out, _share(steady))


TEXT = """# What intervals, verdicts and warm-ups are worth

Simulated by `benchmarks/coverage.py` through the functions of `records` and `gates`.

## Intervals of the efficiency, and gates

True efficiency {efficiency}; the repeats of a job differ by {within:.0f} % (standard deviation), jobs as in the first
column; thresholds are up to {near:.0f} % from the truth; {ladders} ladders in each row.

- *Holds*: the interval that is shown holds what it is of: of one job per scale, the efficiency in these jobs; of
  several jobs, the efficiency of any job.
- *Decides*: the interval by which a gate decides holds the efficiency of any job. It adds what jobs usually differ by:
  2 % (`jobs_differ_percent`), so where they differ by 5 %, only several jobs show it.
- *Before*: by the rule that it replaces, for which the repeats of one job, and the blocks of one repeat, showed all
  that differs.

{coverage}

## Slow steps that recur

One job of 3 repeats of {steps} steps per scale; jobs do not differ (`jobs_differ_percent: 0`);
{slow_ladders} ladders in each row.

{slow_steps}

## Warm-up

Runs with 5 % of noise in each step and at least 10 steps of warm-up; {runs} runs in each row. *Told*: the figure of the
median run. *Left out*: median of the steps (5 to 95 % of the runs).

{warmups}
"""
COVERAGE = (
    "jobs differ by", "jobs", "repeats in each", "holds", "half the width", "decides", "wrong and certain before",
    "wrong and certain", "certain",
)  # fmt: skip
SLOW_STEPS = ("steps", "interval holds", "half the width", "uncertain")
WARMUP = ("steps", "true samples/s", "told", "left out", "called steady")


def _table(headings: Sequence[str], rows: Iterable[str]) -> str:
    return "\n".join((_row(*headings), _row(*["---"] * len(headings)), *rows))


def main(ladders: int = 400, slow_ladders: int = 80, runs: int = 100) -> None:
    """Write the table."""
    draws = (no_slow_steps, every, at_random, at_random_alike)
    text = TEXT.format(
        efficiency=EFFICIENCY,
        within=100 * WITHIN,
        near=100 * NEAR,
        steps=STEPS,
        ladders=ladders,
        slow_ladders=slow_ladders,
        runs=runs,
        coverage=_table(COVERAGE, coverage(ladders)),
        slow_steps=_table(SLOW_STEPS, (slow_steps(draw, slow_ladders) for draw in draws)),
        warmups=_table(WARMUP, warmups(runs, 0.05)),
    )
    RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
