"""The run's settings for this rank, from run.json and the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_VARIABLE = "DDP_LADDER_RUN"
LAUNCHED_VARIABLE = "DDP_LADDER_LAUNCHED_AT"
SECRET_MARKER = "(secret from the environment)"
"""What run.json has in place of a secret's value."""


class RunSettingsError(Exception):
    """The environment or run.json is invalid; the text is for the user."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run that this rank needs. ``launched_at_s`` is Unix time.

    secrets: the names of variables that hold one.
    """

    directory: Path
    spec_hash: str
    job: Mapping[str, Any]
    warmup_steps: int
    max_steps: int | None
    max_seconds: float | None
    samples_per_step: int | None
    device: str | None
    launched_at_s: float | None
    profile_steps: int = 0
    secrets: tuple[str, ...] = ()


def read_run_settings(environment: Mapping[str, str] = os.environ) -> RunSettings:
    """Read the run.json that DDP_LADDER_RUN names. Raises RunSettingsError."""
    name = environment.get(RUN_VARIABLE)
    if not name:
        raise RunSettingsError(
            f"{RUN_VARIABLE} is not set: it must hold the absolute path of the run's run.json.\n"
            "  next     let the workflow start the run, or run the script without instrument.py"
        )
    path = Path(name)
    if not path.is_absolute():
        raise RunSettingsError(f"{RUN_VARIABLE} must be an absolute path\n  found    {name}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        measure = data.get("spec") or {}
        return RunSettings(
            directory=path.parent,
            spec_hash=str(data["spec_hash"]),
            job=dict(data["job"]),
            warmup_steps=int(measure.get("warmup_steps") or 0),
            max_steps=_limit(measure, "max_steps", int),
            max_seconds=_limit(measure, "max_seconds", float),
            samples_per_step=_limit(measure, "samples_per_step", int),
            device=measure.get("device"),
            launched_at_s=_unix_seconds(environment.get(LAUNCHED_VARIABLE)),
            profile_steps=int(measure.get("profile_steps") or 0),
            secrets=tuple(name for name, value in (measure.get("env") or {}).items() if value == SECRET_MARKER),
        )
    except OSError as error:
        raise RunSettingsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunSettingsError(f"{path} is not a run.json: {type(error).__name__}: {error}") from error


def _limit(measure: Mapping[str, Any], key: str, kind: type[int] | type[float]) -> Any:
    value = measure.get(key)
    if value is None:
        return None
    limit = kind(value)
    if limit <= 0:
        raise ValueError(f"measure.{key} must be positive, not {value}")
    return limit


def _unix_seconds(text: str | None) -> float | None:
    return float(text) if text else None
