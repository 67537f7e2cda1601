"""Raw files of one run, as its processes wrote them: read strictly here, interpreted elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from ddp_ladder_instrument.contract import FIRST_STATE
from ddp_ladder_instrument.log import Log
from pydantic import ConfigDict, TypeAdapter

from ddp_ladder.common.files import (
    Agent,
    NotWritten,
    RunDirectory,
    parsed_json,
    read_bytes,
    read_json,
    sha256,
    write_json,
)
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.judging import is_of_other_rules, judged_anew, log_of, to_judge_anew
from ddp_ladder.records.packed import RawContent
from ddp_ladder.records.raw_models import (
    AgentEnd,
    AgentStall,
    Profiling,
    RankEnd,
    RankStart,
    RawFile,
    RunEnd,
    RunFile,
    TrainingState,
    Witnessed,
    read_run_file,
    read_stalls,
)
from ddp_ladder.records.steps import Steps, matrix_of
from ddp_ladder.records.witness import as_witnessed

File = TypeVar("File", bound=RawFile)
_DIGESTED = re.compile(r"rank[0-9]+\.(json|steps)|node[0-9]+(\.task[0-9]+)?\.(json|zip)")


Stamped = tuple[int, int, int, str]  # size in bytes, time of change in ns, inode; and the digest that goes with them
_STAMPED = TypeAdapter(dict[str, Stamped], config=ConfigDict(defer_build=True))
MOST_ROWS_OF_ALL, LEAST_ROWS = 2**21, 256  # of steps that are held: of all ranks together, of each
SETTLED_NS = 2_000_000_000  # a file that has just changed may change again in the same tick of its file system's clock


@dataclass(frozen=True)
class RankFiles:
    """One rank's end record and its steps."""

    end: RankEnd
    steps: Steps


class FewerRows:
    """Joins the steps of each rank to blocks, the same on all ranks, so that those of all ranks fit into memory.

    The first steps stay rows of their own, and those of which DDP's times are kept: some of many, chosen at random.
    """

    def __init__(self, ranks: int) -> None:
        self._most = max(LEAST_ROWS, MOST_ROWS_OF_ALL // ranks)
        self._most_timed = self._most // 4
        self._size = 1
        self._timed = np.empty(0, np.int64)
        self._first: Steps | None = None  # that did not fit
        self._left: list[int] = []  # ranks that were read before it

    def of(self, files: RankFiles) -> RankFiles:
        """Return a rank's files, with as many rows as fit."""
        steps, ddp = files.steps, files.steps.ddp
        timed = ddp.rows if ddp else self._timed[:0]
        if self._first is None and len(steps.size) <= self._most and len(timed) <= self._most_timed:
            self._left.append(files.end.rank)
            return files
        if self._first is None:
            if len(steps.size) > self._most:
                self._size = 1 << math.ceil(math.log2(2 * steps.count / self._most))
            some = min(self._most_timed, len(timed))
            self._timed = np.random.default_rng(0).choice(timed, some, replace=False, shuffle=False)
        single = np.union1d(np.arange(self._most // 8), self._timed)
        fewer = replace(steps, ddp=ddp and ddp.at(self._timed)).in_blocks(self._size, single)
        self._first = self._first or fewer
        return RankFiles(files.end, fewer.sharing(self._first))

    def of_shorter(self, ranks: Mapping[int, RankFiles]) -> dict[int, RankFiles]:
        """Return the ranks that were read before the first that did not fit, in rows as those of the others."""
        return {k: self.of(ranks[k]) for k in self._left} if self._first else {}


@dataclass(frozen=True)
class RawRun:
    """All raw files of one run."""

    content: RawContent
    run: RunFile
    ended: RunEnd | None
    agents: Mapping[Agent, AgentEnd]
    ranks: Mapping[int, RankFiles]  # in their order
    problems: tuple[str, ...]  # each file that is missing or damaged
    unwritten: tuple[str, ...]  # why ranks could not write their record, if they could still report it
    stalls: tuple[AgentStall, ...]  # reports of a hang, by node; of a run that did not end with one, last looks
    profiling: Profiling | None  # of rank 0; None if there is none, or it is damaged
    first_states: Mapping[int, TrainingState]  # of a link's ranks before their first step

    @property
    def directory(self) -> RunDirectory:
        return self.content.directory

    @property
    def digests(self) -> dict[str, str]:
        """Return what ``digests`` returns; files are not read again, nor archives that their agents have digested."""
        packed = ((self.directory.packed(agent), end.packed) for agent, end in self.agents.items() if end.packed)
        known = {
            **{path.relative_to(self.directory.path).as_posix(): digest for path, digest in packed},
            **self.content.digests,
        }
        return {name: known.get(name) or _digest(self.directory.path / name) for name, _ in _files(self.directory)}

    @property
    def spec(self) -> RunSpec:
        return self.run.spec

    @cached_property
    def ends(self) -> list[RankEnd]:
        return [rank.end for rank in self.ranks.values()]

    @property
    def has_all_ranks(self) -> bool:
        return len(self.ranks) == self.spec.world_size

    @property
    def reads_log(self) -> bool:
        """Return True if the log is read for the throughput: too few steps or samples were counted on some rank."""
        counted = self.has_all_ranks and all(_is_counted(self.spec, rank) for rank in self.ranks.values())
        return self.spec.throughput_regex is not None and not counted

    @cached_property
    def hosts(self) -> Mapping[int, str]:
        """Return the hosts of the agents, by the ranks of their nodes."""
        return {agent.node_rank: host_name(end.host) for agent, end in self.agents.items()}

    @cached_property
    def _node_ranks(self) -> Mapping[str, int]:
        """Return the lowest node rank of each host."""
        return {name: node_rank for node_rank, name in reversed([*self.hosts.items()])}

    def node_rank(self, end: RankEnd) -> int:
        """Return the rank of a rank's node, by the launcher, or by its host: c10d numbers the nodes in any order."""
        given = end.rank // self.spec.gpus_per_node if end.node_rank is None else end.node_rank
        host = host_name(end.host)
        if self.hosts.get(given, host) == host:
            return given
        return self._node_ranks.get(host, given)


def read_raw_run(directory: RunDirectory, only_ranks: Collection[int] | None = None) -> RawRun:
    """Read the files of one run. only_ranks: ranks whose files are read; None: of all.

    Of many ranks with many steps, each rank's are joined as soon as they are read (``FewerRows``).
    Raises OSError or ValueError only for run.json, without which nothing is known about the run; damage elsewhere is
    listed in ``problems``.
    """
    run, content = read_run_file(directory), RawContent(directory)
    problems: list[str] = []
    fewer = FewerRows(run.spec.world_size if only_ranks is None else len(only_ranks))

    @contextlib.contextmanager
    def noted(path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            problems.append(f"{path.relative_to(directory.path)} is missing")
        except (OSError, ValueError) as error:
            problems.append(f"{path.relative_to(directory.path)} is damaged: {error}")

    ended: RunEnd | None = None
    agents: dict[Agent, AgentEnd] = {}
    ranks: dict[int, RankFiles] = {}
    unwritten: list[str] = []
    first_states: dict[int, TrainingState] = {}
    with noted(directory.ended):
        ended = of_run(run, RunEnd, directory.ended, content.read(directory.ended))
    for agent in run.all_agents:
        with noted(path := directory.agent_end(agent)):
            agents[agent] = of_run(run, AgentEnd, path, content.read(path))
        for k in run.ranks_of(agent):
            if only_ranks is not None and k not in only_ranks:
                continue
            with noted(path := directory.ranks / f"rank{k}.json"):
                end, log = _end_of(run, content, agent, path)
                with noted(path := directory.ranks / f"rank{k}.steps"):
                    if end.rank != k:
                        raise ValueError(f"its end record is that of rank {end.rank}")
                    end, steps = _judged(content.read(path, agent), end, log, run.witness)
                    ranks[k] = fewer.of(RankFiles(_sharing(end, ranks.get(k - 1)), steps))
            if k not in ranks and (why := _unwritten(directory, content, agent, k)):
                unwritten.append(why)
            if run.spec.is_link and (state := _first_state(run, content, agent, k, ranks.get(k))):
                first_states[k] = state
    of_plan = {agent.stem for agent in run.all_agents} | {f"rank{k}" for k in range(run.spec.world_size)}
    others = [Path(name) for name, _ in _files(directory) if "/" in name and Path(name).stem not in of_plan]
    problems += [f"{file} is of a {file.name[:4]} that the plan does not have" for file in others]
    hung = ended is not None and ended.outcome == "hang"
    report_of = directory.hang if hung else directory.look
    written = {path.name for path in directory.nodes.glob("*-node*.json")}
    stalls = read_stalls(report_of, (agent for agent in run.all_agents if report_of(agent).name in written))
    profiling: Profiling | None = None
    with contextlib.suppress(OSError, ValueError):
        profiling = of_run(run, Profiling, directory.profile(0), content.read(directory.profile(0)))
    ranks.update(fewer.of_shorter(ranks))
    found = (tuple(problems), tuple(unwritten), (*stalls.values(),), profiling, first_states)
    return RawRun(content, run, ended, agents, ranks, *found)


def steps_of_ranks(raw: RawRun) -> Iterator[tuple[int, Steps]]:
    """Yield the steps of each rank in full, one rank at a time. Raises OSError or ValueError."""
    for agent in raw.run.all_agents:
        for k in raw.run.ranks_of(agent):
            if k in raw.ranks:
                path = raw.directory.ranks / f"rank{k}.json"
                end, log = _end_of(raw.run, raw.content, agent, path)
                content = raw.content.read(path.with_suffix(".steps"), agent)
                yield k, _judged(content, end, log, raw.run.witness)[1]


def _first_state(
    run: RunFile, content: RawContent, agent: Agent, rank: int, files: RankFiles | None
) -> TrainingState | None:
    """Return a rank's state before its first step; None if it made none. A rank that was killed has left a file."""
    if files is not None:
        return files.end.first_state
    path = content.directory.ranks / FIRST_STATE.format(rank)
    with contextlib.suppress(OSError, ValueError):
        return of_run(run, RankStart, path, content.read(path, agent)).state
    return None


def _sharing(end: RankEnd, before: RankFiles | None) -> RankEnd:
    """Return an end record that holds the parts of the one before that equal its own: ranks may be thousands."""
    if before is None:
        return end
    pairs = ((name, value, getattr(before.end, name)) for name, value in end)
    return end.model_copy(update={name: other for name, value, other in pairs if value == other})


def _end_of(run: RunFile, content: RawContent, agent: Agent, path: Path) -> tuple[RankEnd, Log | None]:
    """Return a rank's end record, and its log if other rules have judged that and it is still there."""
    data, log = parsed_json(content.read(path, agent), path), None
    if is_of_other_rules(data):
        with contextlib.suppress(OSError, ValueError):
            log = log_of(data, content.read(path.with_suffix(".log"), agent))
    return _of(run, RankEnd, data if log is None else to_judge_anew(data)), log


def of_run(run: RunFile, model: type[File], path: Path, content: bytes | None = None) -> File:
    """Return a file of this run. content: what was read of it already. Raises OSError or ValueError."""
    return _of(run, model, parsed_json(read_bytes(path) if content is None else content, path))


def of_run_if_there(run: RunFile, model: type[File], path: Path) -> File | None:
    """Return a file of this run; None without one that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return of_run(run, model, path)
    return None


def _of(run: RunFile, model: type[File], data: Any) -> File:
    file = model.from_json(data)
    if (file.spec_hash, file.job) != (run.spec_hash, run.job):
        raise ValueError(f"it is of another run, job or attempt than {run.job.id}, attempt {run.job.attempt}")
    return file


def _judged(content: bytes, end: RankEnd, log: Log | None, witness: Witnessed | None) -> tuple[RankEnd, Steps]:
    """Return a rank's end record and its steps (content), by its log if there is one, with the samples of its witness.

    Raises ValueError if they are not those of its end record.
    """
    if sha256(content) != end.steps.sha256:
        raise ValueError("its digest is not the one in the rank's end record")
    matrix = matrix_of(content)
    if log is not None:
        return as_witnessed(*judged_anew(end, matrix, log), witness)
    steps = Steps.of(matrix)
    if steps.count != end.steps.count:
        raise ValueError(f"it has {steps.count} steps, not {end.steps.count}")
    return as_witnessed(end, steps, witness)


def _files(directory: RunDirectory) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files behind the figures, also those that the plan does not have: path below the run, and its stat."""
    for file in (directory.run, directory.ended):
        with contextlib.suppress(OSError):
            yield file.name, file.stat()
    for folder in (directory.ranks, directory.nodes):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if _DIGESTED.fullmatch(entry.name):
                    yield f"{folder.name}/{entry.name}", entry.stat()


def digests(directory: RunDirectory) -> dict[str, str]:
    """Return the SHA-256 of each raw file behind the figures, by its path below the run; empty if it is unreadable."""
    return {name: _digest(directory.path / name) for name, _ in _files(directory)}


def known_digests(directory: RunDirectory) -> dict[str, str]:
    """Return what ``digests`` returns, after reading only the files that have changed since the last full check.

    Each check leaves them beside the record, with what shows a change of a file (checked.json).
    """
    before: dict[str, Stamped] = {}
    with contextlib.suppress(OSError, ValueError):
        before = _STAMPED.validate_python(read_json(directory.checked))
    now, settled = {}, {}
    checked_at_ns = time.time_ns()
    for name, status in _files(directory):
        stamp, known = (status.st_size, status.st_mtime_ns, status.st_ino), before.get(name)
        digest = known[-1] if known and known[:-1] == stamp else _digest(directory.path / name)
        now[name] = digest
        if digest and checked_at_ns - status.st_mtime_ns > SETTLED_NS:
            settled[name] = (*stamp, digest)
    if settled != before:
        with contextlib.suppress(NotWritten):  # those of someone else are checked each time
            write_json(directory.checked, settled)
    return now


def _digest(path: Path) -> str:
    try:
        return sha256(read_bytes(path))
    except (OSError, ValueError):
        return ""


def _is_counted(spec: RunSpec, rank: RankFiles) -> bool:
    is_enough = rank.steps.count >= spec.warmup_steps + spec.min_steps and rank.steps.samples.any()
    return bool(is_enough) and rank.end.source in ("counted", "guessed", "samples_per_step")


def _unwritten(directory: RunDirectory, content: RawContent, agent: Agent, rank: int) -> str | None:
    """Return ``rank 1 (node7): OSError: [Errno 28] No space left on device: 'rank1.steps'``."""
    path = directory.ranks / f"rank{rank}.unwritten"
    try:
        note = parsed_json(content.read(path, agent), path)
        return f"rank {rank} ({note['host']}): {note['error']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def host_name(host: str) -> str:
    """Return the name of a host without its domain."""
    return host.partition(".")[0].lower()
