"""The agent: it starts the part of a run on a node or a GPU, passes on what ends it and leaves no process behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from ddp_ladder_instrument.contract import AT_ITS_END, HEARTBEATS_VARIABLE, STACK_AT_END
from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT, NAMED

from ddp_ladder.common.files import Agent, RunDirectory, make_directory, read_json, write_json
from ddp_ladder.common.formats import signal_of
from ddp_ladder.common.process import adopt_orphans, die_with_parent, end_descendants
from ddp_ladder.node.launch import (
    PROBE,
    Places,
    address,
    interface_towards,
    node_environment,
    node_name,
    processes,
    training_python,
    wrapper_argv,
)
from ddp_ladder.node.software import Runner, SetUpError, check_secrets, container_binds, environment, raise_open_files
from ddp_ladder.nodes.sampler import NodeMonitor, NodeSampler
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.platform.engines import ENGINES
from ddp_ladder.platform.launchers import LAUNCHERS, Process
from ddp_ladder.records.packed import pack
from ddp_ladder.records.raw_models import OWN_LINE, AgentEnd, FailedRank, Gpu, RunFile, SignalSent, read_run_file
from ddp_ladder.run.hangs import HangWatch, stack_at_end
from ddp_ladder.run.interruption import GRACE_S, TimedWarning
from ddp_ladder.run.logs import log_of_agent
from ddp_ladder.run.signs import TotalsWriter, heartbeat_places, make_heartbeats

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)  # "time is nearly up": Slurm gives them to every process of a step itself
HUNG_GRACE_S = 3.0  # for one of which no rank goes on


@dataclass(frozen=True)
class NodeTask:
    """An agent's part of a run: that of a node, or of one GPU."""

    directory: RunDirectory
    run: RunFile
    agent: Agent

    @classmethod
    def read(cls, path: Path, node_rank: int, local_rank: int | None) -> NodeTask:
        """Read run.json. local_rank: which of the node's agents this is; ignored for the only one on its node."""
        directory = RunDirectory(path.resolve())
        run = read_run_file(directory)
        alone = run.agents_per_node == 1
        if local_rank is None and not alone:
            raise ValueError(f"{directory.run} has several agents per node: --local-rank says which one this is")
        return cls(directory, run, Agent(node_rank, None if alone else local_rank))

    @property
    def spec(self) -> RunSpec:
        return self.run.spec

    @property
    def places(self) -> Places:
        return Places(Path(self.run.start_directory), Path(self.run.run_directory))

    def processes(self, heartbeats: Path) -> tuple[Process, ...]:
        """Return the processes that this agent starts."""
        rendezvous = self.run.rendezvous
        binds = container_binds(self.spec, self.places, heartbeats.parent)
        simulated = () if "SLURM_JOB_ID" in os.environ else self.run.nodes
        probe = (str(PROBE),) if self.run.preflight else None
        of_the_node = processes(self.spec, self.places, self.agent.node_rank, rendezvous, binds, simulated, probe)
        return of_the_node if self.agent.local_rank is None else (of_the_node[self.agent.local_rank],)


def run_node(task: NodeTask) -> int:
    """Run this agent's part, write its end record, return the exit code (128 + n for signal n). Raises NotWritten."""
    raise_open_files()
    parent = os.getppid()
    die_with_parent(signal.SIGTERM, parent)
    adopt_orphans()  # so that processes that the script leaves behind are ended too
    events: SimpleQueue[tuple[str, int]] = SimpleQueue()
    told: list[SignalSent] = []

    def note(number: int, _frame: object) -> None:
        told.append(SignalSent(signal=signal.Signals(number).name, at_s=time.time()))
        # A warning passed on, a script would save its state twice at once, and torchrun end its ranks while they save.
        if number in ENDING:
            events.put(("signal", number))

    for signum in (*ENDING, *WARNINGS):
        signal.signal(signum, note)  # warnings too: the script would inherit that they are ignored
    launched_at_s = time.time()
    NAMED.update(name for name, value in task.spec.env.items() if value == FROM_ENVIRONMENT)
    make_directory(task.directory.nodes)
    log = log_of_agent(task.directory, task.run, task.agent)
    starts: tuple[Process, ...] = ()
    failed: list[FailedRank] = []
    error = interface = heartbeats = watch = totals = monitor = gpus = None
    beside, warning, code = ThreadPoolExecutor(1), TimedWarning(task.run.warn_at_s), 1
    try:
        heartbeats = make_heartbeats(heartbeat_places(task.spec.container is not None, task.directory.nodes))
        working = _working_directory(task)
        interface = _interface(task)
        if task.agent.is_first:
            with suppress(OSError):  # then the others do not try to reach this node if the run hangs
                task.directory.sign(task.agent.node_rank).write_text(address(interface))
        if task.agent.node_rank == 0 and task.agent.is_first:
            head = task.run.rendezvous
            log.write(f"{OWN_LINE}head node {node_name()}, {head.host}:{head.port} on {interface}\n".encode())
        starts = task.processes(heartbeats)
        made = environment(task.spec, os.environ, _shell(events), log.write)
        check_secrets(task.spec, made)
        env = node_environment(task.spec, task.places, made, task.directory.run, interface, launched_at_s=time.time())
        env[HEARTBEATS_VARIABLE] = str(heartbeats)
        _prepare_wrapper(task, env)
        monitor = _started_monitor(task, interface, env)
        children = [_start_process(task.spec, start, env, log.descriptor, working) for start in starts]
        gpus = beside.submit(_gpus, task.spec)
        warning.start()
        watch = HangWatch.started(task.directory, heartbeats, task.run, task.agent)
        totals = TotalsWriter.started(task.directory, heartbeats, task.run, task.agent, warning)
        code, failed_at_s = _supervise(children, events, watch)
        failed = _failed_ranks(task, starts, children, failed_at_s)
    except SetUpError as failure:
        code = failure.exit_code
        if code >= 0:  # else a signal ended the agent
            code, error = 1, str(failure)
            log.write(f"{failure.what}\n".encode())  # without the output, which the log has
    finally:
        warning.end()
        if totals is not None:
            totals.end()
        if watch is not None:
            watch.end(keep_report=code != 0)
        end_descendants(GRACE_S)
        if heartbeats is not None:
            for line in () if code == 0 else _stacks_at_end(task, heartbeats):
                log.write(f"{line}\n".encode())
            shutil.rmtree(heartbeats, ignore_errors=True)
        sampled = monitor.end() if monitor else None
        shutil.rmtree(task.directory.torchrun_logs(task.agent.node_rank), ignore_errors=True)
        kept = log.close()
    packed = None
    if task.run.preflight is None:
        packed = pack(task.directory, task.agent, task.run.ranks_of(task.agent))
    end = AgentEnd(
        **task.run.identity,
        node_rank=task.agent.node_rank,
        local_rank=task.agent.local_rank,
        node=node_name(),
        host=socket.gethostname(),
        launched_at_s=launched_at_s,
        ended_at_s=time.time(),
        exit_code=code,
        signal=signal_of(code) if code < 0 else None,
        failed_ranks=tuple(failed),
        argv=starts[0].argv if starts else (),
        cpus=tuple(sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else range(os.cpu_count() or 1)),
        gpus=gpus.result() if gpus else (),
        interface=interface,
        error=error,
        told=told[0] if told else None,
        warned=warning.warned,
        orphaned=os.getppid() != parent,
        log=kept,
        monitor=sampled,
        packed=packed,
    )
    write_json(task.directory.agent_end(task.agent), end.model_dump())
    return code if code >= 0 else 128 - code


def _stacks_at_end(task: NodeTask, heartbeats: Path) -> Iterator[str]:
    """Yield the lines for the log of where each rank stood that a signal ended, marked as torch marks a rank's."""
    for rank in task.run.ranks_of(task.agent):
        if stack := stack_at_end(heartbeats / STACK_AT_END.format(rank)):
            yield from (f"[rank{rank}]: {line}" for line in (f"{AT_ITS_END} (most recent call first):", *stack))


def _working_directory(task: NodeTask) -> Path | None:
    """Return where to start the processes, after creating it; None for here (a container's engine enters it)."""
    if task.spec.directory is None:
        return None
    working = task.places.working(task.spec)
    try:
        working.mkdir(parents=True, exist_ok=True)
        os.stat(working / ".")  # fails if it may not be entered
    except OSError as error:
        raise SetUpError("workload.directory", f"{working} cannot be used: {error.strerror}") from error
    return None if task.spec.container else working


def _prepare_wrapper(task: NodeTask, env: Mapping[str, str]) -> None:
    """Make the directory of the wrapper's files. SetUpError if there is no such program; no image is looked into."""
    if not task.spec.wrapper or task.run.preflight is not None:
        return
    make_directory(task.places.of_wrapper)
    program = wrapper_argv(task.spec, task.places)[0]
    if task.spec.container is None and shutil.which(program, path=env.get("PATH")) is None:
        raise SetUpError("workload.wrapper", f"{program} is not in the PATH of the training on this node")


def _interface(task: NodeTask) -> str:
    """Return this node's interface; SetUpError if it has no address."""
    try:
        interface = interface_towards(task.spec.interface, task.run.rendezvous.host)
        address(interface)
        return interface
    except OSError as error:
        raise SetUpError("network.interface", str(error)) from error


def _started_monitor(task: NodeTask, interface: str, env: Mapping[str, str]) -> NodeMonitor | None:
    """Return the monitor of the agent's node, started; None if the run has none, or if it is another agent's.

    env: of the ranks, which may limit the GPUs that they see.
    """
    run, node_rank = task.run, task.agent.node_rank
    if run.monitor is None or not task.agent.is_first:
        return None

    def opened() -> NodeSampler:
        gpus = ACCELERATORS[run.spec.device].monitor(env)
        return NodeSampler(interface, gpus, run.agents_per_node > 1, ranks_descend(run.spec))

    place = {**run.identity, "node_rank": node_rank, "node": node_name()}
    files = task.directory.monitor(node_rank), task.directory.samples(node_rank)
    return NodeMonitor(*files, run.monitor.every_s, opened, place)


def ranks_descend(spec: RunSpec) -> bool:
    """Return True if the ranks descend from the agent, which can then see what they use."""
    return spec.container is None or not ENGINES[spec.container.engine].starts_step


def _shell(events: SimpleQueue[tuple[str, int]]) -> Runner:
    """Return a function that runs the shell of the site's software as a launcher is run: signals end it."""
    return lambda argv, env, output, result: _supervise([_start(argv, env, output, (result,))], events)[0]


def _start_process(
    spec: RunSpec, start: Process, env: dict[str, str], log: int, working: Path | None
) -> subprocess.Popen[bytes]:
    try:
        return _start(start.argv, {**env, **start.env}, log, directory=working)
    except OSError as error:
        key = "software.container" if spec.container else "software.python"
        raise SetUpError(key, f"{start.argv[0]} cannot be started: {error.strerror}") from error


def _start(
    argv: Sequence[str],
    env: Mapping[str, str],
    output: int,
    pass_fds: Sequence[int] = (),
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env=env,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        # A launcher whose agent was killed must not go on; its ranks die with it in the same way.
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )


def _supervise(
    children: Sequence[subprocess.Popen[bytes]], events: SimpleQueue[tuple[str, int]], watch: HangWatch | None = None
) -> tuple[int, dict[int, float]]:
    """Wait for all children; end the rest when one fails. Return the first failure, or 0, and who failed by themselves.

    These are the indices of the children that failed without a signal from this agent, with the unix times.
    """
    for index, child in enumerate(children):
        threading.Thread(target=_report_end, args=(child, index, events), daemon=True).start()
    running, first_failure, deadline = len(children), 0, None
    signalled, passed_on = set[int](), set[int]()
    failed_at_s: dict[int, float] = {}
    while running:
        try:
            kind, number = events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            signalled |= _signal_all(children, signal.SIGKILL)
            deadline = None
            continue
        if kind == "signal" and number in passed_on:
            continue  # Slurm tells all processes, and again as the ladder ends its step
        if kind == "signal":
            passed_on.add(number)
            if watch:
                watch.freeze()
            signalled |= _signal_all(children, signal.Signals(number))
            if deadline is None:
                deadline = time.monotonic() + (HUNG_GRACE_S if watch and watch.reports else GRACE_S)
                first_failure = first_failure or -number
        else:
            running -= 1
            code = children[number].wait()
            if code != 0 and number not in signalled:
                failed_at_s[number] = time.time()
            if code != 0 and running and deadline is None:
                signalled |= _signal_all(children, signal.SIGTERM)
                deadline = time.monotonic() + GRACE_S
            first_failure = first_failure or code
    return first_failure, failed_at_s


def _report_end(child: subprocess.Popen[bytes], index: int, events: SimpleQueue[tuple[str, int]]) -> None:
    child.wait()
    events.put(("exit", index))


def _signal_all(children: Sequence[subprocess.Popen[bytes]], signum: signal.Signals) -> set[int]:
    """Signal the children that still run; return their indices."""
    running = {index for index, child in enumerate(children) if child.poll() is None}
    for index in running:
        children[index].send_signal(signum)
    return running


def _failed_ranks(
    task: NodeTask, starts: Sequence[Process], children: Sequence[subprocess.Popen[bytes]], at_s: Mapping[int, float]
) -> list[FailedRank]:
    """Return the end of each rank that failed by itself, as its launcher saw it, or the agent if it started the ranks.

    Raises SetUpError if the training's Python could not import torchrun.
    """
    by_launcher = LAUNCHERS[task.spec.launcher].reports_failed_ranks
    if by_launcher:
        written = task.directory.failed_ranks(task.agent.node_rank)
        try:
            seen = read_json(written)
            written.unlink()
        except (OSError, ValueError):
            return []  # no rank failed, or the launcher itself did
        if "cannot_import_torch" in seen:
            python = training_python(starts[0].argv)
            raise SetUpError("software.python", f"{python} cannot import torch: {seen['cannot_import_torch']}")
    else:
        seen = []
        for index, ended_at_s in at_s.items():
            rank, local_rank = (int(starts[index].env.get(name, 0)) for name in ("RANK", "LOCAL_RANK"))
            end = {"pid": children[index].pid, "exit_code": children[index].returncode, "ended_at_s": ended_at_s}
            seen.append({"rank": rank, "local_rank": local_rank, **end})
    # Only a container's engine reports a signal as a code above 128; any other process has chosen such a code itself.
    in_engine = task.spec.container is not None and not by_launcher
    codes = [end["exit_code"] for end in seen]
    signals = [signal_of(code) if code < 0 or in_engine else None for code in codes]
    return [FailedRank(**end, signal=name) for end, name in zip(seen, signals, strict=True)]


def _gpus(spec: RunSpec) -> tuple[Gpu, ...]:
    """Return the GPUs of this node; none if the driver's program fails: the training needs no answer of it."""
    try:
        gpus = ACCELERATORS[spec.device].gpus()
        return tuple(Gpu(name=gpu.name, driver=gpu.driver, power_limit_w=gpu.power_limit_w) for gpu in gpus)
    except OSError:
        return ()
