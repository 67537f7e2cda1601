"""A finding: what was examined, what was measured, what was wanted, and what to do.

Whoever examines something makes one. The two other forms are ``records.record.Failure``, for what ended, and
``messages.Problem``, for a mistake in settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from ddp_ladder.common.formats import short_list
from ddp_ladder.common.model import Model, Several

Severity = Literal["note", "unknown", "warning", "error"]
CheckKind = Literal[
    "complete", "exit codes", "hooks", "world size", "placement", "ranks agree", "evidence", "backend", "whole log",
    "throughput printed", "enough steps", "samples seen", "global batch", "distinct devices", "disjoint data", "finite",
    "equal parameters", "equal steps", "order of samples",
]  # fmt: skip
"""Of a run: a run with a failed check is a failed run."""
RemarkKind = Literal[
    "fingerprint", "slow settings", "wrapper", "log", "profile", "flops", "untrained batches",
    "doubtful count", "witness", "batch", "disjoint data", "undivided data", "end", "one rank alone",
    "uneven inputs", "unexplained", "unsteady", "whole loop",
]  # fmt: skip
"""Of a run: worth knowing, although it may be intended."""
UsageKind = Literal[
    "other processes", "too many threads", "GPU idle", "GPU throttled", "CPUs full", "slow node", "network full",
]  # fmt: skip
"""What is wrong with what a run used of its nodes."""
PreflightKind = Literal["node", "link", "network", "software", "settings", "cause unknown"]
"""What is at fault: these nodes themselves; the link between these two; the network between groups of nodes; ..."""
DoctorKind = Literal[
    "ddp-ladder", "Python", "snakemake", "executor-plugin-slurm", "settings", "all else", "experiment", "site",
    "results", "shared directory", "workload", "data", "environment", "training Python", "torch",
    "container engine", "container image", "variables", "launcher", "controller", "nodes",
    "architecture", "jobs", "start",
]  # fmt: skip
GateKind = Literal[
    "run", "sanity", "record", "job", "preflight", "replaced node", "efficiency", "throughput", "baseline", "repeats",
    "data wait",
]  # fmt: skip
"""Of a gate, with the remarks on its runs; sanity: a run that passed all its checks."""
RehearsalKind = Literal["rehearsal", "start", "state"]
RuleKind = Literal[
    "node counts", "same input", "through Slurm", "run length", "efficiency by total time", "wall times",
    "GPU utilisation", "both modes", "memory", "time to solution", "batch script", "by a person",
]  # fmt: skip
"""Of a computing centre's rules."""
Kind = Literal[CheckKind, RemarkKind, UsageKind, PreflightKind, DoctorKind, RehearsalKind, RuleKind, GateKind, "chain"]


class Finding(Model):
    """One thing that was examined."""

    kind: Kind = Field(description="What was examined.")
    severity: Severity = Field(
        description="An error fails a run, stops a scale or closes a gate; a warning does not. A note is as it should "
        "be. Unknown: it could not be examined."
    )
    place: str = Field(
        default="", description="A node, a GPU, a rank, a scale, a run, or a file and key; empty if it has none."
    )
    measured: str
    wanted: str = ""
    evidence: Several[str] = ()
    next: str = Field(default="", description="What to do; empty if there is nothing to do.")
    uncertain: bool = Field(default=False, description="Further repeats may show otherwise.")

    @property
    def ok(self) -> bool:
        return self.severity != "error"

    @property
    def in_words(self) -> str:
        """Return what was measured, with the place in front unless it is named already."""
        return self.measured if self.measured.startswith(self.place) else f"{short_list(self.place)}: {self.measured}"

    @property
    def line(self) -> str:
        """Return all of it for a terminal or a log: ``node7: 1 GPU; wanted 4 GPUs; next: leave node7 out``."""
        wanted, next_step = self.wanted and f"wanted {self.wanted}", self.next and f"next: {self.next}"
        return "; ".join(filter(None, (self.in_words, wanted, next_step)))


def deciding(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that decides: the first error; None if there is none. Who examines puts causes first."""
    return next((finding for finding in findings if not finding.ok), None)


def remark(kind: RemarkKind, measured: str, next_step: str) -> Finding:
    """Return a fact that a reader of a run's figures should know, and that closes no gate."""
    return Finding(kind=kind, severity="warning", measured=measured, next=next_step)
