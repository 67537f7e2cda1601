"""How long the runs of a job take, by those that have ended: a run that would be cut off is not started."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_ladder.common.files import read_json
from ddp_ladder.common.formats import duration
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.settings.terms import REFERENCE_VARIANT

LONGER = 1.1  # than the longest so far
PLAIN_LONGER = 1.5  # than the default variant's runs: else it has no time to show that it hangs


class Pace:
    """The longest run so far of each variant and mode of a scale."""

    def __init__(self) -> None:
        self._longest_s: dict[tuple[str, str], float] = {}

    @classmethod
    def of(cls, job: ScaleJob, runs: RunRecords) -> Pace:
        """Return that of the runs that are kept from earlier jobs."""
        pace = cls()
        for spec in job.runs:
            if runs.kept(spec):
                ended = read_json(runs.directory(spec).ended)
                pace.add(spec, ended["ended_at_s"] - ended["started_at_s"])
        return pace

    def add(self, spec: RunSpec, took_s: float) -> None:
        key = spec.variant, spec.mode
        self._longest_s[key] = max(took_s, self._longest_s.get(key, 0.0))

    def needed_s(self, spec: RunSpec) -> float:
        """Return what a run will take; 0 if none of its variant and mode has ended yet."""
        default_s = self._longest_s.get((REFERENCE_VARIANT, spec.mode), 0.0)
        own_s = LONGER * self._longest_s.get((spec.variant, spec.mode), 0.0)
        return max(own_s, PLAIN_LONGER * default_s) if spec.is_plain else own_s

    def left_for(self, spec: RunSpec, left_s: float, waiting: Iterable[RunSpec]) -> float:
        """Return the time for a run: a plain baseline, which judges nothing, leaves the runs that wait theirs."""
        others = [run for run in waiting if not run.is_plain] if spec.is_plain else []
        return left_s - sum(map(self.needed_s, others))

    def obstacle(self, spec: RunSpec, left_s: float) -> str:
        """Return why the time left for a run is too short; empty if it is not."""
        needed_s = self.needed_s(spec)
        if left_s <= 0:
            return "the job's time was up before it could start"
        if left_s < needed_s:
            return f"the job had {duration(left_s)} left for it, and it takes about {duration(needed_s)}"
        return ""
