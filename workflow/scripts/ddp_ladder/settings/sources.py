"""The settings files and overrides that a snakemake command line names."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.paths import located
from ddp_ladder.settings.centres import CENTRE, centre_file
from ddp_ladder.settings.loading import OVERLAY, load_settings, read_documents
from ddp_ladder.settings.models import Settings
from ddp_ladder.settings.secrets import marked_overrides
from ddp_ladder.settings.strict_yaml import Document, has_control_characters, shown

CONFIG = Path("config/config.yaml")
CLUSTER = Path("config/cluster.yaml")
PREFLIGHT_SCALE = "preflight_scale"  # key of ``snakemake --config``
COMPARED_FOLDERS = "compare"  # another one: the folders that `snakemake compare` compares
WITHOUT_TRAINING = frozenset({"compare", "doctor", "eject", "report"})  # quick targets that run on this machine alone


@dataclass(frozen=True)
class Sources:
    """Files and overrides of this start's settings. config: None if the overrides are a whole experiment."""

    config: Path | None
    cluster: Path
    overrides: Mapping[str, Any]
    preflight_scale: str | None = None  # of `snakemake preflight`
    centre: str | None = None  # whose rules the report checks
    compared_folders: tuple[str, ...] = ()  # of `snakemake compare`; empty: the variants are compared

    @classmethod
    def of(cls, arguments: Namespace) -> Sources:
        """Return the sources named by the options of ``add_options``."""
        return cls(Path(arguments.config) if arguments.config else None, arguments.cluster, arguments.overrides)

    @property
    def options(self) -> list[str]:
        """The options of ``add_options`` that name these sources."""
        return [f"--config={self.config or ''}", f"--cluster={self.cluster}", f"--overrides={self.overrides_json}"]

    @property
    def report_options(self) -> list[str]:
        """The options of report.py that no settings file has."""
        return [] if self.centre is None else ["--centre", self.centre]

    @property
    def overrides_json(self) -> str:
        """The overrides for a command line, without secrets."""
        return json.dumps(marked_overrides(self.overrides), sort_keys=True)

    def load(self) -> Settings:
        """Read and check the settings. Raises UserError."""
        return load_settings(self.config, self.cluster, self.overrides)

    def documents(self) -> tuple[Document, Document]:
        """Read the experiment and the site again, for the line of each key. Raises UserError."""
        return read_documents(self.config, self.cluster, self.overrides)


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
        raise UserError(
            Problem(
                "--configfile and --config experiment",
                "more than one experiment",
                found=" ".join(str(file) for file in configfiles),
                allowed="one file, which takes the place of config/config.yaml",
                next="start snakemake once per experiment, each with `results` of its own",
            )
        )
    config, cluster = _file(configfiles[0] if configfiles else CONFIG), _file(rest.pop("cluster", CLUSTER))
    scale, centre, folders = _scale(rest), _centre(rest), _folders(rest)
    return Sources(config, cluster, rest, scale, centre, folders)


def module_sources(config: Mapping[str, Any]) -> Sources:
    """Return the sources in a module's ``config:``, as of --config; with ``workload`` it is a whole experiment."""
    rest = dict(config)
    cluster, experiment = rest.pop("cluster", CLUSTER), rest.pop("experiment", None)
    is_whole = experiment is None and "workload" in rest
    scale, centre, folders = _scale(rest), _centre(rest), _folders(rest)
    return Sources(None if is_whole else _file(experiment or CONFIG), _file(cluster), rest, scale, centre, folders)


def moved(sources: Sources, move: Callable[[str], str]) -> Sources:
    """Return the sources with results and data_dir moved by ``move`` (a module's prefix). Raises UserError."""
    experiment = sources.load().experiment
    workload, data_dir = dict(sources.overrides.get("workload", {})), experiment.workload.data_dir
    if data_dir is not None:
        workload["data_dir"] = move(data_dir)
    return replace(sources, overrides={**sources.overrides, "results": move(experiment.results), "workload": workload})


def _scale(values: dict[str, Any]) -> str | None:
    """Take preflight_scale out of the values."""
    return None if (asked := values.pop(PREFLIGHT_SCALE, None)) is None else str(asked)


def _centre(values: dict[str, Any]) -> str | None:
    """Take centre out of the values. Raises UserError for one that is not known."""
    if (asked := values.pop(CENTRE, None)) is None:
        return None
    return centre_file(str(asked)).stem


def _folders(values: dict[str, Any]) -> tuple[str, ...]:
    """Take the folders to compare out of the values: a list, or one name."""
    named = values.pop(COMPARED_FOLDERS, None) or ()
    several = named if isinstance(named, list | tuple) else (named,)
    return tuple(str(Path(str(name)).expanduser()) for name in several)


def _file(name: object) -> Path:
    return Path(located(Path(str(name)).expanduser()))


def check_checkout(*directories: Path) -> None:
    """Raise UserError if the path of a directory cannot be used by Snakemake or in a shell script."""
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


def runs_no_training(arguments: Sequence[str], quick: Collection[str] = WITHOUT_TRAINING) -> bool:
    """Return True if a snakemake command line names a quick target that runs no training."""
    return not set(quick).isdisjoint(arguments)
