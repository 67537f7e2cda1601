"""Secrets among the environment variables of the settings: never written, they reach the runs by the environment.

A plan has a marker in place of each value. The start of Snakemake exports the values under names of its own, which its
jobs inherit; an agent gives each to the runs whose plan has the marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from ddp_ladder.common.redaction import is_amount, is_secret_name, is_secret_value
from ddp_ladder.settings.placeholders import NAMES

if TYPE_CHECKING:  # a node's agent reads no settings
    from ddp_ladder.settings.models import Experiment, Settings

FROM_ENVIRONMENT = "(secret from the environment)"
"""In place of a secret's value, in plan and scripts; also accepted in the settings files."""
SHORTEST = 8  # characters of a value that is looked for in a text; a shorter one may be any word
_EXPORTED = "DDP_LADDER_SECRET_"


def is_secret(name: str, value: str) -> bool:
    """Return True if a variable of the settings must not be written.

    A value with placeholders is none, unless it has the form of one: each run has its own. Nor is a number of things.
    """
    if value == FROM_ENVIRONMENT or is_secret_value(value):
        return True
    return is_secret_name(name) and not is_amount(name, value) and not has_placeholder(value)


def has_placeholder(value: str) -> bool:
    """Return True if a placeholder is in the value; a password may contain other braces."""
    return any(f"{{{name}}}" in value for name in NAMES)


def marked(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the marker in place of secrets."""
    return {name: FROM_ENVIRONMENT if is_secret(name, value) else value for name, value in env.items()}


def marked_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of the experiment as they may be passed on and written, with the marker in place of secrets."""

    def section(data: Any) -> Any:
        env = data.get("env") if isinstance(data, Mapping) else None
        if not isinstance(env, Mapping):
            return data
        return {**data, "env": {str(name): marked_value(str(name), value) for name, value in env.items()}}

    def marked_value(name: str, value: Any) -> Any:
        return FROM_ENVIRONMENT if is_secret(name, str(value)) else value

    made = dict(overrides)
    if "workload" in made:
        made["workload"] = section(made["workload"])
    if isinstance(made.get("variants"), Mapping):
        made["variants"] = {name: section(variant) for name, variant in made["variants"].items()}
    return made


def marked_names(overrides: Mapping[str, Any]) -> list[str]:
    """Return the variables that have a marker in these keys of the experiment, once they are written."""
    made = marked_overrides(overrides)
    variants = made.get("variants")
    sections = [made.get("workload"), *(variants.values() if isinstance(variants, Mapping) else ())]
    found = [env for section in sections if isinstance(section, Mapping) and (env := section.get("env"))]
    return list(dict.fromkeys(name for env in found for name, value in env.items() if value == FROM_ENVIRONMENT))


def secrets_of_runs(experiment: Experiment, network_env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield variant, name and value of the secrets of each variant's runs."""
    for variant in experiment.variants:
        for name, value in {**network_env, **experiment.workload.env, **variant.env}.items():
            if is_secret(name, value):
                yield variant.name, name, value


def export_secrets(settings: Settings, environment: MutableMapping[str, str]) -> None:
    """Add the settings' secrets to the environment of this process, for the jobs that it starts."""
    for _, name, value in secrets_of_runs(settings.experiment, settings.site.network.env):
        if value != FROM_ENVIRONMENT:
            environment[f"{_EXPORTED}{name}"] = value


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
