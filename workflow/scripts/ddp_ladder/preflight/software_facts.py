"""The training's Python on this node: the site's environment, and what Python and torch it gives."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddp_ladder.common.bounded import run_bounded
from ddp_ladder.common.formats import dotted
from ddp_ladder.common.messages import printable
from ddp_ladder.common.paths import SCRIPTS
from ddp_ladder.common.redaction import redacted
from ddp_ladder.node.launch import Places, python_command, python_path, training_environment
from ddp_ladder.node.software import SetUpError, container_binds, environment, with_secrets
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.node_models import NO_TORCH, SoftwareFacts
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT, known_secrets

PROBE = SCRIPTS / "ddp_ladder/node/python_probe.py"
LONGEST_ERROR = 500  # characters


def software_facts(spec: RunSpec, places: Places, inherited: Mapping[str, str], within_s: float) -> SoftwareFacts:
    """Start the training's Python as a run does, and ask it. Raises TimeoutExpired."""
    until_s = time.monotonic() + within_s
    try:
        env = _environment(spec, places, inherited, within_s)
    except SetUpError as error:
        return _failed(str(error))
    # The working directory of a run may not exist yet.
    python = python_command(spec, places, container_binds(spec, places), working=str(places.start))
    key = "software.container" if spec.container else "software.python"
    try:
        code, printed = run_bounded((*python, "-c", PROBE.read_text(), ""), until_s - time.monotonic(), env)
    except OSError as error:
        return _failed(f"{key}: {python[0]} cannot be started: {error.strerror}")
    report = _report(printed)
    if report is None:
        last = next((line for line in reversed(printable(printed).splitlines()) if line.strip()), "")
        return _failed(f"{key}: {python[-1]} ended with {code}: {last}")
    missing = report.get("error")
    return SoftwareFacts(
        python=dotted(report["python"]),
        executable=report["executable"],
        torch=report.get("torch"),
        cuda=report.get("cuda"),
        nccl=report.get("nccl"),
        gpus=report.get("gpus"),
        error=None if missing is None else _shown(f"{key}: {report['executable']} {NO_TORCH}: {missing}"),
    )


def _environment(spec: RunSpec, places: Places, inherited: Mapping[str, str], within_s: float) -> dict[str, str]:
    def run(argv: Sequence[str], env: Mapping[str, str], output: int, result: int) -> int:
        try:
            return run_bounded(argv, within_s, env, output, (result,))[0]
        except subprocess.TimeoutExpired:
            why = f"modules and setup did not end within {within_s:.0f} s"
            raise SetUpError("software.setup", why) from None

    env = with_secrets(spec, environment(spec, inherited, run), inherited)
    ours = training_environment(spec, places)
    env.update({name: value for name, value in ours.items() if value != FROM_ENVIRONMENT})
    if search_path := python_path(spec, places, env.get("PYTHONPATH", "")):
        env["PYTHONPATH"] = search_path
    return env


def _report(printed: str) -> dict[str, Any] | None:
    for line in reversed(printed.splitlines()):
        with suppress(ValueError):
            report = json.loads(line)
            if isinstance(report, dict) and "python" in report:
                return report
    return None


def _failed(error: str) -> SoftwareFacts:
    return SoftwareFacts(python=None, executable=None, torch=None, cuda=None, nccl=None, gpus=None, error=_shown(error))


def _shown(error: str) -> str:
    return redacted(printable(error), known_secrets(os.environ))[:LONGEST_ERROR]
