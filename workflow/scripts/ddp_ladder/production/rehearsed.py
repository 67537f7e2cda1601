"""What a rehearsal has shown of a script and its arguments, in a file, and whether it holds for a chain."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import read_bytes, read_json, sha256, write_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Version2
from ddp_ladder.measuring.fingerprint import changes
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.production.rehearsal import Rehearsal
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.terms import PRODUCTION, REHEARSAL

FILE = "rehearsal.json"
COMMAND = "run `snakemake rehearsal` with the same profile: two links of production.rehearse_s each, at a small scale"


class RehearsalFile(Model):
    """The result of a rehearsal (results/production/rehearsal/rehearsal.json)."""

    schema_version: Version2 = 2
    of: Mapping[str, Any]  # what was rehearsed
    scale: str
    at_s: float  # unix time
    result: Rehearsal

    @property
    def in_words(self) -> str:
        """Return ``passed on 2026-11-28 at 1x2``."""
        at = datetime.fromtimestamp(self.at_s, UTC).strftime("%Y-%m-%d")
        return f"{'passed' if self.result.verdict == 'ok' else self.result.verdict} on {at} at {self.scale}"


def rehearsal_directory(results: Path) -> Path:
    """Return the directory of the rehearsal in a ladder's results."""
    return results / PRODUCTION / REHEARSAL


def script_digest(spec: RunSpec) -> str | None:
    """Return the digest of the script as it is now; None for a module, which its Python finds, and without the file."""
    with suppress(OSError):
        return sha256(read_bytes(Path(spec.script)))
    return None


def what_is_rehearsed(spec: RunSpec) -> dict[str, Any]:
    """Return what a rehearsal is of: the script, and all that decides how it is started but for scale and place."""
    same = {"script", "args_template", "env_template", "directory_template", "launcher", "python", "modules", "setup"}
    if spec.wrapper_template:  # it may keep a warning from the script
        same |= {"wrapper_template", "wrapper_per"}
    return {"script_sha256": script_digest(spec), **spec.model_dump(mode="json", include=same)}


def write_rehearsal(directory: Path, spec: RunSpec, result: Rehearsal) -> Path:
    """Write the result of a rehearsal; return its file. Raises NotWritten."""
    file = RehearsalFile(of=what_is_rehearsed(spec), scale=str(spec.scale), at_s=time.time(), result=result)
    write_json(path := directory / FILE, file.model_dump())
    return path


def read_rehearsal(directory: Path) -> RehearsalFile | None:
    """Read the result of a rehearsal; None if there is none that can be read."""
    try:
        return RehearsalFile.from_json(read_json(directory / FILE))
    except (OSError, ValueError):
        return None


def not_made(failure: Failure) -> Rehearsal:
    """Return the result of a rehearsal in which the script was not started."""
    return Rehearsal(verdict="unclear", why=f"the script was not started: {failure.why}", next=failure.next)


def rehearsed(results: Path, spec: RunSpec, settings: Settings) -> str:
    """Return the rehearsal of this script in words. Raises UserError if none holds, and the settings want one."""
    file = read_rehearsal(rehearsal_directory(results))
    if file is None:
        what, found, advice = "there is no result of a rehearsal that can be read", None, COMMAND
    elif changed := changes(file.of, what_is_rehearsed(spec)):
        since = f"{file.in_words}; {'; '.join(changed.values())}"
        what, found, advice = "what was rehearsed is not what production would start", since, COMMAND
    elif file.result.verdict != "ok":
        what, found, advice = "the rehearsal did not pass", file.result.why, file.result.next
    else:
        return file.in_words
    if settings.experiment.production.unrehearsed:
        return f"{what}; unrehearsed: true starts without"
    allowed = "a rehearsal that passed, or `unrehearsed: true` below production"
    raise UserError(Problem(settings.config.where(PRODUCTION, "unrehearsed"), what, found, allowed, advice))
