"""Read config.yaml and cluster.yaml into Settings, or report everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.paths import located
from ddp_ladder.settings import strict_yaml
from ddp_ladder.settings.cross_checks import cross_field_problems
from ddp_ladder.settings.models import (
    STAGES,
    Container,
    Experiment,
    GateThresholds,
    Measure,
    Network,
    Node,
    Scale,
    Settings,
    Site,
    Slurm,
    Software,
    Stage,
    Variant,
    Workload,
)
from ddp_ladder.settings.schema_check import at_home, load_schema, schema_problems, typed_override, with_defaults
from ddp_ladder.settings.strict_yaml import Document, KeyPath

T = TypeVar("T")
OF_MODULE = Path("config of the module")  # in place of a file name

OVERLAY = "overlay"
"""Key of ``snakemake --config`` for a file that is laid over the experiment."""


def load_settings(config_file: Path | None, cluster_file: Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read and check both files. Raises UserError with every problem found.

    config_file: None if the overrides are a whole experiment, as those of a module may be.
    overrides: values of ``snakemake --config``, laid over config.yaml key by key (lists are replaced whole). Text
    becomes a number or null where the schema takes no text, because Snakemake passes nested values as text.
    ``overlay`` is a file whose keys are laid over config.yaml before the others.
    """
    given = dict(overrides or {})
    overlays = [Path(located(str(given.pop(OVERLAY))))] if OVERLAY in given else []
    config_schema, cluster_schema = load_schema("config"), load_schema("cluster")
    given = typed_override(given, config_schema)
    if config_file is None:
        cluster, *over = _read_all(cluster_file, *overlays)
        config, given = Document(OF_MODULE, given), {}
    else:
        config, cluster, *over = _read_all(config_file, cluster_file, *overlays)
    for document in over:
        config = _overridden(config, document.data, document)
    config = _overridden(config, given)
    config = replace(config, data=at_home(config.data, config_schema))
    cluster = replace(cluster, data=at_home(cluster.data, cluster_schema))
    _raise_if_any(schema_problems([(config, config_schema), (cluster, cluster_schema)]))
    settings = Settings(
        experiment=_experiment(config, with_defaults(config.data, config_schema)),
        site=_site(cluster, with_defaults(cluster.data, cluster_schema)),
    )
    _raise_if_any(cross_field_problems(settings, config, cluster))
    return settings


def _raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise UserError(problems)


def _read_all(*files: Path) -> list[Document]:
    documents: list[Document] = []
    problems: list[Problem] = []
    for file in files:
        try:
            documents.append(strict_yaml.read(file))
        except UserError as error:
            problems.extend(error.problems)
    _raise_if_any(problems)
    return documents


def _overridden(document: Document, overrides: Mapping[str, Any], origin: Document | None = None) -> Document:
    """Return the document with ``overrides`` on top, and the keys replaced. origin: None for the command line."""
    replaced: set[KeyPath] = set()

    def merged(old: Any, new: Any, path: KeyPath) -> Any:
        if path and not (isinstance(old, dict) and isinstance(new, dict)):
            replaced.add(path)
            return new
        return {**old, **{key: merged(old.get(key), new[key], (*path, key)) for key in new}}

    data = merged(document.data, overrides, ())

    def is_replaced(path: KeyPath) -> bool:
        return any(path[: len(head)] == head for head in replaced)

    texts = {path: text for path, text in document.texts.items() if not is_replaced(path)}
    texts |= {path: text for path, text in (origin.texts if origin else {}).items() if is_replaced(path)}
    kept = {path: over for path, over in document.overridden.items() if not is_replaced(path)}
    return replace(document, data=data, texts=texts, overridden={**kept, **dict.fromkeys(replaced, origin)})


def _experiment(document: Document, data: Mapping[str, Any]) -> Experiment:
    measure, max_seconds = data["measure"], data["measure"]["max_seconds"]
    return Experiment(
        file=document.file,
        results=_path(data["results"]),
        workload=_workload(document, data["workload"]),
        measure=Measure(
            warmup_steps=_optional(int, measure["warmup_steps"]),
            min_steps=int(measure["min_steps"]),
            max_steps=_optional(int, measure["max_steps"]),
            max_seconds=_optional(float, max_seconds),
            plain_baseline=measure["plain_baseline"],
        ),
        modes=tuple(data["modes"]),
        repeats=int(data["repeats"]),
        stages=tuple(_stage(name, data["stages"][name]) for name in STAGES if data["stages"].get(name) is not None),
        variants=tuple(_variant(document, name, variant) for name, variant in data["variants"].items()),
        may_differ=tuple(data["fingerprint"]["may_differ"]),
    )


def _workload(document: Document, data: Mapping[str, Any]) -> Workload:
    path = ("workload",)
    prepare = data["prepare"]
    return Workload(
        script=data["script"] if data["script"].startswith("-") else located(data["script"]),
        args=_arguments(document, data["args"], (*path, "args")),
        batch_per_gpu=int(data["batch_per_gpu"]),
        samples_per_step=None if data["samples_per_step"] is None else document.text(*path, "samples_per_step"),
        throughput_regex=data["throughput_regex"],
        lr=_optional(float, data["lr"]),
        lr_rule=data["lr_rule"],
        seed=int(data["seed"]),
        data_dir=_optional(_path, data["data_dir"]),
        prepare=None if prepare is None else _located(_arguments(document, prepare, (*path, "prepare"))),
        env=_environment(document, data["env"], (*path, "env")),
        directory=_optional(_path, data["directory"]),
    )


def _stage(name: str, data: Mapping[str, Any]) -> Stage:
    gate = data["gate"]
    return Stage(
        name=name,
        scales=tuple(Scale.parse(scale) for scale in data["scales"]),
        runtime_min=int(data["runtime"]),
        gate=GateThresholds(
            min_efficiency=_optional(float, gate["min_efficiency"]),
            min_samples_per_s=_optional(float, gate["min_samples_per_s"]),
            max_data_wait_fraction=_optional(float, gate["max_data_wait_fraction"]),
            max_efficiency=float(gate["max_efficiency"]),
            certain=gate["certain"],
        ),
        slurm=_slurm(data["slurm"]),
    )


def _variant(document: Document, name: str, data: Mapping[str, Any]) -> Variant:
    path = ("variants", name)
    return Variant(
        name=name,
        launcher=data["launcher"],
        backend=data["network"]["backend"],
        interface=data["network"]["interface"],
        args=_arguments(document, data["args"], (*path, "args")),
        env=_environment(document, data["env"], (*path, "env")),
        reason=data["reason"],
    )


def _site(document: Document, data: Mapping[str, Any]) -> Site:
    network = data["network"]
    return Site(
        file=document.file,
        name=data["site"],
        slurm=_slurm(data["slurm"]),
        node=_node(data["node"]),
        software=_software(document, data["software"]),
        network=Network(
            backend=network["backend"],
            interface=network["interface"],
            env=_environment(document, network["env"], ("network", "env")),
        ),
        launcher=data["launcher"],
    )


def _slurm(data: Mapping[str, Any]) -> Slurm:
    return Slurm(**{**data, "extra": tuple(data["extra"])})


def _node(data: Mapping[str, Any]) -> Node:
    return Node(
        gpus=int(data["gpus"]),
        device=data["device"],
        cpus=int(data["cpus"]),
        gres=data["gres"],
        memory_mb=_optional(int, data["memory_mb"]),
        driver=data["driver"],
    )


def _software(document: Document, data: Mapping[str, Any]) -> Software:
    container, path = data["container"], ("software", "container")
    return Software(
        python=data["python"],
        modules=tuple(data["modules"]),
        setup=data["setup"],
        container=container
        and Container(
            image=container["image"],
            engine=container["engine"],
            binds=tuple(container["binds"]),
            args=_arguments(document, container["args"], (*path, "args")),
        ),
    )


def _arguments(document: Document, data: list[Any], path: KeyPath) -> tuple[str, ...]:
    return tuple(document.text(*path, index) for index in range(len(data)))


def _environment(document: Document, data: Mapping[str, Any], path: KeyPath) -> dict[str, str]:
    return {name: document.text(*path, name) for name in data}


def _located(command: tuple[str, ...]) -> tuple[str, ...]:
    return (located(command[0]), *command[1:])


def _path(text: str) -> str:
    """Return the path without ``./``, ``//`` and a last ``/``, so that each file has one name."""
    return str(PurePosixPath(text))


def _optional(convert: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else convert(value)
