"""One job as it is asked of Slurm: what it asks for, in whose name, and which key of the configuration says so."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ddp_ladder.plan import ScaleJob
from ddp_ladder.settings import Settings
from ddp_ladder.slurm_facts import Accounting, Association, Offer

# Words of AccountingStorageEnforce under any of which Slurm holds jobs to each.
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
        """File and key that decide a Slurm value of this job."""
        for stage in self.settings.experiment.stages:
            if stage.name == self.job.stage and getattr(stage.slurm, name) is not None:
                return f"{self.settings.experiment.file}: stages.{stage.name}.slurm.{name}"
        return f"{self.settings.site.file}: slurm.{name}"

    def node_key(self, name: str) -> str:
        return f"{self.settings.site.file}: node.{name}"

    def stage_key(self, name: str) -> str:
        return f"{self.settings.experiment.file}: stages.{self.job.stage}.{name}"

    # In whose name

    @property
    def accounting(self) -> Accounting | None:
        return self.offer.accounting if isinstance(self.offer.accounting, Accounting) else None

    def accounting_with(self, words: Set[str]) -> Accounting | None:
        """The accounting where Slurm enforces one of the words."""
        accounting = self.accounting
        return accounting if accounting is not None and words & accounting.enforced else None

    @property
    def account(self) -> str | None:
        return self.job.slurm.account or (self.accounting.default_account if self.accounting else None)

    @property
    def qos(self) -> str | None:
        """The QOS that the job runs with: its own, or its account's."""
        own = [each.default_qos for each in self.associations() if each.default_qos]
        return self.job.slurm.qos or (own[0] if own else None)

    def associations(self) -> list[Association]:
        """The user's associations with the job's account."""
        if self.accounting is None:
            return []
        return [each for each in self.accounting.associations if each.account == self.account]

    # What for

    def gpus_per_node(self) -> tuple[str | None, int] | None:
        """Type (None for any) and number per node; None without GPUs."""
        if self.job.gres is None:
            return None
        _, *kind, count = self.job.gres.split(":")
        return ":".join(kind) or None, int(count)
