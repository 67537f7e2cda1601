"""The box at the end of a start that failed: why it stopped, where to read more, what to do.

A closed gate has a box of its own (gates.file.closed_box); this one is for every other failure.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_ladder.common.formats import signal_of
from ddp_ladder.common.lifetime import SIGNALS
from ddp_ladder.common.messages import box
from ddp_ladder.gates.verdict import gate_files
from ddp_ladder.records.quotes import last_lines
from ddp_ladder.settings.sources import WITHOUT_TRAINING
from ddp_ladder.slurm.job_end import job_end_file

MOST_LINES = 8
AGAIN = "start snakemake again: finished runs are kept"


@dataclass(frozen=True)
class FailedJob:
    """One of Snakemake's jobs. exit_code: of its command; None if the executor reported the end, in ``message``."""

    rule: str
    log: str
    exit_code: int | None
    message: str = ""

    @property
    def name(self) -> str:
        """The name of its log without the suffix: ``measure_1x2``, ``gate_stage1``."""
        return Path(self.log).stem if self.log else self.rule

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended it."""
        return None if self.exit_code is None else signal_of(self.exit_code)

    @property
    def end(self) -> str:
        """``: exit code 137 (SIGKILL)``; empty if the executor reported the end."""
        if self.exit_code is None:
            return ""
        return f": exit code {self.exit_code}" + (f" ({self.signal})" if self.signal else "")


@dataclass(frozen=True)
class Stop:
    """The failure of a start of the workflow. results, config: paths. since_s: when it began, unix time.

    ended_by: the signal that ended it. log: Snakemake's, empty if there is none. others_are_shown: whether Snakemake
    has printed an error that belongs to no job.
    """

    jobs: Sequence[FailedJob]
    results: Path
    config: str
    since_s: float
    log: str
    ended_by: str | None
    others_are_shown: bool

    def boxes(self) -> Iterator[str]:
        """Yield a box per failed job, in order; then one on why the start itself ended, if no job is the reason."""
        for job in self.jobs:
            if not self._is_on_terminal(job):
                yield box(self._prepare(job) if job.rule == "prepare_data" else self._job(job))
        if self.ended_by:
            by = "Ctrl-C" if self.ended_by == signal.SIGINT.name else "a signal"
            yield box((("verdict", f"ended by {by} ({self.ended_by})"), self._log(), ("next", AGAIN)))
        elif self.others_are_shown:
            again = f"fix what the message above says, or just {AGAIN}; if it persists, report it"
            yield box((("verdict", "Snakemake stopped at the error above"), self._log(), ("next", again)))

    def _is_on_terminal(self, job: FailedJob) -> bool:
        """Return True if the terminal shows it already: in a closed gate's box, or printed by the job itself."""
        if self.ended_by and job.signal in {each.name for each in SIGNALS}:
            return True
        if job.rule in (*WITHOUT_TRAINING, "preflight"):
            return job.exit_code == 1
        if job.rule == "gate":
            return job.exit_code == 1 and self._is_closed(job.name.removeprefix("gate_"))
        if job.exit_code is None:
            scale, stage = job.name.removeprefix("measure_"), job.rule.removeprefix("measure_")
            return job_end_file(self.results, scale).exists() and self._is_closed(stage)
        return False

    def _is_closed(self, stage: str) -> bool:
        """Return True if this start has found the gate closed."""
        closed = gate_files(self.results / "gates", stage)[1]
        return closed.exists() and closed.stat().st_mtime >= self.since_s

    def _prepare(self, job: FailedJob) -> Iterator[tuple[str, str]]:
        yield "verdict", f"workload.prepare failed{job.end}; no run was started"
        yield from self._printed(job)
        yield "log", job.log
        yield "next", f"fix what its last lines report (workload.prepare in {self.config}); then {AGAIN}"

    def _job(self, job: FailedJob) -> Iterator[tuple[str, str]]:
        yield "verdict", f"the job {job.name} failed{job.end}"
        if job.message:
            yield "found", job.message
        else:
            yield from self._printed(job)
        yield "log", job.log
        yield self._log("Snakemake's")
        killed = "it was killed, most often because memory ran out; " if job.signal == signal.SIGKILL.name else ""
        yield "next", f"{killed}read its output, here or above; then {AGAIN}"

    @staticmethod
    def _printed(job: FailedJob) -> Iterator[tuple[str, str]]:
        lines = last_lines(Path(job.log), MOST_LINES) if job.log else []
        for index, line in enumerate(lines or ["its log is empty"]):
            yield "" if index else "printed", line

    def _log(self, whose: str = "") -> tuple[str, str]:
        return ("" if whose else "log"), (f"{whose}: {self.log}" if whose else self.log) or "none was written"
