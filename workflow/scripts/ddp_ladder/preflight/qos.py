"""What the QoS of a job allows, as Slurm's accounting shows it: sbatch takes a larger job, which then never starts."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import count
from ddp_ladder.common.grouping import one_of
from ddp_ladder.common.messages import Problem
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.admission import place_of
from ddp_ladder.settings.keys import Settings
from ddp_ladder.slurm.query import run_command, seconds

_GPUS = re.compile(r"\bgres/gpu=(\d{1,9})\b")


@dataclass(frozen=True)
class Limits:
    """What a QoS allows a job; None without a limit."""

    minutes: int | None
    gpus: int | None

    def allows(self, job: ScaleJob) -> bool:
        long = self.minutes is not None and job.runtime_min > self.minutes
        return not long and not (self.gpus is not None and job.gres is not None and job.scale.world_size > self.gpus)

    def __str__(self) -> str:
        time = [] if self.minutes is None else [f"{self.minutes} min"]
        return ", ".join([*time, *([] if self.gpus is None else [count(self.gpus, "GPU")])])


@dataclass(frozen=True)
class Accounting:
    """The QoS of a cluster, and those of the user."""

    limits: Mapping[str, Limits]
    associations: Sequence[Mapping[str, str]]  # with an empty partition: all, an empty defaultqos: none

    def of_job(self, job: ScaleJob) -> list[Mapping[str, str]]:
        """Return the associations that the job may run under."""
        account, partitions = job.slurm.account, ("", *(job.slurm.partition or "").split(","))
        own = (each for each in self.associations if account in (None, each["account"]))
        return [each for each in own if each["partition"] in partitions]

    def default(self, job: ScaleJob) -> str | None:
        """Return the QoS of a job that names none; None if that is not certain."""
        return one_of(each["defaultqos"] for each in self.of_job(job)) or None


def read_accounting() -> Accounting:
    """Ask Slurm's accounting. Raises SlurmError, also where there is none."""
    limits = {}
    for row in _rows("qos", "name,maxwall,maxtres,maxtrespu"):
        limit_s, gpus = seconds(row["maxwall"]), map(int, _GPUS.findall(f"{row['maxtres']},{row['maxtrespu']}"))
        limits[row["name"]] = Limits(None if limit_s is None else int(limit_s / 60), min(gpus, default=None))
    user = f"user={getpass.getuser()}"
    return Accounting(limits, _rows("associations", "account,partition,defaultqos,qos", user))


def _rows(what: str, fields: str, *options: str) -> list[dict[str, str]]:
    argv, names = (
        ["sacctmgr", "--noheader", "--parsable2", "show", what, *options, f"format={fields}"],
        fields.split(","),
    )
    rows = [line.split("|") for line in run_command(argv).splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def check_qos(jobs: Sequence[ScaleJob], settings: Settings, accounting: Accounting) -> Iterator[Problem]:
    """Yield a problem for each QoS that does not allow a job which gets it."""
    seen = set[str]()
    for job in sorted(jobs, key=lambda job: (job.scale.world_size, job.runtime_min), reverse=True):
        name = job.slurm.qos or accounting.default(job)
        limits = accounting.limits.get(name or "")
        if name is None or limits is None or name in seen or limits.allows(job):
            continue
        seen.add(name)
        yours = sorted({qos for each in accounting.of_job(job) for qos in each["qos"].split(",")} - {name, ""})
        another = f"name another one of yours: {', '.join(yours)}" if yours else "ask your site for another one"
        which = name if job.slurm.qos else f"{name} (your default one, as slurm.qos names none)"
        yield Problem(
            place_of("slurm.qos", job, settings),
            f"the QoS {which} does not allow the job of {job.scale}",
            str(Limits(job.runtime_min, job.scale.world_size if job.gres else None)),
            f"up to {limits}",
            f"{another}, or measure smaller scales or shorter",
        )
