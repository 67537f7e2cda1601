"""The hang watch: each agent looks at its ranks and reports if none goes on; the job ends a run in which no rank does.

An agent knows its own node only, and its ranks may wait for a validation on another one. So it reports a stall, with
the stacks of its ranks, and takes the report back if they go on. The job calls it a hang if every agent that has not
ended reports one.

``short`` is the larger of hang.at_least_s and hang.times_median_step times the median step, ``long`` is
hang.first_step_s:

| the rank | is stuck after |
| --- | --- |
| is stopped | at_least_s |
| trains | short, unless its stack shows that it saves, validates or compiles: then long |
| evaluates, or is between two passes over its loader | long; short if its stack shows that it waits for other ranks |
| does so after another rank has ended, or has ended its script | as one that trains; long if it uses a CPU |
| has made no step, or trains without a DataLoader | long |
| has made no step, uses no CPU, and waits for others of which one has ended its script | at_least_s |
| has made no step, uses no CPU, and waits for others in init_process_group() | at_least_s |

A rank that nothing is known of is not judged: it neither hangs nor holds the judgement on the others up. One rank that
moves or is busy, on any node, means that there is no hang: the others wait for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil
from ddp_ladder_instrument.contract import BEAT_S, HEADER_BYTES, HEARTBEAT, RUN_VARIABLE

from ddp_ladder.common.files import Agent, RunDirectory, opened, read_json, write_json
from ddp_ladder.common.messages import printable
from ddp_ladder.common.process import catches, status_of
from ddp_ladder.node.launch import node_name
from ddp_ladder.records.raw_models import (
    AgentStall,
    HeartbeatHeader,
    ProcessState,
    RankStall,
    RunFile,
    Unreached,
    read_stalls,
)
from ddp_ladder.settings.keys import Hang

LONGEST_INTERVAL_S = 5.0  # between two looks at the heartbeats
SUSPENDED_S = 10.0  # a look that comes this late: the job was suspended, with all its processes
STACK_CHARACTERS = 20_000  # of a rank in a report
AGAIN = 1.5  # ranks that go on are looked at again after this many times their silence
BEATS_S = 2.5 * BEAT_S  # two of a rank's, and some more
CLOCK_S = 0.001  # a difference of times that is none
JOIN_S = 20.0  # for a look that is under way when the agent ends
REACH_S = 3.0  # for a connection between two nodes

Files = Mapping[str, os.stat_result | None]
"""The agents' files in a run's directory, by name."""


class HangWatch:
    """The watch of one agent: a thread. ``reports`` is True while it reports that no rank goes on."""

    def __init__(self, directory: RunDirectory, heartbeats: Path, run: RunFile, bounds: Hang, agent: Agent) -> None:
        self._run, self._bounds, self._agent = run, bounds, agent
        self._files = {rank: heartbeats / HEARTBEAT.format(rank) for rank in run.ranks_of(agent)}
        self._report, self._last_look = directory.hang(agent), directory.look(agent)
        self._run_file = directory.run
        self._addresses, self._ended_flag = directory.addresses, directory.one_ended
        self._one_ended = False
        self._heartbeats: dict[int, HeartbeatHeader] = {}
        self._begin_s = time.monotonic()  # silence before does not count
        self._next_s = 0.0  # least silence for the next look at processes and stacks
        self._moved_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_until_end, daemon=True)
        self.reports = False

    @classmethod
    def started(cls, directory: RunDirectory, heartbeats: Path, run: RunFile, agent: Agent) -> HangWatch | None:
        """Return the watch of an agent, started; None if the run has none, or reports its steps in its log alone."""
        if run.hang is None or run.spec.throughput_regex is not None:
            return None
        watch = cls(directory, heartbeats, run, run.hang, agent)
        watch._thread.start()
        return watch

    def freeze(self) -> None:
        """Look no more: the agent ends its ranks."""
        self._end.set()

    def end(self, keep_report: bool) -> None:
        """End the thread and delete the report, unless it is the reason for the end."""
        self.freeze()
        self._thread.join(JOIN_S)
        self._has_one_ended(self._seen(rank, time.monotonic()) for rank in self._files)  # the others may wait for it
        with contextlib.suppress(OSError):
            for path in () if keep_report else (self._report, self._last_look):
                path.unlink(missing_ok=True)

    def _look_until_end(self) -> None:
        interval_s = look_interval_s(self._bounds)
        due_s = time.monotonic() + interval_s
        while not self._end.wait(interval_s):
            now_s = time.monotonic()
            if now_s > due_s + SUSPENDED_S:
                self._begin_s = now_s
            # A run does not end because its watch fails: the next look may succeed.
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                self._look(now_s)
            due_s = time.monotonic() + interval_s

    def _look(self, now_s: float) -> None:
        """Look at the heartbeats; if all ranks are silent, also at their processes and stacks."""
        seen = {rank: self._seen(rank, now_s) for rank in self._files}
        self._has_one_ended(seen.values())
        moved_s = max(now_s - one.silent_s for one in seen.values())
        if moved_s > self._moved_s:
            if any(now_s - one.silent_s > self._moved_s and not one.ended for one in seen.values()):
                self._last_look.unlink(missing_ok=True)
            self._moved_s, self._next_s = moved_s, 0.0
            self._take_back()
        if not all(is_suspect(one, self._bounds) for one in seen.values()):
            return
        silent_s = now_s - moved_s
        if silent_s < self._next_s:
            return
        self._next_s = next_look_s(silent_s, self._bounds, self._heartbeats.values())
        seen = self._with_stacks(seen)
        used_s = {rank: cpu_s(one.pid) for rank, one in seen.items()}
        # A rank writes its heartbeat a second late: it may have gone on just before its stack was taken.
        if self._end.wait(BEATS_S) or self._moved_since(moved_s):
            return  # or the ranks are being ended: what was seen just now is not why
        one_ended, states = self._has_one_ended(seen.values()) or self._ended_flag.exists(), {}
        for rank, one in seen.items():
            computes = cpu_s(one.pid) - used_s[rank] > BEATS_S / 2
            states[rank] = judge(replace(one, one_ended=one_ended, computes=computes), self._bounds)
        if "goes on" in states.values():
            self._take_back()
            if not any(one.ended or one.process == "gone" for one in seen.values()):  # else the run comes to its end
                self._write(self._last_look, seen, states)
        else:
            self._write(self._report, seen, states)
            self.reports = True

    def _moved_since(self, moved_s: float) -> bool:
        now_s = time.monotonic()
        return any(now_s - self._seen(rank, now_s).silent_s > moved_s + CLOCK_S for rank in self._files)

    def _has_one_ended(self, seen: Iterable[Seen]) -> bool:
        """Return True if one of these ranks has ended its script; tell the other agents."""
        if not self._one_ended and any(one.ended for one in seen):
            self._one_ended = True
            if self._run.agents > 1:
                with contextlib.suppress(OSError):
                    self._ended_flag.touch()
        return self._one_ended

    def _seen(self, rank: int, now_s: float) -> Seen:
        with contextlib.suppress(OSError, ValueError):  # none yet, or read while it was being written
            self._heartbeats[rank] = read_heartbeat(self._files[rank])
        heartbeat = self._heartbeats.get(rank)
        moved_s = max(self._begin_s, heartbeat.moved_monotonic_s if heartbeat else 0.0)
        return Seen(rank, heartbeat, max(0.0, now_s - moved_s))

    def _with_stacks(self, seen: Mapping[int, Seen]) -> dict[int, Seen]:
        ranks = []
        for one in seen.values():
            process, pid = find_process(one.heartbeat) if one.heartbeat else ("unknown", None)
            ranks.append(replace(one, process=process, pid=pid))
        texts = stacks(self._files, ranks)
        return {one.rank: replace(one, stack=texts.get(one.rank)) for one in ranks}

    def _take_back(self) -> None:
        if self.reports:
            self._report.unlink(missing_ok=True)
            self.reports = False

    def _write(self, path: Path, seen: Mapping[int, Seen], states: Mapping[int, State]) -> None:
        tested, unreached = self._tested() if path == self._report and self._agent.is_first else ((), ())
        stall = AgentStall(
            **self._run.identity,
            node_rank=self._agent.node_rank,
            local_rank=self._agent.local_rank,
            node=node_name(),
            host=socket.gethostname(),
            found_at_s=time.time(),
            tested=tested,
            unreached=unreached,
            bounds=self._bounds,
            ranks=tuple(_stall(one, states[rank], self._run_file) for rank, one in seen.items()),
        )
        write_json(path, stall.model_dump())

    def _tested(self) -> tuple[tuple[int, ...], tuple[Unreached, ...]]:
        """Try to connect to some other nodes, at the addresses that the ranks use; return these, and which failed."""
        addresses, port = {0: self._run.rendezvous.host}, self._run.rendezvous.port
        with contextlib.suppress(OSError, ValueError):  # the job has not written it so far
            addresses |= {int(node): host for node, host in read_json(self._addresses).items() if int(node)}
        tested = [node for node in neighbours(self._agent.node_rank, self._run.spec.nodes) if node in addresses]
        with ThreadPoolExecutor(max(1, len(tested))) as pool:
            answers = pool.map(lambda node: why_unreached(addresses[node], port), tested)
            failed = [Unreached(node_rank=node, why=why) for node, why in zip(tested, answers, strict=True) if why]
        return tuple(tested), tuple(failed)


def neighbours(node: int, nodes: int) -> list[int]:
    """Return the nodes that one tests: the head, and those 1, 2, 4, ... further on a ring. Each has as many testers."""
    return sorted({0, *((node + 2**k) % nodes for k in range((nodes - 1).bit_length()))} - {node})


def why_unreached(host: str, port: int) -> str | None:
    """Return why the node of this address does not answer within REACH_S; None if it does."""
    try:
        socket.create_connection((host, port), REACH_S).close()
    except ConnectionRefusedError:
        return None  # its node answers; the script may meet at another port
    except OSError as error:
        return f"{host}, port {port}: {error.strerror or error}"
    return None


def look_interval_s(bounds: Hang) -> float:
    """Return the time between two looks at what shows a hang."""
    return min(LONGEST_INTERVAL_S, bounds.at_least_s / 4)


def read_heartbeat(path: Path) -> HeartbeatHeader:
    """Read a heartbeat. Raises OSError or ValueError."""
    with opened(path) as file:
        return HeartbeatHeader.from_json(json.loads(file.read(HEADER_BYTES)))


def listener_of(rendezvous: str, run_file: Path) -> str | None:
    """Return the process that listens there, on this node, and is none of the run; None if none is known."""
    host, _, port = rendezvous.rpartition(":")
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        socket.create_server((host, 0)).close()  # fails for the address of another node
        listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        for pid in {each.pid for each in listening if each.laddr[1:] == (int(port),)}:
            if pid is None:
                return "a process of another user"
            process = psutil.Process(pid)
            if process.environ().get(RUN_VARIABLE) != str(run_file):
                return f"{process.name()} (process {pid})"
    return None


def _stall(seen: Seen, state: State, run_file: Path) -> RankStall:
    from ddp_ladder.diagnosis.hangs import without_own  # loads numpy: half of an agent's start, and few runs hang

    heartbeat = seen.heartbeat
    own_rendezvous = heartbeat.own_rendezvous if heartbeat else None
    return RankStall(
        rank=seen.rank,
        stuck=state == "stuck",
        process=seen.process or "unknown",
        pid=seen.pid,
        phase=heartbeat.phase if heartbeat else None,
        steps=heartbeat.steps if heartbeat else 0,
        step_s=heartbeat.step_s if heartbeat else None,
        silent_s=seen.silent_s,
        sequence=heartbeat.sequence if heartbeat else None,
        handles=heartbeat.handles if heartbeat else None,
        stack=None if seen.stack is None else printable(without_own(seen.stack))[:STACK_CHARACTERS],
        own_rendezvous=own_rendezvous,
        listener=listener_of(own_rendezvous, run_file) if own_rendezvous else None,
    )


class Stalls:
    """The agents' reports. The run's job reads them once all that it awaits are there, and again if they change."""

    def __init__(self, directory: RunDirectory, run: RunFile) -> None:
        self._directory, self._agents = directory, run.all_agents
        self._longest_s = None if run.hang is None else run.hang.first_step_s
        self._files: Files = {}
        self._versions: Mapping[Agent, tuple[int, ...]] = {}
        self._since_s: float | None = None
        self.reports: dict[Agent, AgentStall] = {}

    def is_hang(self, files: Files) -> bool:
        """Return True if every agent still running reports a stall and at least one rank is stuck.

        files: the last scan of the agents' files; the same one is judged once.
        """
        if files is self._files:
            return False
        self._files = files
        named = ((agent, files.get(self._directory.hang(agent).name)) for agent in self._agents)
        versions = {agent: (state.st_ino, state.st_mtime_ns, state.st_size) for agent, state in named if state}
        if not versions:
            self._since_s = None
            return False
        now_s = time.monotonic()
        self._since_s = self._since_s or now_s
        others = (agent for agent in self._agents if agent not in versions)
        # An agent without a report has a rank that goes on, or hangs with its node: no pause takes longer than this.
        is_late = self._longest_s is not None and now_s - self._since_s > self._longest_s
        if not is_late and any(self._directory.agent_end(agent).name not in files for agent in others):
            return False
        if versions != self._versions:
            self.reports, self._versions = read_stalls(self._directory.hang, versions), versions
        if len(self.reports) < len(versions):  # one has just been taken back
            self._versions = {}
            return False
        return any(rank.stuck for report in self.reports.values() for rank in report.ranks)


State = Literal["goes on", "not judged", "stuck"]
"""goes on: it moves, or is busy and may be for longer. not judged: it has ended, or nothing is known of it."""


@dataclass(frozen=True)
class Seen:
    """What is known of one rank."""

    rank: int
    heartbeat: HeartbeatHeader | None  # None before its first
    silent_s: float  # since it moved, or was launched
    process: ProcessState | None = None  # None if not looked at, as pid
    pid: int | None = None
    stack: str | None = None  # None if not looked at, or none came
    one_ended: bool = False  # a rank of the run has ended its script
    computes: bool = False  # it uses a CPU

    @property
    def ended(self) -> bool:
        return self.heartbeat is not None and self.heartbeat.phase == "ended"


def short_s(bounds: Hang, heartbeat: HeartbeatHeader | None) -> float:
    """Return the bound in the training loop; infinite before there is a median step, or if it is switched off."""
    if bounds.times_median_step is None or heartbeat is None or heartbeat.step_s is None:
        return math.inf
    return max(bounds.at_least_s, bounds.times_median_step * heartbeat.step_s)


def long_s(bounds: Hang, heartbeat: HeartbeatHeader | None) -> float:
    """Return the bound outside the training loop, never below the other; infinite if it is switched off."""
    if bounds.first_step_s is None:
        return math.inf
    short = short_s(bounds, heartbeat)
    return max(bounds.first_step_s, short) if math.isfinite(short) else bounds.first_step_s


def is_suspect(seen: Seen, bounds: Hang) -> bool:
    """Return True if the rank has been silent for long enough to look at its process and its stack."""
    short = short_s(bounds, seen.heartbeat)
    first_s = short if math.isfinite(short) else bounds.at_least_s
    return seen.silent_s >= min(first_s, long_s(bounds, seen.heartbeat))


def next_look_s(silent_s: float, bounds: Hang, heartbeats: Iterable[HeartbeatHeader]) -> float:
    """Return the silence after which ranks that go on are looked at again: not later than the next of their bounds."""
    ahead = (bound(bounds, heartbeat) for heartbeat in (None, *heartbeats) for bound in (short_s, long_s))
    return min(AGAIN * silent_s, *(bound for bound in ahead if bound > silent_s), math.inf)


def bound_s(seen: Seen, bounds: Hang) -> float:
    """Return how long this rank may be silent."""
    heartbeat = seen.heartbeat
    if seen.process == "stopped":
        return bounds.at_least_s
    from ddp_ladder.diagnosis.hangs import in_collective, in_rendezvous, is_at_work, main_stack  # as above

    short, long = short_s(bounds, heartbeat), long_s(bounds, heartbeat)
    stack = main_stack(seen.stack) if seen.stack is not None else []
    if heartbeat is None or heartbeat.phase in ("starting", "unknown"):
        alone = in_rendezvous(stack) or (seen.one_ended and in_collective(stack))
        in_vain = heartbeat and not heartbeat.steps and alone and not seen.computes
        return min(bounds.at_least_s, long) if in_vain and bounds.times_median_step is not None else long
    if heartbeat.step_s is None:
        return long  # the second step may compile as the first did
    if in_collective(stack):
        return short
    has_ended = heartbeat.phase == "ended"
    if heartbeat.phase != "training":
        if seen.computes or not (has_ended or seen.one_ended):
            return long
        short = min(short, long)
    # Without a stack it is not known whether it saves. A process that is past the end of Python, or that not even a
    # signal interrupts, gives none.
    is_idle = not is_at_work(stack) if stack else has_ended or seen.process == "uninterruptible"
    return short if is_idle else max(short, long)


def judge(seen: Seen, bounds: Hang) -> State:
    """Return what a rank is, from what was seen of it."""
    if not is_suspect(seen, bounds):
        return "goes on"
    if seen.process == "gone":
        return "not judged"
    if seen.silent_s < bound_s(seen, bounds):
        return "not judged" if seen.ended else "goes on"
    return "stuck"


STACK_BYTES = 200_000  # read of a rank's new stacks
STACKS_WITHIN_S = 1.0  # for all ranks to answer
TICK_S = 0.05
_STATES: Mapping[str, ProcessState] = {
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_DISK_SLEEP: "uninterruptible",
    psutil.STATUS_ZOMBIE: "gone",
    psutil.STATUS_DEAD: "gone",
}


def find_process(heartbeat: HeartbeatHeader) -> tuple[ProcessState, int | None]:
    """Return state and id of a heartbeat's process, a descendant of this one. Containers number their own processes."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if str(heartbeat.pid) in status_of(process.pid).get("NSpid", str(process.pid)).split():
                return _STATES.get(process.status(), "alive"), process.pid
    return "gone", None


def cpu_s(pid: int | None) -> float:
    """Return the CPU time that a process has used; 0 if it cannot be read."""
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times() if pid is not None else None
        return times.user + times.system if times else 0.0
    return 0.0


def stacks(files: Mapping[int, Path], ranks: Collection[Seen]) -> dict[int, str]:
    """Return the main threads' stacks of these ranks, as far as they could be had within a bounded time.

    files: the heartbeat of each rank. One that beats has written its stack there by itself. One that has fallen silent
    keeps the GIL, and appends it on the signal; a signal to any other could end it: its stack may be just changing.
    """
    places: dict[int, int] = {}  # where a rank's stack begins in its file
    asked: dict[int, int] = {}
    for seen in ranks:
        try:
            beat = read_heartbeat(files[seen.rank])
        except (OSError, ValueError):
            continue
        if time.monotonic() - beat.written_monotonic_s < BEATS_S or not beat.signal:
            places[seen.rank] = HEADER_BYTES
        # A stopped process would answer when it goes on, in the middle of something else.
        elif seen.pid is not None and seen.process != "stopped" and catches(seen.pid, beat.signal):
            asked[seen.rank] = _size(files[seen.rank])
            with contextlib.suppress(OSError):
                os.kill(seen.pid, beat.signal)
    until_s = time.monotonic() + (STACKS_WITHIN_S if asked else 0.0)
    sizes = asked
    while time.monotonic() < until_s:
        time.sleep(TICK_S)
        before, sizes = sizes, {rank: _size(files[rank]) for rank in asked}
        if sizes == before and all(sizes[rank] > size for rank, size in asked.items()):
            break
    return {rank: text for rank, size in {**places, **asked}.items() if (text := _read(files[rank], size))}


def stack_at_end(path: Path) -> list[str]:
    """Return the lines of the main thread's stack that faulthandler wrote as a signal ended a rank; none without one.

    The main thread is the last one of those that are shown; what follows it is no frame.
    """
    lines = _read(path, 0).rpartition("(most recent call first):")[2].splitlines()
    return [printable(line) for line in lines if line.startswith("  File ")]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, begin: int) -> str:
    try:
        with opened(path) as file:
            file.seek(begin)
            return file.read(STACK_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
