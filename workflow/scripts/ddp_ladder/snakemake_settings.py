"""Which files and overrides a snakemake command line names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_ladder.messages import Problem, UserError
from ddp_ladder.plan import Plan
from ddp_ladder.settings import Settings
from ddp_ladder.settings_loader import load_settings
from ddp_ladder.strict_yaml import has_control_characters, shown

CONFIG = Path("config/config.yaml")
CLUSTER = Path("config/cluster.yaml")
WITHOUT_TRAINING = frozenset({"doctor", "eject", "report"})  # targets that run one quick thing on this machine


@dataclass(frozen=True)
class Sources:
    """Where the settings of this start come from."""

    config: Path
    cluster: Path
    overrides: Mapping[str, Any]

    @property
    def overrides_json(self) -> str:
        return json.dumps(self.overrides, sort_keys=True)

    def load(self) -> Settings:
        """Read and check the settings. Raises UserError."""
        return load_settings(self.config, self.cluster, self.overrides)


def read_sources(configfiles: Sequence[str | Path], overrides: Mapping[str, Any]) -> Sources:
    """Files and overrides of ``--config experiment=FILE cluster=FILE key=value ...``.

    --configfile FILE is the same as experiment=FILE, but Snakemake itself reads that file first, and says neither file
    nor line where it cannot. An experiment is one file: it stands in for config/config.yaml and is not merged with it.
    Raises UserError for more than one.
    """
    rest = dict(overrides)
    configfiles = [*configfiles, *([str(rest.pop("experiment"))] if "experiment" in rest else [])]
    if len(configfiles) > 1:
        raise UserError(
            Problem(
                "--configfile and --config experiment",
                "more than one experiment",
                found=" ".join(str(file) for file in configfiles),
                allowed="one file, which takes the place of config/config.yaml",
                next="start snakemake once per experiment, each with `results` of its own",
            )
        )
    cluster = Path(str(rest.pop("cluster", CLUSTER)))
    return Sources(Path(configfiles[0] if configfiles else CONFIG).expanduser(), cluster.expanduser(), rest)


def check_checkout(*directories: Path) -> None:
    """Raise UserError where Snakemake or a shell script could not take the path of one of these directories."""
    for directory in map(str, directories):
        braces = "{" in directory or "}" in directory
        if braces or has_control_characters(directory):
            raise UserError(
                Problem(
                    shown(directory),
                    "a brace in the path of the checkout: Snakemake takes it for a wildcard"
                    if braces
                    else "a line end or another control character in the path of the checkout",
                    allowed="a path of printable characters without { and }",
                    next="rename the directory, or move the checkout to another one; the results move with it",
                )
            )


def stages_up_to(plan: Plan, stage: str | None, file: Path) -> tuple[str, ...]:
    """Stages from the first to ``stage``; all of them for None.

    Raises UserError for a stage that the experiment does not have.
    """
    if stage is None:
        return plan.stages
    if stage not in plan.stages:
        raise UserError(
            Problem(
                f"{file}: stages.{stage}",
                f"this experiment has no {stage}",
                allowed=", ".join(plan.stages),
                next=f"add stages.{stage} to the file, or name another stage",
            )
        )
    return plan.stages[: plan.stages.index(stage) + 1]


def runs_no_training(arguments: Sequence[str]) -> bool:
    """Whether a snakemake command line names a target that does a quick thing on this machine alone."""
    return not WITHOUT_TRAINING.isdisjoint(arguments)
