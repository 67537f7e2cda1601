"""torch's error file of a rank: the exception with its traceback, if the script's main function has ``@record``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.common.redaction import redacted
from ddp_ladder.node.launch import Process
from ddp_ladder.settings.secrets import known_secrets

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
MOST_CHARACTERS = 4000  # of the end of a traceback


def with_error_file(start: Process, directory: RunDirectory, given: Mapping[str, str]) -> Process:
    """Return a rank's process with its error file set, as torchrun sets it for its own. given: the user's variables."""
    if ERROR_FILE in given or "RANK" not in start.env:
        return start
    return Process(start.argv, {ERROR_FILE: str(directory.error_file(int(start.env["RANK"]))), **start.env})


def take_error(start: Process) -> str | None:
    """Return the end of the traceback in a process's error file, and delete the file; None if it wrote none."""
    if ERROR_FILE not in start.env:
        return None
    path = Path(start.env[ERROR_FILE])
    try:
        found = read_json(path)
    except (OSError, ValueError):
        found = None
    with contextlib.suppress(OSError):
        path.unlink()
    return error_text(found)


def error_text(data: Any) -> str | None:
    """Return the end of the traceback in the content of an error file, without secrets; None if it has none.

    Its form is torch's.
    """
    message = data.get("message") if isinstance(data, Mapping) else None
    if isinstance(message, Mapping):
        more = message.get("extraInfo")
        callstack = more.get("py_callstack") if isinstance(more, Mapping) else None
        message = callstack or message.get("message")
    if not isinstance(message, str) or message == "<NONE>":  # torch's own for no file
        return None
    return redacted(message.strip(), known_secrets(os.environ))[-MOST_CHARACTERS:] or None
