"""Raw files of one run, as its processes wrote them: read strictly here, interpreted elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.common.files import Agent, RunDirectory, agents_of, read_json, sha256
from ddp_ladder.common.messages import printable
from ddp_ladder.records.raw_models import AgentEnd, RankEnd, RawFile, RunEnd, RunFile, read_run_file

LARGEST_FIGURE = 1e12  # samples or seconds: sums of larger figures are not exact
SHORTEST_STEP_S = 1e-9  # the resolution of the file
File = TypeVar("File", bound=RawFile)
COLUMNS = ("step", "samples", "padding_samples", "step_time_s", "data_wait_s")


@dataclass(frozen=True)
class Steps:
    """Columns of ranks/rank<k>.csv, one entry per optimizer step. data_wait_s is nan if it is not known."""

    samples: NDArray[np.int64]
    padding_samples: NDArray[np.int64]
    step_time_s: NDArray[np.float64]
    data_wait_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.step_time_s)


@dataclass(frozen=True)
class RankFiles:
    """One rank's end record and its steps."""

    end: RankEnd
    steps: Steps
    csv_sha256: str


@dataclass(frozen=True)
class RawRun:
    """All raw files of one run. ``problems`` names each file that is missing or damaged.

    unwritten: why ranks could not write their record, if they could still report it.
    """

    run: RunFile
    ended: RunEnd | None
    agents: Mapping[Agent, AgentEnd]
    ranks: Mapping[int, RankFiles]
    problems: tuple[str, ...]
    unwritten: Mapping[int, str] = field(default_factory=dict)


def read_raw_run(directory: RunDirectory) -> RawRun:
    """Read the files of one run.

    Raises OSError or ValueError only for run.json, without which nothing is known about the run; damage elsewhere is
    listed in ``problems``.
    """
    run = read_run_file(directory)
    problems: list[str] = []

    def attempt(path: Path, model: type[File]) -> File | None:
        name = path.relative_to(directory.path)
        try:
            return model.from_json(read_json(path))
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except (OSError, ValueError) as error:
            problems.append(f"{name} is damaged: {error}")
        return None

    ended = attempt(directory.ended, RunEnd)
    if ended is not None and ended.wall_s < 0:
        problems.append("ended.json is damaged: it ends before it starts")
        ended = None
    agents = agents_of(run.spec.nodes, run.agents_per_node)
    agent_ends = {agent: attempt(directory.agent_end(agent), AgentEnd) for agent in agents}
    ranks = {}
    for k in range(run.spec.world_size):
        end = attempt(directory.ranks / f"rank{k}.json", RankEnd)
        if end is None:
            continue
        path = directory.ranks / f"rank{k}.csv"
        try:
            content = path.read_bytes()
            digest = sha256(content)
            if digest != end.steps.sha256:
                raise ValueError("its digest is not the one in the rank's end record")
            steps = _parse_steps(content.decode())
            if len(steps) != end.steps.count:
                raise ValueError(f"it has {len(steps)} steps, not {end.steps.count}")
            ranks[k] = RankFiles(end, steps, digest)
        except (OSError, ValueError) as error:
            problems.append(f"ranks/{path.name} is damaged: {error}")
    problems += _unplanned_files(directory.ranks, "rank", {f"rank{k}" for k in range(run.spec.world_size)})
    problems += _unplanned_files(directory.nodes, "node", {agent.stem for agent in agents})
    present = {agent: end for agent, end in agent_ends.items() if end is not None}
    unwritten = {k: why for k in range(run.spec.world_size) if k not in ranks and (why := _unwritten(directory, k))}
    return RawRun(run, ended, present, ranks, tuple(problems), unwritten)


def _unwritten(directory: RunDirectory, rank: int) -> str | None:
    """Return ``rank 1 (node7): OSError: [Errno 28] No space left on device: 'rank1.csv'``."""
    try:
        note = read_json(directory.ranks / f"rank{rank}.unwritten")
        return f"rank {rank} ({note['host']}): {note['error']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unplanned_files(directory: Path, kind: str, planned: Set[str]) -> list[str]:
    """Return a message for each file of a rank or node that is not in the plan."""
    found = [path for path in sorted(directory.glob(f"{kind}*.*")) if path.stem not in planned]
    return [f"{directory.name}/{printable(path.name)} is of a {kind} that the plan does not have" for path in found]


def _parse_steps(text: str) -> Steps:
    """Parse a rank's CSV. Raises ValueError for a wrong header, a gap in the steps or an impossible figure."""
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ValueError(f"its header is not {','.join(COLUMNS)}")
    if any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError("a row is incomplete")
    table = np.array(rows[1:], dtype=np.float64).reshape(-1, len(COLUMNS))
    if not np.array_equal(table[:, 0], np.arange(1, len(table) + 1)):
        raise ValueError("its steps do not count 1, 2, 3, ...")
    counts, step_time_s = table[:, :3], table[:, 3]
    wait_unknown = np.isnan(table[:, 4]).all()  # for all steps or for none
    if (
        not np.isfinite(table[:, :4] if wait_unknown else table).all()
        or (table < 0).any()
        or (table > LARGEST_FIGURE).any()
        or (counts != np.floor(counts)).any()
        or (step_time_s < SHORTEST_STEP_S).any()
    ):
        raise ValueError("it contains an impossible figure")
    return Steps(
        samples=table[:, 1].astype(np.int64),
        padding_samples=table[:, 2].astype(np.int64),
        step_time_s=table[:, 3],
        data_wait_s=table[:, 4],
    )
