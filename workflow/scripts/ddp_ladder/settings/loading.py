"""Read config.yaml and cluster.yaml into Settings, or report everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.paths import located
from ddp_ladder.settings import strict_yaml
from ddp_ladder.settings.cluster_keys import ClusterKeys
from ddp_ladder.settings.config_keys import ConfigKeys, Workload
from ddp_ladder.settings.cross_checks import cross_field_problems
from ddp_ladder.settings.json_schema import written_out
from ddp_ladder.settings.models import Experiment, Settings, Site, Stage, Variant
from ddp_ladder.settings.strict_yaml import Document, KeyPath
from ddp_ladder.settings.terms import STAGES
from ddp_ladder.settings.validation import typed_override, validated

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
    config, cluster = read_documents(config_file, cluster_file, overrides)
    config_keys, cluster_keys = validated([(config, ConfigKeys), (cluster, ClusterKeys)])
    settings = Settings(_experiment(config.file, config_keys), _site(cluster.file, cluster_keys))
    _raise_if_any(cross_field_problems(settings, config, cluster))
    return settings


def read_documents(
    config_file: Path | None, cluster_file: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[Document, Document]:
    """Read both files as load_settings does, and check only that they are YAML. Raises UserError."""
    given = dict(overrides or {})
    overlays = [Path(located(str(given.pop(OVERLAY))))] if OVERLAY in given else []
    if given:
        given = typed_override(given, written_out(ConfigKeys))
    if config_file is None:
        cluster, *over = _read_all(cluster_file, *overlays)
        config, given = Document(OF_MODULE, given), {}
    else:
        config, cluster, *over = _read_all(config_file, cluster_file, *overlays)
    for document in over:
        config = _overridden(config, document.data, document)
    return _overridden(config, given), cluster


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
    kept = {
        path: over
        for path, over in document.overridden.items()
        if not any(path[: len(head)] == head for head in replaced)
    }
    return replace(document, data=data, overridden={**kept, **dict.fromkeys(replaced, origin)})


def _experiment(file: Path, keys: ConfigKeys) -> Experiment:
    stages = ((name, getattr(keys.stages, name)) for name in STAGES)
    return Experiment(
        file=file,
        results=keys.results,
        workload=_found(keys.workload),
        measure=keys.measure,
        modes=keys.modes,
        repeats=keys.repeats,
        jobs=keys.jobs,
        stages=tuple(Stage(name, one.scales, one.runtime, one.gate, one.slurm) for name, one in stages if one),
        variants=tuple(
            Variant(name, one.launcher, one.network.backend, one.network.interface, one.args, one.env, one.reason)
            for name, one in keys.variants.items()
        ),
        hang=keys.hang,
        may_differ=keys.fingerprint.may_differ,
        preflight=keys.preflight,
        logs=keys.logs,
        monitor=keys.monitor,
        report=keys.report,
    )


def _found(workload: Workload) -> Workload:
    """Return the workload with the paths of its scripts: in the working directory, or else in ddp-ladder's own."""
    script, prepare = workload.script, workload.prepare
    return workload.replace(
        script=script if script.startswith("-") else located(script),
        prepare=prepare and (located(prepare[0]), *prepare[1:]),
    )


def _site(file: Path, keys: ClusterKeys) -> Site:
    return Site(file, keys.site, keys.slurm, keys.node, keys.software, keys.network, keys.launcher)
