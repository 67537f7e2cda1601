"""The run's settings for this rank, from run.json and the environment.

Atomic writes: a reader sees the old file or the new one, never a partial file. The reader of files that others may have
made or replaced: a file of the results, or one that a script writes.

What could not be measured, and why: a failed measurement never ends the training.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ddp_ladder_instrument.contract import FOLLOWED, LAUNCHED_VARIABLE, RUN_VARIABLE
from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT, without_values

MOST_BYTES = 2**31  # of a file that is read at once


def write_atomically(path: Path, parts: Iterable[str | bytes], durable: bool = True) -> str:
    """Write the parts as one file and return the sha256 of its bytes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Only one rank writes a given path, so the process id makes the name unique.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    digest = hashlib.sha256()
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                data = part if isinstance(part, bytes) else part.encode("utf-8")
                digest.update(data)
                file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


def opened(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for a pipe, which could make its reader wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb", buffering)
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that is read at once: without a buffer, in fewer system calls. Raises OSError."""
    with opened(path, buffering=0) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes", str(path))
        return file.read()


class NotMeasured(list[str]):
    """The quantities that could not be measured, each with the reason."""

    def __init__(self) -> None:
        self.unread: list[str] = []  # those of the fingerprint

    def attempt(self, quantity: str, measure: Callable[[], Any]) -> Any:
        """Return the result of ``measure``; if it raises, return None and add the reason."""
        try:
            return measure()
        except Exception as error:
            self.note(quantity, error)
            return None

    def read(self, fact: str, read: Callable[[], Any]) -> Any:
        """Return a fact of the fingerprint; if reading it raises, return None, add the reason, and name it unread."""
        try:
            return read()
        except Exception as error:
            self.note(fact, error)
            self.unread.append(fact)
            return None

    def note(self, quantity: str, error: Exception) -> None:
        """Add the reason, once."""
        text = f"{quantity}: {one_line(error)}"
        if text not in self:
            self.append(text)


FAILED_HOOKS = NotMeasured()
"""The hooks that raised in this process, and do nothing since."""


_LONGEST_TEXT = 800  # a message that quotes it keeps below 1,000 characters
_TRACEBACK = "Traceback (most recent call last):"


def one_line(error: BaseException) -> str:
    """Return an exception's text on one line; of a traceback inside it (a loader's worker) only the last lines.

    Without secrets.
    """
    text = str(error)
    before, traceback, after = text.rpartition(_TRACEBACK)
    if traceback:
        lines = after.strip("\r\n").splitlines()
        start = next((k for k, line in enumerate(lines) if line[:1].strip()), 0)
        text = "\n".join([*before.lstrip().splitlines()[:1], *lines[start:]])
    text = without_values(" ".join(text.split()), os.environ)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}..."
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an exception and those that led to it."""
    chain = [error]
    for later in chain:  # it grows
        chain += [cause for cause in (later.__cause__, later.__context__) if cause is not None and cause not in chain]
    return chain


class RunSettingsError(Exception):
    """The environment or run.json is invalid; the text is for the user."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run that this rank needs."""

    directory: Path
    spec_hash: str
    job: Mapping[str, Any]
    warmup_steps: int
    max_steps: int | None = None
    max_seconds: float | None = None
    samples_per_step: int | None = None
    device: str | None = None
    launched_at_s: float | None = None  # Unix time
    profile_steps: int = 0
    secrets: tuple[str, ...] = ()  # names of variables that hold one
    is_own: bool = False  # the ladder did not start the run
    is_wrapped: bool = False  # another program than the launcher may have started this rank
    memory_mb: int | None = None  # of the job on this node, 1024^2 bytes each
    is_witness: bool = False  # follow its batches through each operator; nothing is timed
    never_train: frozenset[tuple[str, ...]] = frozenset()  # places that draw and never train, as a witness has seen
    is_link: bool = False  # of a chain: its time may end it, and another start goes on from what it has saved


def read_run_settings(environment: Mapping[str, str] = os.environ) -> RunSettings:
    """Read the run.json that DDP_LADDER_RUN names. Raises RunSettingsError."""
    path = Path(environment[RUN_VARIABLE])
    if not path.is_absolute():
        raise RunSettingsError(f"{RUN_VARIABLE} must be an absolute path\n  found    {path}")
    try:
        data = json.loads(read_bytes(path))
        measure, launched_at_s = data.get("spec") or {}, environment.get(LAUNCHED_VARIABLE)
        return RunSettings(
            directory=path.parent,
            spec_hash=str(data["spec_hash"]),
            job=dict(data["job"]),
            warmup_steps=int(measure.get("warmup_steps") or 0),
            max_steps=measure.get("max_steps"),
            max_seconds=measure.get("max_seconds"),
            samples_per_step=measure.get("samples_per_step"),
            device=measure.get("device"),
            launched_at_s=float(launched_at_s) if launched_at_s else None,
            profile_steps=int(measure.get("profile_steps") or 0),
            secrets=tuple(name for name, value in (measure.get("env") or {}).items() if value == FROM_ENVIRONMENT),
            memory_mb=data.get("memory_mb"),
            is_link=data.get("warn_at_s") is not None,
            is_wrapped=bool(measure.get("wrapper")),
            never_train=_never_train(data.get("witness") or {}),
            is_witness=bool(data.get("is_witness")),
        )
    except OSError as error:
        raise RunSettingsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunSettingsError(f"{path} is not a run.json: {type(error).__name__}: {error}") from error


def _never_train(witness: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    """Return the places that draw and never train, as the witness of this run's script has seen."""
    if witness.get("status") not in FOLLOWED:
        return frozenset()
    return frozenset(tuple(place["lines"]) for place in witness["places"] if not place["trained"])
