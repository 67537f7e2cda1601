"""What a run's processes printed last: it tells why one ended with an exit code and no exception."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_ladder.files import Agent, RunDirectory
from ddp_ladder.messages import printable

_TAIL_BYTES = 64 * 1024
_LONGEST = 300
# torchrun's own words on a rank that ended, and all that it prints after them.
_OF_TORCHRUN = re.compile(r"^[WE][0-9]{4} [0-9:.]+ .*torch/distributed/elastic/", re.MULTILINE)


def last_words(directory: RunDirectory, run: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """``; the last line that was printed: ...``, by the agent that ``end`` is of, or a rank of it. run: run.json."""
    per_node = run["agents_per_node"]
    agent = Agent(end["node_rank"], None if per_node == 1 else end["local_rank"])
    said = last_line(directory.agent_log(agent, len(run["nodes"]) * per_node))
    return f"; the last line that was printed: {said}" if said else ""


def last_line(log: Path) -> str:
    """The last line of a log before torchrun's report of the failure, cut if long; empty where there is none."""
    text = tail(log)
    # A progress bar rewrites its line: each state of it is a line of its own here.
    text = re.sub(r"[\r\n]+", "\n", text)
    report = _OF_TORCHRUN.search(text)
    lines = printable(text[: report.start()] if report else text).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last if len(last) <= _LONGEST else f"{last[:_LONGEST]}..."


def tail(log: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
