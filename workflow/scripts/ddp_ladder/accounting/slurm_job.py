"""A job in sacct, sstat and scontrol: parsers of their output. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.model import Model, Several
from ddp_ladder.slurm.notation import gpus as gpus_in
from ddp_ladder.slurm.notation import records, rows, tres
from ddp_ladder.slurm.query import Unreadable
from ddp_ladder.slurm.states import JobState

SACCT = (
    "JobIDRaw,JobName,State,ExitCode,Submit,Start,End,ElapsedRaw,TimelimitRaw,TotalCPU,AllocCPUS,NTasks,NNodes,"
    "NodeList,ReqTRES,AllocTRES,MaxRSS,ConsumedEnergyRaw"
)
SSTAT = "JobID,NTasks,AveCPU,MaxRSS"
TIMES = ("Submit", "Start", "End")

ONE_NODE_STEPS = ("batch", "extern")
"""Steps beside those of srun. ``batch`` runs on the first node; ``extern`` holds what enters the job by ssh."""

LARGEST_J = LARGEST_S = 1e15
"""Slurm's marks for "no value" are larger; no job uses as much."""

Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Source = Literal["sacct", "scontrol"]


class StepUse(Model):
    """What a job step used, as far as Slurm measured it."""

    step: str = Field(description="``0``, ``1``, ...; ``batch``, ``extern``.")
    nodes: Count | None = Field(default=None, description="Null: sstat does not tell.")
    tasks: Count
    max_rss_bytes: Count | None = Field(description="Of the largest task.")
    cpu_s: Amount | None = None
    energy_j: Amount | None = None
    start_s: float | None = None
    end_s: float | None = None


class SlurmJob(Model):
    """A job as Slurm reports it. Times are unix times; a field is null if Slurm does not tell."""

    source: Source
    job_id: str
    name: str
    state: str
    exit_code: str = Field(description="Exit code and signal, ``0:0``.")
    submit_s: float | None
    start_s: float | None
    end_s: float | None
    limit_s: Amount | None
    nodes: Count
    node_list: str
    cpus: Count
    gpus: Count | None = Field(description="Allocated; null if Slurm does not count GPUs.")
    memory_bytes: Count | None = Field(description="Allocated, on all nodes.")
    cpu_s: Amount | None = Field(default=None, description="CPU time of all its processes.")
    steps: Several[StepUse] = Field(default=(), description="As far as Slurm still knows them.")

    @property
    def is_over(self) -> bool:
        """Return True if it has ended, and Slurm knows when."""
        return JobState(self.state).phase == "ended" and self.end_s is not None

    @property
    def is_whole(self) -> bool:
        """Return True if it is over, and so are its steps: the database learns of these, with what they used, later."""
        return self.is_over and (not self.node_list or (bool(self.steps) and all(step.end_s for step in self.steps)))

    @property
    def elapsed_s(self) -> float:
        """The time that it held its allocation; 0 if it never had one."""
        if self.start_s is None or self.end_s is None or not self.node_list:
            return 0.0
        return max(0.0, self.end_s - self.start_s)


def parse_sacct(text: str) -> dict[str, SlurmJob]:
    """Parse ``sacct --parsable2 --format=SACCT``, jobs with their steps. Raises Unreadable without its header."""
    header = SACCT.replace(",", "|")
    lines = text.splitlines()
    if header not in lines:
        raise Unreadable("sacct", text)
    found = list(rows("\n".join(lines[lines.index(header) + 1 :]), SACCT))
    jobs = [row for row in found if row["JobIDRaw"].isdecimal()]
    return {row["JobIDRaw"]: _accounted(row, _steps_of(row["JobIDRaw"], found)) for row in jobs}


def _steps_of(job_id: str, found: Iterable[Mapping[str, str]]) -> Iterator[StepUse]:
    for row in found:
        job, _, step = row["JobIDRaw"].partition(".")
        if job == job_id and step:
            yield StepUse(
                step=step,
                nodes=_count(row["NNodes"]),
                tasks=_count(row["NTasks"]) or 0,
                max_rss_bytes=size_bytes(row["MaxRSS"]),
                cpu_s=seconds_of(row["TotalCPU"]),
                energy_j=_energy_j(row["ConsumedEnergyRaw"]),
                start_s=unix_time(row["Start"]),
                end_s=unix_time(row["End"]),
            )


def _accounted(row: Mapping[str, str], steps: Iterable[StepUse]) -> SlurmJob:
    given = tres(row["AllocTRES"] or row["ReqTRES"])
    limit_min = _count(row["TimelimitRaw"])
    submit_s, start_s, end_s = (unix_time(row[name]) for name in TIMES)
    return SlurmJob(
        source="sacct",
        job_id=row["JobIDRaw"],
        name=row["JobName"],
        state=row["State"].partition(" ")[0],  # CANCELLED by 1000
        exit_code=row["ExitCode"],
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s,
        limit_s=None if limit_min is None else 60.0 * limit_min,
        nodes=given.get("node") or _count(row["NNodes"]) or 0,
        node_list="" if row["NodeList"] == "None assigned" else row["NodeList"],
        cpus=given.get("cpu") or _count(row["AllocCPUS"]) or 0,
        gpus=_gpus(given),
        memory_bytes=_memory_bytes(given),
        cpu_s=seconds_of(row["TotalCPU"]),
        steps=tuple(steps),
    )


def parse_scontrol(text: str) -> SlurmJob | None:
    """Parse ``scontrol --oneliner show job``; None if it shows no job."""
    row = next(records(text, "JobId"), None)
    if row is None:
        return None
    given = tres(row.get("AllocTRES") or row.get("TRES") or row.get("ReqTRES") or "")
    names = row.get("NodeList", "").replace("(null)", "")
    nodes = given.get("node") or _count(row.get("NumNodes", "").partition("-")[0]) or 0
    asked = gpus_in(re.sub(r"gres[:/]", "", row.get("TresPerNode", "")))
    return SlurmJob(
        source="scontrol",
        job_id=row["JobId"],
        name=row.get("JobName", ""),
        state=row.get("JobState", ""),
        exit_code=row.get("ExitCode", ""),
        submit_s=unix_time(row.get("SubmitTime", "")),
        start_s=unix_time(row.get("StartTime", "")),
        end_s=unix_time(row.get("EndTime", "")),
        limit_s=seconds_of(row.get("TimeLimit", "")),
        nodes=nodes,
        node_list=names,
        cpus=given.get("cpu") or _count(row.get("NumCPUs", "").partition("-")[0]) or 0,
        # Without accounting Slurm counts no GPUs of a job, and still shows those that it asked for.
        gpus=nodes * sum(asked.values()) if asked and _gpus(given) is None else _gpus(given),
        memory_bytes=_memory_bytes(given),
    )


def parse_sstat(text: str) -> list[StepUse]:
    """Parse ``sstat --allsteps --parsable2 --format=SSTAT``. Raises Unreadable without its header."""
    header = SSTAT.replace(",", "|")
    lines = text.splitlines()
    if header not in lines:
        raise Unreadable("sstat", text)
    found = rows("\n".join(lines[lines.index(header) + 1 :]), SSTAT)
    return [
        StepUse(
            step=row["JobID"].partition(".")[2],
            tasks=(tasks := _count(row["NTasks"]) or 0),
            max_rss_bytes=size_bytes(row["MaxRSS"]),
            cpu_s=None if (mean_s := seconds_of(row["AveCPU"])) is None else mean_s * tasks,
        )
        for row in found
        if row["JobID"].partition(".")[2]
    ]


def with_maxima(before: Iterable[StepUse], now: Iterable[StepUse]) -> tuple[StepUse, ...]:
    """Return the steps of both samples, each with its larger figures."""
    steps = {one.step: one for one in before}
    for one in now:
        known = steps.get(one.step, one)
        steps[one.step] = one.replace(
            max_rss_bytes=_larger(known.max_rss_bytes, one.max_rss_bytes), cpu_s=_larger(known.cpu_s, one.cpu_s)
        )
    return tuple(steps.values())


def memory_bytes_per_node(steps: Iterable[StepUse], nodes: int) -> int | None:
    """Return the most memory that the steps used on a node; None if no step was measured.

    The job steps of a scale's job follow one another; the batch step runs beside them, on the first node. Slurm reports
    the largest task, so several tasks on a node count as equally large.
    """
    known = [step for step in steps if step.max_rss_bytes]
    batch = max((step.max_rss_bytes or 0 for step in known if step.step == "batch"), default=0)
    of_srun = [_on_one_node(step, nodes) for step in known if step.step not in ONE_NODE_STEPS]
    return batch + max(of_srun) if of_srun else None


def _on_one_node(step: StepUse, nodes: int) -> int:
    on = max(1, step.nodes if step.nodes is not None else min(nodes, step.tasks))
    return (step.max_rss_bytes or 0) * -(-max(1, step.tasks) // on)


def energy_j(steps: Iterable[StepUse]) -> float | None:
    """Return the energy of the job steps that srun started, which follow one another; None if none was measured.

    The batch step is left out: its node's energy is also in theirs.
    """
    known = [step.energy_j for step in steps if step.energy_j and step.step not in ONE_NODE_STEPS]
    return sum(known) if known else None


def unix_time(text: str) -> float | None:
    """Return ``2026-11-22T14:11:49``, local time, as unix time; None for Unknown, N/A and the like."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def seconds_of(text: str) -> float | None:
    """Return seconds: ``1-02:03:04`` is 93784.0, ``00:09.389`` is 9.389; None for UNLIMITED and no value."""
    form = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if form is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in form.groups())
    in_all_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return in_all_s if in_all_s < LARGEST_S else None


def size_bytes(text: str) -> int | None:
    """Return ``208720K``, ``1.50G`` or ``213729280`` (bytes) as bytes; None for an empty text."""
    form = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", text)
    return None if form is None else round(float(form[1]) * 1024 ** " KMGTP".index(form[2] or " "))


def _energy_j(text: str) -> float | None:
    """Return joules; None if nothing measured them, for which Slurm prints nothing, 0 or a huge number."""
    value = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0
    return value if 0 < value < LARGEST_J else None


def _gpus(given: Mapping[str, int]) -> int | None:
    """Return the GPUs of a TRES list: the untyped count includes those of each type."""
    if "gres/gpu" in given:
        return given["gres/gpu"]
    typed = [number for name, number in given.items() if name.startswith("gres/gpu:")]
    return sum(typed) if typed else None


def _memory_bytes(given: Mapping[str, int]) -> int | None:
    return given["mem"] * 1024**2 if given.get("mem") else None


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _larger(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
