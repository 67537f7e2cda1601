"""What a rehearsal has shown of a script and its arguments, in a file, and whether it holds for a chain."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from ddp_ladder.common.files import canonical_sha256, read_bytes, read_json, sha256, write_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Version1
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.production.rehearsal import Rehearsal
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.terms import PRODUCTION, REHEARSAL

FILE = "rehearsal.json"
COMMAND = "run `snakemake rehearsal` with the same profile: two links of production.rehearse_s each, at a small scale"


class RehearsalFile(Model):
    """The result of a rehearsal (results/production/rehearsal/rehearsal.json)."""

    schema_version: Version1 = 1
    script: str  # digest of what was rehearsed
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


def digest_of(spec: RunSpec) -> str:
    """Return what a rehearsal is of: the script, and all that decides how it is started but for the scale."""
    script = Path(spec.script)
    content = sha256(read_bytes(script)) if script.is_file() else None
    same = ["script", "args_template", "env_template", "directory", "launcher", "python", "modules", "setup"]
    if spec.wrapper_template:  # it may keep a warning from the script
        same += ["wrapper_template", "wrapper_per"]
    return canonical_sha256({"content": content, **{name: spec.model_dump()[name] for name in same}})


def write_rehearsal(directory: Path, spec: RunSpec, result: Rehearsal) -> Path:
    """Write the result of a rehearsal; return its file. Raises NotWritten."""
    file = RehearsalFile(script=digest_of(spec), scale=str(spec.scale), at_s=time.time(), result=result)
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
        what, found, advice = "this script was not rehearsed", None, COMMAND
    elif file.script != digest_of(spec):
        what, found, advice = "the script or its arguments have changed since the rehearsal", file.in_words, COMMAND
    elif file.result.verdict != "ok":
        what, found, advice = "the rehearsal did not pass", file.result.why, file.result.next
    else:
        return file.in_words
    if settings.experiment.production.unrehearsed:
        return f"{what}; unrehearsed: true starts without"
    allowed = "a rehearsal that passed, or `unrehearsed: true` below production"
    raise UserError(Problem(settings.config.where(PRODUCTION, "unrehearsed"), what, found, allowed, advice))
