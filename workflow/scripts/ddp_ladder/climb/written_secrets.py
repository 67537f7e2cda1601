"""Secrets of the settings before a start: those that would be written, and those that are missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ddp_ladder.common.messages import Problem
from ddp_ladder.common.redaction import NOT_SHOWN, is_secret_name, is_secret_value, redacted_arguments, secret_arguments
from ddp_ladder.settings.models import Settings
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT, exported_secret, secrets_of_runs
from ddp_ladder.settings.strict_yaml import KeyPath

# A value that is written out, and not taken from a file or another variable.
_EXPORT = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)=['\"]?([^\s'\"$`(][^\s'\"]*)")
_WRITTEN = "a secret that is written to files: run.json, job.sh, record.json"


def missing_secrets(settings: Settings, environment: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each secret that the settings leave to the environment, and that is not there."""
    secrets = secrets_of_runs(settings.experiment, settings.site.network.env)
    names = dict.fromkeys(name for _, name, value in secrets if value == FROM_ENVIRONMENT)
    return [
        Problem(
            f"{settings.experiment.file}: {name}",
            "a secret that is to come from the environment is not there",
            found=FROM_ENVIRONMENT,
            next=f"export {name}=... and start again",
        )
        for name in names
        if exported_secret(name, environment) is None
    ]


def written_secrets(settings: Settings) -> Iterator[tuple[str, KeyPath, Problem]]:
    """Yield file (``config`` or ``cluster``), key and message of each secret in a value that has to be written."""
    workload, software = settings.experiment.workload, settings.site.software
    arguments: list[tuple[str, KeyPath, Sequence[str]]] = [
        ("config", ("workload", "args"), workload.args),
        ("config", ("workload", "prepare"), workload.prepare or ()),
        *(("config", ("variants", each.name, "args"), each.args) for each in settings.experiment.variants),
    ]
    if software.container is not None:
        arguments.append(("cluster", ("software", "container", "args"), software.container.args))
    for file, path, words in arguments:
        shown = redacted_arguments(words)
        for index in secret_arguments(words):
            found = " ".join(shown[max(0, index - 1) : index + 1])
            advice = "put it in workload.env, which is written nowhere, and let the script read it from there"
            yield file, (*path, index), Problem("", _WRITTEN, found, next=advice)
    if names := _set_in(software.setup):
        advice = "read it from a file that only you can read: export NAME=$(cat FILE); or put it in workload.env"
        found = ", ".join(f"{name}={NOT_SHOWN}" for name in names)
        yield "cluster", ("software", "setup"), Problem("", _WRITTEN, found, next=advice)


def _set_in(setup: str) -> list[str]:
    return [name for name, value in _EXPORT.findall(setup) if is_secret_name(name) or is_secret_value(value)]
