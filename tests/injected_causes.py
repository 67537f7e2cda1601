"""Causes of lost time, injected into real runs on this machine, and what the attribution tells of them."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ddp_ladder.common.files import RunDirectory
from ddp_ladder.gates.attribution import Attribution, Cause, attribution
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.nodes.critical_rank import Kind
from ddp_ladder.plan.plan import ScaleJob, make_plan
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run.job import Context, run_scale
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.settings.keys import Preflight
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import Scale
from project_copy import ROOT

SCRIPT = ROOT / "tests/scripts/causes.py"
STEPS, WARMUP_STEPS = 90, 10
SLOW_MS, STEP_MS, SLOW_LOAD_MS, JITTER_MS = 30.0, 36.0, 80.0, 20.0  # as in SCRIPT
WITHIN, LEAST_MS = 0.2, 2.0


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


class Bench:
    """Makes the runs below a directory; one without a cause only once for all causes that are compared with it."""

    def __init__(self, results: Path, repeats: int = 1) -> None:
        self._results = results
        self._repeats = repeats
        self._plan = make_plan(load_settings(ROOT / "config/config.yaml", ROOT / "config/cluster.yaml"))
        self._script = results / SCRIPT.name  # of its own: the original may change meanwhile
        results.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SCRIPT, self._script)
        self._runs = cache(self._make_runs)
        self._told = cache(self._tell)

    def told(self, injected: Injected, beside_none: bool = True) -> Told:
        """Inject a cause and return what is told of it. beside_none: beyond what is told without a cause."""
        point, found = self._told(injected.cause, injected.scale, injected.workers, injected.at_baseline)
        anyway: Mapping[Cause, float] = {}
        if beside_none and injected.cause != "none":
            anyway = Told(injected, *self._told("none", injected.scale, 0, False), {}, STEPS).all_ms
        runs = self._runs(injected.cause, injected.workers, injected.scale)
        measured = [run.timing.measured_steps for run in runs if run.timing]
        return Told(injected, point, found, anyway, sum(measured) / len(measured))

    def _tell(self, cause: str, scale: str, workers: int, at_baseline: bool) -> tuple[ScalePoint, Attribution | None]:
        records = [*self._runs(cause if at_baseline else "none", workers, "1x1"), *self._runs(cause, workers, scale)]
        first, point = scale_points([record.spec for record in records], {r.spec.name: r for r in records})
        assert point.status == "ok", (point.status, point.note)
        return point, attribution(point, first)

    def _make_runs(self, cause: str, workers: int, scale: str) -> list[Record]:
        shape = Scale.parse(scale)
        job = next(job for job in self._plan.jobs if job.scale.nodes == min(shape.nodes, 2))
        specs = tuple(
            job.runs[0].replace(
                script=str(self._script),
                args=(cause, str(workers), str(STEPS)),
                nodes=shape.nodes,
                gpus_per_node=shape.gpus_per_node,
                batch_per_gpu=4,
                global_batch=4 * shape.world_size,
                repeat=repeat,
                variant="default",
                launcher="srun",  # torchrun would import torch too
                warmup_steps=WARMUP_STEPS,
                min_steps=20,
            )
            for repeat in range(1, self._repeats + 1)
        )
        results = self._results / f"{cause}_{workers}"
        made: ScaleJob = replace(job, scale=shape, runs=specs, more=(), preflight=Preflight(enabled=False))
        console = RunConsole(len(specs), sys.stderr)
        context = Context(made, results, ThisMachine(f"local-{cause}"), time.monotonic() + 900, console)
        run_scale(context, replace(self._plan, jobs=(made,)), {})
        records = [read_record(RunDirectory(results / "runs" / spec.name).record) for spec in specs]
        assert all(record.status == "ok" for record in records), [record.failure for record in records]
        return records
