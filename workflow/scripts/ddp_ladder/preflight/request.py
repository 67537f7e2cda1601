"""A job as a request to Slurm: its resources, account and keys; and a mistake in it, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from ddp_ladder.common.formats import in_short
from ddp_ladder.common.messages import Problem
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.settings.models import Settings
from ddp_ladder.slurm.facts import Accounting, Association, Offer

# Slurm enforces each of these if AccountingStorageEnforce has any of the words.
ACCOUNTS_ENFORCED_BY = frozenset({"associations", "limits", "qos", "safe", "all"})
QOS_ENFORCED_BY = frozenset({"qos", "all"})
LIMITS_ENFORCED_BY = frozenset({"limits", "safe", "all"})


@dataclass(frozen=True)
class Request:
    """A job of a plan, the settings that it comes from, and the Slurm that it is for."""

    job: ScaleJob
    settings: Settings
    offer: Offer

    # Where a value comes from

    def key(self, name: str) -> str:
        """Return the file and key that set a Slurm value of this job."""
        for stage in self.settings.experiment.stages:
            if stage.name == self.job.stage and getattr(stage.slurm, name) is not None:
                return f"{self.settings.experiment.file}: stages.{stage.name}.slurm.{name}"
        return f"{self.settings.site.file}: slurm.{name}"

    def node_key(self, name: str) -> str:
        return f"{self.settings.site.file}: node.{name}"

    def stage_key(self, name: str) -> str:
        return f"{self.settings.experiment.file}: stages.{self.job.stage}.{name}"

    # Account and QOS

    @property
    def accounting(self) -> Accounting | None:
        return self.offer.accounting if isinstance(self.offer.accounting, Accounting) else None

    def accounting_with(self, words: Set[str]) -> Accounting | None:
        """Return the accounting if Slurm enforces one of the words."""
        accounting = self.accounting
        return accounting if accounting is not None and words & accounting.enforced else None

    @property
    def account(self) -> str | None:
        return self.job.slurm.account or (self.accounting.default_account if self.accounting else None)

    @property
    def qos(self) -> str | None:
        """The job's QOS: its own, or its account's default."""
        own = [each.default_qos for each in self.associations() if each.default_qos]
        return self.job.slurm.qos or (own[0] if own else None)

    def associations(self) -> list[Association]:
        """Return the user's associations with the job's account."""
        if self.accounting is None:
            return []
        return [each for each in self.accounting.associations if each.account == self.account]

    # Resources

    def gpus_per_node(self) -> tuple[str | None, int] | None:
        """Return the type (None for any) and number of GPUs per node; None without GPUs."""
        if self.job.gres is None:
            return None
        _, *kind, count = self.job.gres.split(":")
        return ":".join(kind) or None, int(count)


MOST_NAMES = 12  # of a list in a message

SMALLER_SCALES = "leave out the scale, or choose a partition that takes it: `sinfo --summarize` lists them"


@dataclass(frozen=True)
class JobProblem(Problem):
    """A mistake of one job. waits: Slurm takes the job and starts it only after a change."""

    waits: bool = False


def merged(problems: Iterable[JobProblem]) -> list[JobProblem]:
    """Return each mistake once, with everything that was found."""
    found_by_mistake: dict[JobProblem, list[str]] = {}
    for problem in problems:
        found = found_by_mistake.setdefault(replace(problem, found=None), [])
        if problem.found and problem.found not in found:
            found.append(problem.found)
    return [replace(mistake, found="; ".join(found)) for mistake, found in found_by_mistake.items()]


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    return in_short(names, MOST_NAMES)
