"""Find and read config.yaml and cluster.yaml, with the overrides of a command line, or report all that is wrong."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml as pyyaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ddp_ladder.common.files import CENTRES, OWN, located
from ddp_ladder.common.messages import Problem, UserError, did_you_mean
from ddp_ladder.common.model import Model, Schema
from ddp_ladder.settings import yaml
from ddp_ladder.settings.checks import conflicts
from ddp_ladder.settings.keys import Experiment, Settings, Site
from ddp_ladder.settings.yaml import AS_TYPED, KeyPath, YamlFile, key_name, shown

OF_MODULE = Path("config of the module")  # in place of a file name
OVERLAY = "overlay"  # key of ``snakemake --config`` for a file that is laid over the experiment

Part = Mapping[str, Any]  # of a JSON Schema


def load_settings(config_file: Path | None, cluster_file: Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read and check both files. Raises UserError with every problem found.

    config_file: None if the overrides are a whole experiment, as those of a module may be.
    overrides: values of ``snakemake --config``, laid over config.yaml key by key (lists are replaced whole). Nested
    values are text, because Snakemake passes them so; they are read as in a file. ``overlay`` is a file whose keys are
    laid over config.yaml before the others.
    """
    config, cluster = _documents(config_file, cluster_file, dict(overrides or {}))
    experiment, site = validated([(config, Experiment), (cluster, Site)])
    experiment._file, site._file = config.file, cluster.file
    settings = Settings(experiment, site, config, cluster)
    if problems := list(conflicts(settings)):
        raise UserError(problems)
    return settings


# Documents


def _documents(config_file: Path | None, cluster_file: Path, given: dict[str, Any]) -> tuple[YamlFile, YamlFile]:
    """Read both files, and check only that they are YAML."""
    overlays = [Path(located(str(given.pop(OVERLAY))))] if OVERLAY in given else []
    given = {key: _typed(value, (key,)) if isinstance(value, dict | list) else value for key, value in given.items()}
    config = YamlFile(OF_MODULE, given) if config_file is None else yaml.read(config_file)
    cluster, *over = map(yaml.read, (cluster_file, *overlays))
    for document in over:
        config = _overridden(config, document.data, document)
    return _overridden(config, {} if config_file is None else given), cluster


def _typed(value: Any, path: KeyPath) -> Any:
    """Return nested values of ``snakemake --config``, all of them text, with the types that they have in a file."""
    if isinstance(value, Mapping):
        return {str(key): _typed(item, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_typed(item, (*path, index)) for index, item in enumerate(value)]
    if value == "None" and path[-1] not in AS_TYPED:
        return None  # so Snakemake passes a null on to its jobs
    return yaml.scalar(value) if isinstance(value, str) and AS_TYPED.isdisjoint(path[:-1]) else value


def _overridden(document: YamlFile, overrides: Mapping[str, Any], origin: YamlFile | None = None) -> YamlFile:
    """Return the document with ``overrides`` on top, and the keys replaced. origin: None for the command line."""
    replaced: set[KeyPath] = set()

    def merged(old: Any, new: Any, path: KeyPath) -> Any:
        if path and not (isinstance(old, dict) and isinstance(new, dict)):
            replaced.add(path)
            return new
        return {**old, **{key: merged(old.get(key), new[key], (*path, key)) for key in new}}

    data = merged(document.data, overrides, ())
    return replace(document, data=data, overridden={**document.overridden, **dict.fromkeys(replaced, origin)})


# From pydantic's errors to messages


def validated(checked: Sequence[tuple[YamlFile, type[Model]]]) -> list[Any]:
    """Return the sections that documents hold. Raises UserError with all mistakes, in the order of their lines."""
    values: list[Any] = []
    problems: list[Problem] = []
    for document, model in checked:
        try:
            values.append(model.model_validate(document.data))
        except ValidationError as errors:
            by_line = [_explained(error, document, model) for error in errors.errors() if not _follows(error)]
            problems += [problem for _, problem in sorted(by_line, key=lambda item: item[0])]
    if problems:
        raise UserError(problems)
    return values


def _follows(error: ErrorDetails) -> bool:
    """Return True for a list that is too short because its items are wrong."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _explained(error: ErrorDetails, document: YamlFile, model: type[Model]) -> tuple[int, Problem]:
    """Return the line and the message of an error."""
    part = section = schema(model)
    data: Any = document.data
    path: KeyPath = ()
    for key in error["loc"]:  # also has names of pydantic's own, such as [key]
        if key in data if isinstance(data, dict) else isinstance(data, list) and isinstance(key, int):
            part, section, path, data = inside(part, key), part, (*path, key), data[key]
    if error["type"] == "missing":
        path = (*path, error["loc"][-1])
        part = inside(part, path[-1])
        example = _example(part, str(path[-1])) or str(path[-1])
        under = f" under {key_name(path[:-1])}" if len(path) > 1 else ""
        problem = Problem(document.where(*path), "missing key", None, in_words(part), f"add {example}{under}")
    elif error["type"] == "extra_forbidden":
        known, where = list(section["properties"]), document.where(*path)
        homes = [key_name(home) for model in (Site, Experiment) for home in _paths_to(path[-1], schema(model))]
        elsewhere = f"move it to {homes[0]}" if homes else f"remove it; {_SEE} for all keys of both files"
        advice = did_you_mean(str(path[-1]), known) or elsewhere
        problem = Problem(where, "unknown key", shown(path[-1]), ", ".join(known), advice)
    else:
        what = error["ctx"]["what"] if error["type"] == "refused" else _WHAT.get(error["type"], "a value not allowed")
        advice = error["ctx"]["next"] if error["type"] == "refused" else _advice(error["input"], part, path)
        allowed = f"at most {error['ctx']['max_length']}" if error["type"].endswith("too_long") else in_words(part)
        if error["loc"][-1] == "[key]":
            others = ". _ -" if "." in error["ctx"].get("pattern", "") else "_"
            allowed, advice = f"a name of letters, digits and {others}, with a letter first", "correct the name"
        problem = Problem(document.where(*path), what, shown(error["input"]), allowed, advice)
    return document.line(*path), problem


_WHAT = {
    "literal_error": "not one of the allowed values", "string_pattern_mismatch": "not in the expected format",
    "greater_than": "too small", "greater_than_equal": "too small", "less_than_equal": "too large",
    "too_short": "empty", "string_too_short": "empty", "too_long": "too many", "string_too_long": "too many characters",
}  # fmt: skip
_SEE = "see config/README.md"


def _paths_to(key: str | int, part: Part, path: KeyPath = ()) -> Iterator[KeyPath]:
    for name, inner in part.get("properties", {}).items():
        if name == key:
            yield (*path, name)
        yield from _paths_to(key, inner, (*path, name))


def _advice(value: Any, part: Part, path: KeyPath) -> str:
    """Return what was meant, if that can be told from the value; else an example, and what the key means."""
    key = next((name for name in reversed(path) if isinstance(name, str)), "")
    if isinstance(value, str):
        if guess := did_you_mean(value, [word for word in part.get("enum", ()) if word]):
            return guess
        if {"integer", "number"} & {*types_of(part)} and isinstance(number := yaml.scalar(value), int | float):
            return f"write it without quotes: {key}: {number}"
    elif isinstance(value, dict) and [*value.values()] in ([None], [""]):
        return f'put placeholders in quotes: "{{{next(iter(value))}}}"'
    elif "string" in types_of(part) and not isinstance(value, dict | list):
        return f'put it in quotes if you mean the text: "{shown(value)}"'
    example = _example(part, "" if isinstance(path[-1], int) else key)
    meaning = part.get("description") or _SEE
    begin = meaning[0] if meaning[:2].isupper() else meaning[0].lower()  # GPU hours
    return f"for example {example} ({begin + meaning[1:].rstrip('.')})" if example else meaning


# A model's JSON Schema, which says what a key accepts


@cache
def schema(model: type[Model]) -> Part:
    """Return a model's JSON Schema: each part stands where it belongs, with a list of types in place of ``anyOf``."""
    written = model.model_json_schema(schema_generator=Schema)
    return _written_out(written, written.pop("$defs"))  # type: ignore[no-any-return]


def _written_out(part: Any, definitions: Part) -> Any:
    if isinstance(part, list):
        return [_written_out(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _written_out(value, definitions) for key, value in part.items()}
    if "$ref" in part:
        name = part.pop("$ref").rpartition("/")[2]
        part = {**_written_out(definitions[name], definitions), **part}
    if options := [*part.pop("anyOf", []), *part.pop("oneOf", [])]:
        types = [name for option in options for name in types_of(option)]
        part = {key: value for option in options for key, value in option.items()} | part
        part["type"] = list(dict.fromkeys(types))
    return part


def types_of(part: Part) -> list[str]:
    """Return the JSON types that a part allows."""
    types = part.get("type", [])
    return types if isinstance(types, list) else [types]


def inside(part: Part, key: str | int) -> Part:
    """Return the schema of a key or an item; empty for an unknown key."""
    if isinstance(key, int):
        return part.get("items", {})  # type: ignore[no-any-return]
    named = part.get("patternProperties", {"": part.get("additionalProperties") or {}})
    return part.get("properties", {}).get(key) or next(iter(named.values()))  # type: ignore[no-any-return]


def in_words(part: Part) -> str:
    """Return what a key accepts: ``a whole number from 1 to 100``."""
    types = [name for name in types_of(part) if name != "null"]
    if "enum" in part:
        words = "one of " + ", ".join(str(item) for item in part["enum"] if item is not None)
    elif "patternErrorMessage" in part:
        words = part["patternErrorMessage"]
    elif types == ["array"]:
        words = f"a list, each item {in_words(part['items'])}"
    elif "object" in types:
        keys = ", ".join(part.get("properties", {}))
        words = f"keys {keys}" if keys else "keys with values"
        if others := [name for name in types if name != "object"]:
            words = f"{in_words({**part, 'type': others})}, or {words}"
    else:
        words = " or ".join(_TYPE_WORDS[name] for name in types) + _bounds(part)
    return f"{words}, or null" if "null" in types_of(part) else str(words)


_TYPE_WORDS = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}


def _bounds(part: Part) -> str:
    low, above, high = (part.get(word) for word in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    bounds = {"above": above, "at least": low, "at most": high}
    return " and".join(f" {word} {bound}" for word, bound in bounds.items() if bound is not None)


def _example(part: Part, key: str) -> str | None:
    """Return a line to type, ``repeats: 3``; only the value if key is empty."""
    default = part.get("default")
    values = [*part.get("examples", []), *part.get("enum", []), *([] if default is None else [default])]
    text = flow(values[0]) if values else None
    return f"{key}: {text}" if text and key else text


def flow(value: Any) -> str:
    """Return a value as one line of YAML."""
    text = pyyaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


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
"""Settings for a start that needs none, as of `snakemake new_site`."""


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
    scale, centre = (values.pop(key, None) for key in ("preflight_scale", "centre"))
    return {
        "preflight_scale": None if scale is None else str(scale),
        "centre": None if centre is None else centre_file(str(centre)).stem,
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
