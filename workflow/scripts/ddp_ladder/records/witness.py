"""What a witness run has shown (results/witness/<variant>.json), and which of these files is that of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ddp_ladder.common.files import read_json, readable
from ddp_ladder.common.model import Count, Duration, Model, Name, Several, Version1
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.plan.short_runs import WitnessRun, has_witness, script_digest, witness_key, witness_runs
from ddp_ladder.records.raw_models import Flops, Job, Tokens, Witnessed, WitnessedPlace, WitnessStatus
from ddp_ladder.settings.terms import Scale


class Witness(Model):
    """A witness run."""

    key: str  # of what decides its result: plan.witness.witness_key
    variant: Name
    scale: str
    status: WitnessStatus
    why: str = ""  # empty if it is witnessed
    steps: Count = 0  # of the training
    took_s: Duration
    torch: str | None = None  # version
    places: Several[WitnessedPlace] = ()
    flops: Flops | None = None  # of a sample
    tokens: Tokens | None = None
    doubts: Mapping[str, Count] = {}
    not_followed: Mapping[str, Count] = {}
    retrained: Count = 0  # batches that an earlier step had trained on
    optimizers: Mapping[str, Count] = {}  # steps of each
    job: Job | None = None  # None: it was not started
    schema_version: Version1 = 1


class Witnesses:
    """The witness files of a results directory; each is read once."""

    def __init__(self, results: Path) -> None:
        self._results = results

    @cached_property
    def kept(self) -> dict[str, Witness]:
        """The witnesses by their keys."""
        files = sorted((self._results / "witness").glob("*.json"))
        return {witness.key: witness for witness in map(read_witness, files) if witness is not None}

    @cached_property
    def _is_off(self) -> bool:
        with suppress(OSError, ValueError, LookupError, TypeError):
            return read_json(self._results / "plan.json")["jobs"][0]["witness"] is None
        return False

    def of(self, spec: RunSpec) -> Witness | None:
        """Return the kept witness of a run of the script as it is now; None without one.

        It is that of every scale, mode, launcher and network.
        """
        script = script_digest(spec)
        first_sizes = {Scale.parse(witness.scale).world_size for witness in self.kept.values()}
        keys = (witness_key(spec, script, size) for size in first_sizes)
        return next((self.kept[key] for key in keys if key in self.kept), None)

    def told(self, spec: RunSpec) -> Witnessed | None:
        """Return what run.json of a run says of it; None for a run that can have none."""
        if not has_witness(spec):
            return None
        if witness := self.of(spec):
            return Witnessed(**{key: getattr(witness, key) for key in Witnessed.model_fields})
        if self._is_off:
            return Witnessed(status="off", why="measure.witness_steps is off")
        why = "no run of this script, with these arguments and this environment, has followed its batches"
        return Witnessed(status="not made", why=why)


def witness_file(results: Path, variant: str) -> Path:
    """Return the file of the witness run whose first variant this is."""
    return results / "witness" / f"{variant}.json"


def read_witness(path: Path) -> Witness | None:
    """Return a witness; None if it cannot be read: the next job makes it again."""
    return readable(Witness, path)


def missing_witnesses(plan: Plan, results: Path) -> tuple[WitnessRun, ...]:
    """Return the witness runs of a plan without a kept result; what was not followed is tried again."""
    kept = {witness.key for witness in Witnesses(results).kept.values() if witness.status != "not followed"}
    return tuple(run for run in witness_runs(plan) if run.key not in kept)
