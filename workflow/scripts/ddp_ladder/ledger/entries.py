"""The ledger: each second that a job held its nodes has one owner, and the entries of a job add up to its time. Pure.

The owners of a run's seconds are in its record (``measuring.owners``); here are those of what surrounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.measuring.owners import COMPUTATION, NO_TRAINING, NOT_TOLD_APART, OWNERS

HOUR_S = 3600.0
PREFLIGHT, WITNESS, MADE_AGAIN, IDLE = "preflight", "witness", "made again", "idle"
ALL_OWNERS: Mapping[str, str] = {
    PREFLIGHT: "test of the nodes before the runs",
    WITNESS: "runs that follow their batches, before those that are measured",
    **OWNERS,
    MADE_AGAIN: "training after the state that a later start went on from",
    IDLE: "in no run, or in one that left nothing to tell its seconds by",
}
"""The owners in the order of a job, with what each has. The time in the queue has none: it holds nothing."""
TRAINING = tuple(owner for owner in OWNERS if owner not in NO_TRAINING)
ROUNDED = 1e-9  # relative, of sums of floats


@dataclass(frozen=True)
class Entry:
    """Seconds of a job that have one owner."""

    job: str
    run: str  # its name; empty: of no run
    owner: str  # of ALL_OWNERS
    seconds: float
    gpus_allocated: int  # that the job held: what a centre bills
    gpus_used: int  # that its runs train on
    samples: float | None = None  # that were trained in these seconds, and kept; None: none, or not known


@dataclass(frozen=True)
class RunShare:
    """What a run has of its job's time."""

    run: str
    owners_s: Mapping[str, float]  # empty: nothing tells it
    samples: float | None = None


@dataclass(frozen=True)
class Ledger:
    """The entries of a job, or of several. Raises ValueError if they do not add up."""

    elapsed_s: float  # of its jobs
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        total_s = math.fsum(entry.seconds for entry in self.entries)
        if not math.isclose(total_s, self.elapsed_s, rel_tol=ROUNDED, abs_tol=ROUNDED):
            raise ValueError(f"the entries of {self.jobs} are {total_s} s, and its time is {self.elapsed_s} s")
        if bad := [entry for entry in self.entries if entry.seconds < 0 or entry.owner not in ALL_OWNERS]:
            raise ValueError(f"an impossible entry: {bad[0]}")

    @classmethod
    def of_job(
        cls, job: str, elapsed_s: float, gpus: tuple[int, int], preflight_s: float, runs: Sequence[RunShare]
    ) -> Ledger:
        """Return the ledger of a job; what is in nothing is idle. gpus: allocated and used.

        Slurm rounds times to seconds: parts that are longer than their job are shortened, all alike.
        """
        parts: list[tuple[str, str, float, float | None]] = [("", PREFLIGHT, preflight_s, None)]
        for run in runs:
            of_steps = COMPUTATION if COMPUTATION in run.owners_s else NOT_TOLD_APART
            parts += [(run.run, name, s, run.samples if name == of_steps else None) for name, s in run.owners_s.items()]
        total_s = math.fsum(seconds for _, _, seconds, _ in parts)
        fits = min(1.0, elapsed_s / total_s) if total_s else 1.0
        parts.append(("", IDLE, max(0.0, elapsed_s - total_s), None))
        return cls(elapsed_s, tuple(Entry(job, run, name, fits * s, *gpus, samples) for run, name, s, samples in parts))

    @property
    def jobs(self) -> list[str]:
        return [*dict.fromkeys(entry.job for entry in self.entries)]

    def seconds(self, *owners: str) -> float:
        """Return the seconds of these owners."""
        return math.fsum(entry.seconds for entry in self.entries if entry.owner in owners)

    def gpu_hours(self, *owners: str) -> float:
        """Return the hours of the GPUs that were held for these owners, as a centre bills them."""
        return math.fsum(each.seconds * each.gpus_allocated / HOUR_S for each in self.entries if each.owner in owners)

    @property
    def samples(self) -> float | None:
        """Return the samples that were kept; None if no entry knows them."""
        known = [entry.samples for entry in self.entries if entry.samples is not None]
        return math.fsum(known) if known else None
