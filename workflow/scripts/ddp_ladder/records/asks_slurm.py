"""Detection of a script that needs srun's variables but was started by torchrun. Pure."""

from __future__ import annotations

import re

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import Failure
from ddp_ladder.slurm.steps import step_variables, task_variables

_NAME = re.compile(r"\bSLURM_[A-Z_]+\b")
_ABOVE = 2  # lines of a traceback between an exception and its statement: the statement itself, and carets below it


def asks_slurm(spec: RunSpec, end: RankEnd, output: str) -> Failure | None:
    """Return the failure of a rank that lacked a variable of srun; None for any other, or without torchrun.

    end: the rank's end record. output: what the run's processes printed, before torchrun's own report.
    """
    if spec.launcher != "torchrun":
        return None
    set_by_srun = {*step_variables(spec, "", ()), *task_variables(0, 0, 0)}
    exception = end.exception or ""
    names = _NAME.findall(f"{exception}\n{_statement(exception, output)}")
    missing = [name for name in names if name in set_by_srun]
    if not missing:
        return None
    return Failure(
        verdict="the script needs srun",
        why=f"rank {end.rank}: {exception or _last(output)}: {missing[0]} is a variable that srun sets for each "
        "process, and torchrun does not",
        next="set launcher: srun in cluster.yaml, or in the variant, and start snakemake again; on a machine without "
        "Slurm the ladder then sets the variables that srun would set",
        rank=end.rank,
        node=end.host,
        at_s=end.ended_at_s,
    )


def _statement(exception: str, output: str) -> str:
    """Return the line that raised the exception, as its traceback shows it; without an exception, the last line."""
    if not exception:
        return _last(output)
    lines = output.splitlines()
    places = [place for place, line in enumerate(lines) if exception in line]
    return "\n".join(lines[max(0, places[-1] - _ABOVE) : places[-1]]) if places else ""


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""
