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

# How torch begins the lines of an exception that nobody caught, in a process group.
_OF_RANK = re.compile(r"\[rank([0-9]+)\]:")


def last_words(directory: RunDirectory, run: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """``; the last line that was printed: ...``, by the agent that ``end`` is of, or a rank of it. run: run.json."""
    per_node = run["agents_per_node"]
    agent = Agent(end["node_rank"], None if per_node == 1 else end["local_rank"])
    said = last_line(directory.agent_log(agent, len(run["nodes"]) * per_node), end.get("rank"))
    return f"; the last line that was printed: {said}" if said else ""


def last_line(log: Path, rank: int | None = None) -> str:
    """The last line of a log before torchrun's report of the failure, cut if long; empty where there is none.

    rank: whose line; what torch has marked as another rank's is passed over, for the ranks of an agent share a log.
    """
    text = tail(log)
    # A progress bar rewrites its line: each state of it is a line of its own here.
    text = re.sub(r"[\r\n]+", "\n", text)
    report = _OF_TORCHRUN.search(text)
    lines = printable(text[: report.start()] if report else text).split("\n")
    if rank is not None:
        lines = [line for line in lines if not (marked := _OF_RANK.match(line)) or int(marked[1]) == rank]
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
