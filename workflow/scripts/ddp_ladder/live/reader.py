"""The reader of a results directory: a bounded number of small reads at a time. Nothing is written.

A ladder of many scales is not read as a whole each time: the runs that go on are, and of the rest one scale after the
other, unless a new name in results/jobs shows that something has begun or ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddp_ladder.climb.start_lock import LAST, START, read_start
from ddp_ladder.common.files import read_json
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.gates.verdict import Verdict, gate_files
from ddp_ladder.live.files import Files
from ddp_ladder.live.scale_reader import ScaleReader
from ddp_ladder.live.state import LadderState
from ddp_ladder.plan.file import read_plan
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.record import Record

MOST_NODES = 10  # whose samples are read at a time; the others follow


class Reader:
    """The reader of one results directory. ``read`` may be called at any rate."""

    def __init__(self, results: Path, clock: Callable[[], float] = time.time) -> None:
        self.files = Files()
        self._results = results
        self._clock = clock
        self._plan: Plan | None = None
        self._scales: list[ScaleReader] = []
        self._jobs: frozenset[str] = frozenset()
        self._turn = 0
        self._node_turn = 0
        self._held_s: float | None = None  # when a scale was last seen to be held
        self._pointed: list[int] = []
        self._points: tuple[ScalePoint, ...] = ()

    def read(self, everything: bool = False) -> LadderState:
        """Read what may have changed. everything: also what would otherwise wait for its turn."""
        now_s = self._clock()
        parsed = self.files.parsed
        plan = parsed(self._results / "plan.json", read_plan)
        start = parsed(self._results / START, read_start)
        last = parsed(self._results / LAST, read_start) if start is None else None
        self._read_scales(plan, now_s, everything)
        if self._held_s is None or any(scale.state.is_held for scale in self._scales):
            self._held_s = now_s
        return LadderState(
            results=self._results,
            now_s=now_s,
            plan=plan,
            start=start,
            is_alive=None if start is None else start.process.is_alive(),
            last=last,
            scales=tuple(scale.state for scale in self._scales),
            gates=self._gates(),
            points=self._scale_points(),
            problems=tuple(self.files.problems.values()),
            quiet_s=now_s - self._held_s,
            has_report=start is None and (self._results / "report/index.html").exists(),
        )

    def _read_scales(self, plan: Plan | None, now_s: float, everything: bool) -> None:
        if plan is not self._plan:
            jobs = () if plan is None else plan.jobs
            self._plan, self._scales = plan, [ScaleReader(self._results, job, self.files) for job in jobs]
            everything = True
        before, self._jobs = self._jobs, self.files.names(self._results / "jobs")
        finished = self._finished()
        unsettled = [scale for scale in self._scales if not scale.is_settled]
        turn = unsettled[self._turn % len(unsettled)] if unsettled else None
        self._turn += 1
        for scale in self._scales:
            has_changed = any(name.startswith(f"{scale.state.name}.") for name in before ^ self._jobs)
            if everything or has_changed or scale is turn or not scale.follow(finished):
                scale.scan(self._jobs, now_s)
                scale.follow(finished)
        left = sum(scale.assemble_one() for scale in self._scales)
        while everything and left:
            left = sum(scale.assemble_one() for scale in self._scales)
        if everything:  # what has been read now shows how many steps the others make
            finished = self._finished()
            for scale in self._scales:
                scale.follow(finished)
        self._read_samples(everything)

    def _read_samples(self, everything: bool) -> None:
        nodes = [(scale, place) for scale in self._scales for place in scale.places]
        count = len(nodes) if everything else min(MOST_NODES, len(nodes))
        for index in range(self._node_turn, self._node_turn + count):
            scale, place = nodes[index % len(nodes)]
            scale.sample(place)
        self._node_turn = (self._node_turn + count) % max(1, len(nodes))

    def _gates(self) -> dict[str, Verdict]:
        """Return the gates of stages whose runs have all ended; others are of earlier runs."""
        names = self.files.names(self._results / "gates")
        found = {}
        for stage in () if self._plan is None else self._plan.stages:
            if all(scale.state.is_done for scale in self._scales if scale.state.job.stage == stage):
                there = [file for file in gate_files(self._results / "gates", stage) if file.name in names]
                verdict = self.files.parsed(there[-1], _read_gate) if there else None
                if verdict is not None:
                    found[stage] = verdict
        return found

    def _records(self) -> list[Record]:
        runs = (run for scale in self._scales for run in scale.state.runs)
        return [run.record for run in runs if run.record is not None]

    def _finished(self) -> list[Record]:
        return [record for record in self._records() if record.status == "ok"]

    def _scale_points(self) -> tuple[ScalePoint, ...]:
        """Return the points of the scaling, made again when there is another record."""
        records = self._records()
        if self._plan is not None and self._pointed != [id(record) for record in records]:
            self._pointed = [id(record) for record in records]
            by_name = {record.spec.name: record for record in records}
            specs = [run.spec for scale in self._scales for run in scale.state.runs]
            self._points = scale_points(specs, by_name, self._plan.may_differ, self._plan.gates)
        return self._points


def _read_gate(path: Path) -> Verdict:
    return Verdict.from_json(read_json(path))
