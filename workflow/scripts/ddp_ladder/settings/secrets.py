"""Secrets among the environment variables of the settings: never written, they reach the runs by the environment.

These are the variables that ``workload.secrets`` names, and those with a usual name (common.redaction). A plan has a
marker in place of each value. The start of Snakemake exports the values under names of its own, which its jobs inherit;
an agent gives each to the runs whose plan has the marker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from ddp_ladder.common.messages import Problem
from ddp_ladder.common.redaction import is_secret_name, redacted, redacted_arguments, secret_arguments
from ddp_ladder.settings.placeholders import has_placeholder

if TYPE_CHECKING:  # a node's agent reads no settings
    from ddp_ladder.settings.keys import Experiment, Settings
    from ddp_ladder.settings.yaml import KeyPath

FROM_ENVIRONMENT = "(secret from the environment)"
"""In place of a secret's value, in plan and scripts; also accepted in the settings files."""
SHORTEST = 8  # characters of a value that is looked for in a text; a shorter one may be any word
_EXPORTED = "DDP_LADDER_SECRET_"


def is_secret(name: str, value: str, named: Collection[str] = ()) -> bool:
    """Return True if a variable of the settings must not be written. named: those of workload.secrets.

    A value with placeholders under a usual name is none: each run has its own.
    """
    return value == FROM_ENVIRONMENT or name in named or (is_secret_name(name) and not has_placeholder(value))


def marked(env: Mapping[str, str], named: Collection[str] = ()) -> dict[str, str]:
    """Return the variables with the marker in place of secrets, those of workload.secrets among them."""
    given = {name: FROM_ENVIRONMENT if is_secret(name, value, named) else value for name, value in env.items()}
    return {**dict.fromkeys(named, FROM_ENVIRONMENT), **given}


def marked_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of the experiment as they may be passed on and written, with the marker in place of secrets."""
    workload = overrides.get("workload")
    named = workload.get("secrets") or () if isinstance(workload, Mapping) else ()

    def without_values(data: Any) -> Any:
        env = data.get("env") if isinstance(data, Mapping) else None
        if not isinstance(env, Mapping):
            return data
        hidden = {name for name, value in env.items() if is_secret(str(name), str(value), named)}
        return {**data, "env": {**env, **dict.fromkeys(hidden, FROM_ENVIRONMENT)}}

    made = dict(overrides)
    if "workload" in made:
        made["workload"] = without_values(made["workload"])
    if isinstance(made.get("variants"), Mapping):
        made["variants"] = {name: without_values(variant) for name, variant in made["variants"].items()}
    return made


def secrets_of_runs(experiment: Experiment, network_env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield variant, name and value of the secrets of each variant's runs."""
    named = experiment.workload.secrets
    for variant, keys in experiment.variants.items():
        env = {**dict.fromkeys(named, FROM_ENVIRONMENT), **network_env, **experiment.workload.env, **keys.env}
        for name, value in env.items():
            if is_secret(name, value, named):
                yield variant, name, value


def export_secrets(settings: Settings, environment: MutableMapping[str, str]) -> None:
    """Add the settings' secrets to the environment of this process, for the jobs that it starts."""
    for _, name, value in secrets_of_runs(settings.experiment, settings.site.network.env):
        if value != FROM_ENVIRONMENT:
            environment[f"{_EXPORTED}{name}"] = value
        elif name in environment:  # so that an agent hides it in what it writes
            environment.setdefault(f"{_EXPORTED}{name}", environment[name])


def exported_secret(name: str, environment: Mapping[str, str]) -> str | None:
    """Return the value of a secret: as a start exported it, else the variable itself; None without both."""
    return environment.get(f"{_EXPORTED}{name}", environment.get(name))


def without_exported(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a training: without the names under which a start exports secrets."""
    return {name: value for name, value in environment.items() if not name.startswith(_EXPORTED)}


def known_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets in the environment of a process, to be hidden in what it writes; very short ones are not."""
    names = (name for name in environment if name.startswith(_EXPORTED) or is_secret_name(name))
    return [environment[name] for name in names if len(environment[name]) >= SHORTEST]


def missing_secrets(settings: Settings, environment: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each secret that the settings leave to the environment, and that is not there."""
    secrets = secrets_of_runs(settings.experiment, settings.site.network.env)
    names = dict.fromkeys(name for _, name, value in secrets if value == FROM_ENVIRONMENT)
    what = "a secret that is to come from the environment is not there"
    return [
        Problem(f"{settings.experiment.file}: {name}", what, next=f"export {name}=... and start again")
        for name in names
        if exported_secret(name, environment) is None
    ]


def written_secrets(settings: Settings) -> Iterator[Problem]:
    """Yield a warning for each secret in a value that has to be written."""
    workload, setup = settings.experiment.workload, settings.site.software.setup
    what = "a secret that is written to files: run.json, job.sh, record.json"
    advice = "put it in workload.env, which is written nowhere, and read it from there"
    arguments: list[tuple[KeyPath, Sequence[str]]] = [
        (("workload", "args"), workload.args),
        (("workload", "prepare"), workload.prepare or ()),
    ]
    arguments += [(("variants", name, "args"), each.args) for name, each in settings.experiment.variants.items()]
    for path, words in arguments:
        shown = redacted_arguments(words)
        for index in secret_arguments(words):
            found = " ".join(shown[max(0, index - 1) : index + 1])
            yield Problem(settings.config.where(*path, index), what, found, next=advice)
    if redacted(setup) != setup:
        yield Problem(settings.cluster.where("software", "setup"), what, next=advice)
