"""Inject causes of lost time into real torchrun runs on this machine, and write what the attribution tells of them.

    python benchmarks/attribution.py --out benchmarks/results/attribution.md

The steps are sleeps, so that two cores are enough for four ranks; nodes are agents on this machine. What is told of the
same scale without a cause is subtracted. A cause is told right if its time is within 20 % (or 2 ms) and its kind is
right, and no other cause has more than 20 % of the injected time.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests")]

from ddp_ladder.gates.attribution import Attribution, Cause  # noqa: E402
from ddp_ladder.gates.points import ScalePoint  # noqa: E402
from ddp_ladder.nodes.critical_rank import Kind  # noqa: E402
from ddp_ladder.settings.terms import Scale  # noqa: E402
from injected_causes import STEPS, WARMUP_STEPS, Bench  # noqa: E402

SLOW_MS, STEP_MS, SLOW_LOAD_MS, JITTER_MS = 30.0, 36.0, 80.0, 20.0  # as in tests/scripts/causes.py
WITHIN, LEAST_MS = 0.2, 2.0
CAUSES = ("data", "imbalance", "computation", "communication", "rest")


@dataclass(frozen=True)
class Injected:
    """A cause on a scale, and what it costs by the script's own numbers, in ms per step. kind: of the imbalance.

    workers: of each loader. at_baseline: the cause is in the baseline, too. from_step: where it begins.
    """

    cause: str
    scale: str
    ms: Mapping[Cause, float]
    kind: Kind | None = None
    workers: int = 0
    at_baseline: bool = False
    from_step: int = 0

    @property
    def name(self) -> str:
        return f"{self.cause} {self.scale}"

    @property
    def ranks(self) -> int:
        return Scale.parse(self.scale).world_size


def _jitter_ms(ranks: int) -> tuple[float, float]:
    """Return mean and mean maximum over the ranks of the random work, as the script draws it after the warm-up."""
    draws = []
    for rank in range(ranks):
        at_random = random.Random(rank)
        draws.append([at_random.expovariate(1 / JITTER_MS) for _ in range(STEPS)][WARMUP_STEPS:])
    most = [max(step) for step in zip(*draws, strict=True)]
    return sum(map(sum, draws)) / ranks / len(most), sum(most) / len(most)


def _jitter(ranks: int, at_baseline: bool) -> dict[Cause, float]:
    mean, most = _jitter_ms(ranks)
    alone, _ = _jitter_ms(1) if at_baseline else (0.0, 0.0)
    return {"imbalance": most - mean, "computation": mean - alone}


S = SLOW_MS
CASES: Sequence[Injected] = (
    Injected("none", "2x1", {}),
    Injected("none", "4x1", {}),
    Injected("loaders", "2x1", {"data": SLOW_LOAD_MS - STEP_MS}, workers=1),
    Injected("loaders", "4x1", {"data": SLOW_LOAD_MS - STEP_MS}, workers=1),
    Injected("loader", "2x1", {"imbalance": SLOW_LOAD_MS - STEP_MS}, "persistent", workers=1),
    Injected("alternating", "2x1", {"imbalance": S}, "varying"),
    Injected("alternating", "4x1", {"imbalance": S}, "varying"),
    Injected("jitter", "2x1", _jitter(2, at_baseline=True), "varying", at_baseline=True),
    Injected("jitter", "4x1", _jitter(4, at_baseline=True), "varying", at_baseline=True),
    Injected("new_jitter", "4x1", _jitter(4, at_baseline=False), "varying"),
    Injected("stall_10_0", "2x1", {"computation": S}),
    Injected("stall_10_5", "2x1", {"computation": S}),
    Injected("stall_16_3", "2x1", {"computation": S}),
    Injected("dataset", "2x1", {"data": S}),
    Injected("rank_dataset", "2x1", {"imbalance": S}, "persistent"),
    Injected("rank_forward", "2x1", {"imbalance": S}, "persistent"),
    Injected("rank_forward", "4x1", {"imbalance": S}, "persistent"),
    Injected("rank_backward", "2x1", {"imbalance": S}, "persistent"),
    Injected("rank_before_optimizer", "2x1", {"imbalance": S}, "persistent"),
    Injected("rank_after_optimizer", "2x1", {"imbalance": S}, "persistent"),
    Injected("half", "2x1", {"imbalance": S}, "persistent", from_step=STEPS // 2),
    Injected("forward", "2x1", {"computation": S}),
    Injected("backward", "2x1", {"computation": S}),
    Injected("checkpoint", "2x1", {"imbalance": S}, "occasional"),
    Injected("checkpoints", "2x1", {"rest": S}),
    Injected("growth", "2x1", {"computation": S * (STEPS + WARMUP_STEPS) / STEPS}),
    Injected("validation", "2x1", {}),
    Injected("link", "2x1", {"communication": S}),
    Injected("link+dataset", "2x1", {"communication": S, "data": S}),
    Injected("link+rank_forward", "2x1", {"communication": S, "imbalance": S}, "persistent"),
    Injected("dataset+forward", "2x1", {"computation": S, "data": S}),
)


@dataclass(frozen=True)
class Told:
    """What the attribution tells of a cause. found: None if nothing is lost.

    anyway_ms: what it tells of the same scale without a cause: more ranks share this machine's cores.
    """

    injected: Injected
    point: ScalePoint
    found: Attribution | None
    anyway_ms: Mapping[Cause, float]
    measured_steps: float

    @property
    def all_ms(self) -> dict[Cause, float]:
        """Return the time of each cause, in ms per step."""
        return {loss.cause: 1000 * loss.lost_s for loss in self.found.losses} if self.found else {}

    @property
    def ms(self) -> dict[Cause, float]:
        """Return what the injected cause added to each."""
        return {cause: ms - self.anyway_ms.get(cause, 0.0) for cause, ms in self.all_ms.items()}

    @property
    def wanted_ms(self) -> dict[Cause, float]:
        """Return what was injected, per measured step: the warm-up may be longer than the least."""
        part = min(1.0, (STEPS - self.injected.from_step) / self.measured_steps)
        return {cause: part * ms for cause, ms in self.injected.ms.items()}

    @property
    def wrong(self) -> str:
        """Return what is wrong with it; empty if cause, size and kind are right, or there is no cause."""
        if self.injected.cause == "none":
            return ""
        total = sum(self.wanted_ms.values())
        for cause in {*self.ms, *self.wanted_ms}:
            wanted, told = self.wanted_ms.get(cause, 0.0), self.ms.get(cause, 0.0)
            if abs(told - wanted) > max(WITHIN * (wanted or total), LEAST_MS):
                return f"{cause}: {told:.1f} for {wanted:.1f} ms"
        kind = self.point.step.imbalance_kind if self.point.step else None
        if self.injected.kind and kind != self.injected.kind:
            return f"imbalance is {kind}, not {self.injected.kind}"
        return ""


def tell(bench: Bench, injected: Injected) -> Told:
    """Inject a cause and return what is told of it, beyond what is told without a cause."""
    anyway: Mapping[Cause, float] = {}
    if injected.cause != "none":
        anyway = Told(injected, *bench.told("none", injected.scale, 0, False), {}, STEPS).all_ms
    point, found = bench.told(injected.cause, injected.scale, injected.workers, injected.at_baseline)
    measured = [
        run.timing.measured_steps for run in bench.runs(injected.cause, injected.workers, injected.scale) if run.timing
    ]
    return Told(injected, point, found, anyway, sum(measured) / len(measured))


def main(argv: Sequence[str] | None = None) -> int:
    """Run every case and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="causes (default: all)")
    parser.add_argument("--repeats", type=int, default=2, help="of each run (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="keep the runs below this directory")
    parser.add_argument("--out", type=Path, help="also write the table here")
    options = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(options.results or Path(temporary), options.repeats)
        for injected in CASES:
            if options.only and injected.cause not in options.only:
                continue
            told = tell(bench, injected)
            rows.append(told)
            print(_row(told), flush=True)
    wrong = sum(bool(told.wrong) for told in rows)
    causes = [told for told in rows if told.injected.cause != "none"]
    head = [
        "# Causes of lost time: injected and told",
        "",
        f"`python benchmarks/attribution.py --repeats {options.repeats}`, {date.today().isoformat()}, "
        f"{os.cpu_count()} cores, {platform.system()}: {len(causes) - wrong} of {len(causes)} right.",
        "Milliseconds of each step, without what is told of the same scale without a cause (first rows).",
        "",
        f"| cause | scale | injected | {' | '.join(CAUSES)} | kind of imbalance | verdict |",
        f"| --- | --- | --- |{' ---: |' * len(CAUSES)} --- | --- |",
    ]
    text = "\n".join([*head, *map(_row, rows), ""])
    if options.out:
        options.out.write_text(text)
    return 1 if wrong else 0


def _row(told: Told) -> str:
    injected = ", ".join(f"{ms:.1f} {cause}" for cause, ms in told.wanted_ms.items()) or "nothing"
    parts = " | ".join(f"{told.ms.get(cause, 0.0):.1f}" for cause in CAUSES)
    kind = told.point.step.imbalance_kind if told.point.step and "imbalance" in told.injected.ms else None
    cells = [told.injected.cause, told.injected.scale, injected, parts, kind or "", told.wrong or "right"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
