"""The agent: starts one node's part of a run, forwards signals, and leaves no process behind however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil

from ddp_ladder.files import RunDirectory, read_json, write_json
from ddp_ladder.launch import Process, Rendezvous, node_environment, processes
from ddp_ladder.network import address
from ddp_ladder.nodes import interface
from ddp_ladder.plan import RunSpec
from ddp_ladder.software import Runner, SoftwareError, container_binds, environment

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE_S = 20.0  # for a script that saves its state on SIGTERM; after it everything is killed

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class NodeTask:
    """One node's part of a run, as run.json describes it."""

    directory: RunDirectory
    spec: RunSpec
    job: dict[str, Any]
    node_rank: int
    rendezvous: Rendezvous

    @classmethod
    def read(cls, path: Path, node_rank: int) -> NodeTask:
        directory = RunDirectory(path.resolve())
        data = read_json(directory.run)
        return cls(
            directory,
            RunSpec.from_json(data["spec"]),
            data["job"],
            node_rank,
            Rendezvous(**data["rendezvous"]),
        )


def die_with_parent(signum: signal.Signals) -> None:
    """Ask the kernel to signal this process when its parent dies (Linux; elsewhere nothing happens)."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def run_node(task: NodeTask) -> int:
    """Run one node's part to its end, write its end record and return the exit code (128 + n for signal n)."""
    die_with_parent(signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the script leaves behind becomes our child, and is ended
    events: SimpleQueue[tuple[str, int]] = SimpleQueue()
    for signum in FORWARDED:
        signal.signal(signum, lambda number, _frame: events.put(("signal", number)))
    launched_at_s = time.time()
    through = interface(task.spec, task.rendezvous.host)
    starts = processes(
        task.spec, task.node_rank, task.rendezvous, address(through), container_binds(task.spec, task.directory.path)
    )
    log_file = task.directory.node_log(task.node_rank, task.spec.nodes)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    error = None
    try:
        with log_file.open("ab", buffering=0) as log:
            site = environment(task.spec, os.environ, _shell(events), log)
            env = node_environment(task.spec, site, task.directory.run, through, launched_at_s)
            children = [_start_process(task.spec, start, env, log.fileno()) for start in starts]
        code = _supervise(children, events)
    except SoftwareError as failure:
        code = failure.exit_code
        if code >= 0:  # else the agent was told to end
            code, error = 1, str(failure)
            with log_file.open("ab") as log:
                log.write(f"{failure.what}\n".encode())  # what was printed is there
    finally:
        _end_descendants()
    _write_end(task, starts, launched_at_s, code, error)
    return code if code >= 0 else 128 - code


def _shell(events: SimpleQueue[tuple[str, int]]) -> Runner:
    """Run the shell of the site's software as a launcher is run: signals end it."""
    return lambda argv, env, output, result: _supervise([_start(argv, env, output, (result,))], events)


def _start_process(spec: RunSpec, start: Process, env: dict[str, str], log: int) -> subprocess.Popen[bytes]:
    try:
        return _start(start.argv, {**env, **start.env}, log)
    except OSError as error:
        key = "software.container" if spec.container else "software.python"
        raise SoftwareError(key, f"{start.argv[0]} cannot be started: {error.strerror}") from error


def _start(
    argv: Sequence[str], env: Mapping[str, str], output: int, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        # A launcher whose agent was killed must not train on; its ranks follow it in the same way.
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )


def _supervise(children: Sequence[subprocess.Popen[bytes]], events: SimpleQueue[tuple[str, int]]) -> int:
    """Wait for all children; end the rest when one fails. Returns the first failure, or 0."""
    for child in children:
        threading.Thread(target=lambda child=child: events.put(("exit", child.wait())), daemon=True).start()
    running, first_failure, deadline = len(children), 0, None
    while running:
        try:
            kind, number = events.get(timeout=_until(deadline))
        except Empty:
            _signal_all(children, signal.SIGKILL)
            deadline = None
            continue
        if kind == "signal":
            _signal_all(children, signal.Signals(number))
            if number in ENDING and deadline is None:
                deadline = time.monotonic() + GRACE_S
                first_failure = first_failure or -number
        else:
            running -= 1
            if number != 0 and running and deadline is None:
                _signal_all(children, signal.SIGTERM)
                deadline = time.monotonic() + GRACE_S
            first_failure = first_failure or number
    return first_failure


def _until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _signal_all(children: Sequence[subprocess.Popen[bytes]], signum: signal.Signals) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(signum)


def _end_descendants() -> None:
    """Kill what is left below this process, also what was re-parented to it."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=GRACE_S)


def _write_end(task: NodeTask, starts: Sequence[Process], launched_at_s: float, code: int, error: str | None) -> None:
    write_json(
        task.directory.node_end(task.node_rank),
        {
            "schema_version": 1,
            "spec_hash": task.spec.hash,
            "job": task.job,
            "node_rank": task.node_rank,
            "host": socket.gethostname(),
            "launched_at_s": launched_at_s,
            "ended_at_s": time.time(),
            "exit_code": code,
            "signal": signal.Signals(-code).name if code < 0 else None,
            "argv": list(starts[0].argv),
            "cpus": _cpus(),
            **({} if error is None else {"error": error}),
        },
    )


def _cpus() -> list[int]:
    """CPUs that this process may use; all of them where the system cannot tell."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
