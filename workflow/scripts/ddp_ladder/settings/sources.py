"""The settings files and overrides that a snakemake command line names."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import CENTRES, OWN, located
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.load import OVERLAY, load_settings

CONFIG = Path("config/config.yaml")
CLUSTER = Path("config/cluster.yaml")
# Quick targets that run on this machine alone.
WITHOUT_TRAINING = frozenset({"archive", "compare", "doctor", "eject", "final_report", "new_site", "report"})


@dataclass(frozen=True)
class Sources:
    """Files and overrides of this start's settings."""

    config: Path | None  # None if the overrides are a whole experiment
    cluster: Path
    overrides: Mapping[str, Any]
    preflight_scale: str | None = None  # of `snakemake preflight`
    centre: str | None = None  # whose rules the report checks
    archive: Path | None = None  # that the report shows, in place of this place's results

    @classmethod
    def of(cls, arguments: Namespace) -> Sources:
        """Return the sources named by the options of ``add_options``."""
        return cls(Path(arguments.config) if arguments.config else None, arguments.cluster, arguments.overrides)

    @property
    def options(self) -> list[str]:
        """The options of ``add_options`` that name these sources."""
        return [
            f"--config={self.config or ''}",
            f"--cluster={self.cluster}",
            f"--overrides={json.dumps(self.overrides, sort_keys=True)}",
        ]

    def load(self) -> Settings:
        """Read and check the settings. Raises UserError."""
        return load_settings(self.config, self.cluster, self.overrides)


OF_NO_SITE = Sources(
    None,
    OWN / "config/sites/local.yaml",
    {"workload": {"script": "-m none", "batch_per_gpu": 1}, "stages": {"stage1": {}}},
)
"""Settings for a start that needs none."""


def needed(sources: Sources, targets: Sequence[str]) -> Sources:
    """Return the sources whose settings a start needs: none to draft a site or show an archive. Raises UserError."""
    if sources.archive and "report" not in targets:
        what, advice = "an archive is shown, and nothing is run", "snakemake report --config archive=FILE"
        raise UserError(Problem("--config archive", what, str(sources.archive), next=advice))
    return OF_NO_SITE if sources.archive or "new_site" in targets else sources


def add_options(parser: ArgumentParser) -> None:
    """Add the options of a command line that reads the settings; empty --config: all are in --overrides."""
    add = parser.add_argument
    add("--config", default=located(CONFIG), metavar="FILE", help="the experiment (default: %(default)s)")
    add("--cluster", type=Path, default=located(CLUSTER), metavar="FILE", help="the site (default: %(default)s)")
    add("--overrides", type=json.loads, default={}, metavar="JSON", help="""such as '{"repeats": 1}'""")


def read_sources(configfiles: Sequence[str | Path], overrides: Mapping[str, Any]) -> Sources:
    """Return the sources in ``--config experiment=FILE cluster=FILE overlay=FILE key=value ...``.

    --configfile FILE is the same as experiment=FILE, but Snakemake itself reads that file first, and its error names
    neither file nor line. The experiment replaces config/config.yaml and is not merged with it; an overlay is merged,
    and stays among the overrides. Raises UserError for more than one experiment, and for an unknown centre.
    """
    rest = dict(overrides)
    if OVERLAY in rest:
        rest[OVERLAY] = str(Path(str(rest[OVERLAY])).expanduser())
    configfiles = [*configfiles, *([str(rest.pop("experiment"))] if "experiment" in rest else [])]
    if len(configfiles) > 1:
        where, allowed = "--configfile and --config experiment", "one file, which takes the place of config/config.yaml"
        advice = "start snakemake once per experiment, each with `results` of its own"
        raise UserError(Problem(where, "more than one experiment", " ".join(map(str, configfiles)), allowed, advice))
    config, cluster = _file(configfiles[0] if configfiles else CONFIG), _file(rest.pop("cluster", CLUSTER))
    return Sources(config, cluster, rest, **_of_this_start(rest))


def module_sources(config: Mapping[str, Any]) -> Sources:
    """Return the sources in a module's ``config:``, as of --config; with ``workload`` it is a whole experiment."""
    rest = dict(config)
    cluster, experiment = rest.pop("cluster", CLUSTER), rest.pop("experiment", None)
    is_whole = experiment is None and "workload" in rest
    of_this_start = _of_this_start(rest)
    return Sources(None if is_whole else _file(experiment or CONFIG), _file(cluster), rest, **of_this_start)


def moved(sources: Sources, move: Callable[[str], str]) -> Sources:
    """Return the sources with results and data_dir moved by ``move`` (a module's prefix). Raises UserError."""
    experiment = sources.load().experiment
    workload, data_dir = dict(sources.overrides.get("workload", {})), experiment.workload.data_dir
    if data_dir is not None:
        workload["data_dir"] = move(data_dir)
    return replace(sources, overrides={**sources.overrides, "results": move(experiment.results), "workload": workload})


def _of_this_start(values: dict[str, Any]) -> dict[str, Any]:
    """Take what only this start has out of the values. Raises UserError for a centre that is not known."""
    scale, centre, archive = (values.pop(key, None) for key in ("preflight_scale", "centre", "archive"))
    return {
        "preflight_scale": None if scale is None else str(scale),
        "centre": None if centre is None else centre_file(str(centre)).stem,
        "archive": None if archive is None else Path(str(archive)).expanduser(),
    }


def centre_file(name: str) -> Path:
    """Return the file of a computing centre's rules. Raises UserError for an unknown name."""
    files = {file.stem: file for file in sorted(CENTRES.glob("*.toml"), key=lambda file: file.stem)}
    if name not in files:
        advice = "name one of these, or add a file with the rules of yours to workflow/centres (docs/proposal.md)"
        raise UserError(Problem("--config centre", "no rules of such a centre", name, ", ".join(files), advice))
    return files[name]


def _file(name: object) -> Path:
    return Path(located(Path(str(name)).expanduser()))
