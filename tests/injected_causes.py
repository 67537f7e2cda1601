"""Causes of lost time, injected into real runs on this machine, and what the attribution tells of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from ddp_ladder.gates.attribution import Attribution, attribution
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.plan.plan import ScaleJob, make_plan
from ddp_ladder.records.record import Record
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.settings.keys import Preflight
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import Scale
from one_run import make_runs
from project_copy import ROOT

SCRIPT = ROOT / "tests/scripts/causes.py"
STEPS, WARMUP_STEPS = 90, 10


class Bench:
    """Makes the runs below a directory; one without a cause only once for all causes that are compared with it.

    told(cause, scale, workers of each loader, at_baseline: the cause is in the baseline, too).
    """

    def __init__(self, results: Path, repeats: int = 1, steps: int = STEPS) -> None:
        self._results = results
        self._repeats = repeats
        self._steps = steps
        self._plan = make_plan(load_settings(ROOT / "config/config.yaml", ROOT / "config/cluster.yaml"))
        self._script = results / SCRIPT.name  # of its own: the original may change meanwhile
        results.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SCRIPT, self._script)
        self.runs = cache(self._make_runs)
        self.told = cache(self._tell)  # None: nothing is lost

    def _tell(self, cause: str, scale: str, workers: int, at_baseline: bool) -> tuple[ScalePoint, Attribution | None]:
        records = [*self.runs(cause if at_baseline else "none", workers, "1x1"), *self.runs(cause, workers, scale)]
        first, point = scale_points([record.spec for record in records], {r.spec.name: r for r in records})
        assert point.status == "ok", (point.status, point.note)
        return point, attribution(point, first)

    def _make_runs(self, cause: str, workers: int, scale: str) -> list[Record]:
        shape = Scale.parse(scale)
        job = next(job for job in self._plan.jobs if job.scale.nodes == min(shape.nodes, 2))
        specs = tuple(
            job.runs[0].replace(
                script=str(self._script),
                args=(cause, str(workers), str(self._steps)),
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
        of_made = {"more": (), "witness": None, "preflight": Preflight(enabled=False)}
        made: ScaleJob = replace(job, scale=shape, runs=specs, **of_made)
        records = make_runs(self._plan, made, results, ThisMachine(f"local-{cause}"), 900)
        assert all(record.status == "ok" for record in records), [record.failure for record in records]
        return records
