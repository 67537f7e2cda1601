"""Raw files of one run, as its processes wrote them: read strictly here, interpreted elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ddp_ladder.common.files import Agent, RunDirectory, agents_of, read_bytes, read_json, sha256
from ddp_ladder.common.messages import printable
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.raw_models import (
    AgentEnd,
    AgentStall,
    Profiling,
    RankEnd,
    RawFile,
    RunEnd,
    RunFile,
    read_run_file,
    read_stalls,
)

LARGEST_FIGURE = 1e12  # samples or seconds: sums of larger figures are not exact
SHORTEST_STEP_S = 1e-9  # the resolution of the file
File = TypeVar("File", bound=RawFile)
COLUMNS = ("step", "samples", "padding_samples", "step_time_s", "data_wait_s")
END_COLUMN = "ended_at_s"
DDP_COLUMNS = ("forward_s", "backward_s", "comm_s", "overlap_s")  # empty for a step that DDP did not time
HEADER = (*COLUMNS, END_COLUMN, *DDP_COLUMNS)
NOT_TIMED = ",-1,-1,-1,-1"
_DIGESTED = re.compile(r"rank[0-9]+\.(json|csv)|node[0-9]+(\.task[0-9]+)?\.json")
_FIGURES = TypeAdapter(list[float], config=ConfigDict(strict=True))


@dataclass(frozen=True)
class Steps:
    """Columns of ranks/rank<k>.csv, one entry per optimizer step. data_wait_s is nan if it is not known.

    ended_at_s: unix time of the step's end by the clock of the rank's host; None if it is not known.
    ddp_s: DDP's times, steps x DDP_COLUMNS, nan for steps that it did not time; None if none was timed.
    """

    samples: NDArray[np.int64]
    padding_samples: NDArray[np.int64]
    step_time_s: NDArray[np.float64]
    data_wait_s: NDArray[np.float64]
    ended_at_s: NDArray[np.float64] | None = None
    ddp_s: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.step_time_s)


@dataclass(frozen=True)
class RankFiles:
    """One rank's end record and its steps."""

    end: RankEnd
    steps: Steps


@dataclass(frozen=True)
class RawRun:
    """All raw files of one run. ``problems`` names each file that is missing or damaged.

    unwritten: why ranks could not write their record, if they could still report it.
    stalls: the agents' reports of a hang, by node; empty if the run did not end with one.
    profiling: of rank 0; None if there is none, or it is damaged.
    """

    run: RunFile
    ended: RunEnd | None
    agents: Mapping[Agent, AgentEnd]
    ranks: Mapping[int, RankFiles]
    problems: tuple[str, ...]
    unwritten: Mapping[int, str] = field(default_factory=dict)
    stalls: tuple[AgentStall, ...] = ()
    profiling: Profiling | None = None

    @property
    def reads_log(self) -> bool:
        """Return True if the throughput is read from the log: enough steps and samples were not counted on each rank.

        If they were, what the script prints is only compared with them.
        """
        spec = self.run.spec
        return spec.throughput_regex is not None and not (
            len(self.ranks) == spec.world_size and all(_is_counted(spec, rank) for rank in self.ranks.values())
        )


def read_raw_run(directory: RunDirectory, only_ranks: Collection[int] | None = None) -> RawRun:
    """Read the files of one run. only_ranks: ranks whose files are read; None: of all.

    Raises OSError or ValueError only for run.json, without which nothing is known about the run; damage elsewhere is
    listed in ``problems``.
    """
    run = read_run_file(directory)
    problems: list[str] = []

    def attempt(path: Path, model: type[File]) -> File | None:
        try:
            file = model.from_json(read_json(path))
            if (file.spec_hash, file.job) != (run.spec_hash, run.job):
                raise ValueError(f"it is of another run, job or attempt than {run.job.id}, attempt {run.job.attempt}")
            return file
        except FileNotFoundError:
            problems.append(f"{path.relative_to(directory.path)} is missing")
        except (OSError, ValueError) as error:
            problems.append(f"{path.relative_to(directory.path)} is damaged: {error}")
        return None

    ended = attempt(directory.ended, RunEnd)
    if ended is not None and ended.wall_s < 0:
        problems.append("ended.json is damaged: it ends before it starts")
        ended = None
    agents = agents_of(run.spec.nodes, run.agents_per_node)
    of_ranks = directory.ranks
    agent_ends = {agent: attempt(directory.agent_end(agent), AgentEnd) for agent in agents}
    ranks = {}
    for k in range(run.spec.world_size):
        if only_ranks is not None and k not in only_ranks:
            continue
        end = attempt(of_ranks / f"rank{k}.json", RankEnd)
        if end is None:
            continue
        path = of_ranks / f"rank{k}.csv"
        try:
            content = read_bytes(path)
            if end.rank != k:
                raise ValueError(f"its end record is that of rank {end.rank}")
            if sha256(content) != end.steps.sha256:
                raise ValueError("its digest is not the one in the rank's end record")
            steps = _parse_steps(content.decode())
            if len(steps) != end.steps.count:
                raise ValueError(f"it has {len(steps)} steps, not {end.steps.count}")
            ranks[k] = RankFiles(end, steps)
        except (OSError, ValueError) as error:
            problems.append(f"ranks/{path.name} is damaged: {error}")
    ranks_planned = range(run.spec.world_size)
    profiles = (path(k) for k in ranks_planned for path in (directory.profile, directory.trace))
    problems += _unplanned_files(of_ranks, "rank", {f"rank{k}" for k in ranks_planned}, profiles)
    samples = (path(k) for k in range(run.spec.nodes) for path in (directory.monitor, directory.samples))
    problems += _unplanned_files(directory.nodes, "node", {agent.stem for agent in agents}, samples)
    present = {agent: end for agent, end in agent_ends.items() if end is not None}
    unwritten = {k: why for k in range(run.spec.world_size) if k not in ranks and (why := _unwritten(directory, k))}
    hung = ended is not None and ended.outcome == "hang"
    stalls = tuple(read_stalls(directory, agents).values()) if hung else ()
    return RawRun(run, ended, present, ranks, tuple(problems), unwritten, stalls, _profiling(directory, run))


def digests(directory: RunDirectory) -> dict[str, str]:
    """Return the SHA-256 of each raw file behind the figures, by its path below the run; empty if it is unreadable."""
    found = [path for path in (directory.run, directory.ended) if path.exists()]
    for folder in (directory.ranks, directory.nodes):
        with contextlib.suppress(OSError):
            found += [folder / name for name in sorted(os.listdir(folder)) if _DIGESTED.fullmatch(name)]
    return {path.relative_to(directory.path).as_posix(): _digest(path) for path in found}


def _digest(path: Path) -> str:
    try:
        return sha256(read_bytes(path))
    except OSError:
        return ""


def _is_counted(spec: RunSpec, rank: RankFiles) -> bool:
    is_enough = len(rank.steps) >= spec.warmup_steps + spec.min_steps and rank.steps.samples.any()
    return bool(is_enough) and rank.end.source in ("counted", "guessed", "samples_per_step")


def _profiling(directory: RunDirectory, run: RunFile) -> Profiling | None:
    try:
        file = Profiling.from_json(read_json(directory.profile(0)))
    except (OSError, ValueError):
        return None
    return file if (file.spec_hash, file.job, file.rank) == (run.spec_hash, run.job, 0) else None


def _unwritten(directory: RunDirectory, rank: int) -> str | None:
    """Return ``rank 1 (node7): OSError: [Errno 28] No space left on device: 'rank1.csv'``."""
    try:
        note = read_json(directory.ranks / f"rank{rank}.unwritten")
        return f"rank {rank} ({note['host']}): {note['error']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unplanned_files(directory: Path, kind: str, stems: Set[str], files: Iterable[Path]) -> list[str]:
    """Return a message for each file of a rank or node that is not in the plan: of none of these stems or files."""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(kind) and "." in name]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    others = [name for name in names if name.endswith(".") or name.rpartition(".")[0] not in stems]
    planned = {path.name for path in files} if others else set()
    return [
        f"{directory.name}/{printable(name)} is of a {kind} that the plan does not have"
        for name in sorted(others)
        if name not in planned
    ]


def _parse_steps(text: str) -> Steps:
    """Parse a rank's CSV. Raises ValueError for a wrong header, a gap in the steps or an impossible figure."""
    lines = text.removesuffix("\n").split("\n")
    if tuple(lines[0].split(",")) != HEADER:
        raise ValueError(f"its header is not {','.join(HEADER)}")
    if {line.count(",") for line in lines} != {len(HEADER) - 1}:
        raise ValueError("a row is incomplete")
    rows = ",".join([line[:-4] + NOT_TIMED if line.endswith(",,,,") else line for line in lines[1:]])
    table = np.array(_figures(rows), dtype=np.float64).reshape(-1, len(HEADER))
    table, ends, ddp_s = np.split(table, (len(COLUMNS), len(COLUMNS) + 1), axis=1)
    if not np.array_equal(table[:, 0], np.arange(1, len(table) + 1)):
        raise ValueError("its steps do not count 1, 2, 3, ...")
    counts, step_time_s = table[:, :3], table[:, 3]
    wait_unknown = np.isnan(table[:, 4]).all()  # for all steps or for none
    timed = (ddp_s != -1).any(axis=1)
    if (
        not _are_figures(table[:, :4] if wait_unknown else table)
        or (counts != np.floor(counts)).any()
        or (step_time_s < SHORTEST_STEP_S).any()
        or not (np.isnan(ends).all() or _are_figures(ends))
        or not _are_figures(ddp_s[timed])
    ):
        raise ValueError("it contains an impossible figure")
    ddp_s[~timed] = np.nan
    return Steps(
        samples=table[:, 1].astype(np.int64),
        padding_samples=table[:, 2].astype(np.int64),
        step_time_s=table[:, 3],
        data_wait_s=table[:, 4],
        ended_at_s=ends.ravel() if ends.size and not np.isnan(ends).any() else None,
        ddp_s=ddp_s if timed.any() else None,
    )


def _figures(text: str) -> list[float]:
    """Return figures that are separated by commas. Raises ValueError."""
    try:
        return _FIGURES.validate_json(f"[{text}]")  # to the bit those of float(), in a fifth of its time
    except ValidationError:
        return [*map(float, text.split(","))]  # nan is not JSON


def _are_figures(values: NDArray[np.float64]) -> bool:
    """Return True if all are from 0 to LARGEST_FIGURE; nan is neither."""
    return not values.size or bool(values.min() >= 0 and values.max() <= LARGEST_FIGURE)


def host_name(host: str) -> str:
    """Return the name of a host without its domain."""
    return host.partition(".")[0].lower()


def node_rank_of(end: RankEnd, hosts: Mapping[int, str]) -> int | None:
    """Return the launcher's node rank, or that of the rank's host if it differs: c10d numbers nodes in any order."""
    given: int | None = end.node_rank
    if given is None or hosts.get(given, host_name(end.host)) == host_name(end.host):
        return given
    return next((node_rank for node_rank, host in hosts.items() if host == host_name(end.host)), given)
