"""The input of the checks."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_ladder.settings.config_keys import Workload
from ddp_ladder.settings.models import Experiment, Site
from ddp_ladder.settings.strict_yaml import Document


@dataclass(frozen=True)
class Given:
    """The settings, and the documents they were read from, which give the line of each key."""

    experiment: Experiment
    site: Site
    config: Document
    cluster: Document

    @property
    def workload(self) -> Workload:
        """The experiment's workload."""
        return self.experiment.workload
