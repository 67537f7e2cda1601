"""What a rank shows while it runs: progress.json, its heartbeat for the hang watch, and steps that it reports itself.

DDP_LADDER_METRICS names a file in which a program without torch writes a JSON object for each step:

    {"samples": 64, "seconds": 0.183, "wait_seconds": 0.012}

samples: consumed by this process in this step; seconds: the step's whole time; wait_seconds: the part of
it spent waiting for data (optional).

DDP_LADDER_HEARTBEATS names the agent's directory for heartbeats, on this node. There, rank<k>.heartbeat begins with
HEADER_BYTES of one JSON object, padded with blanks and rewritten in place once a second. The stack of the main thread
follows once nothing moves: with the GIL, as a stack that is read while its thread runs can end the process with
SIGSEGV. A rank whose C code keeps the GIL falls silent, and its frames stand still: the agent asks it with a signal,
whose handler appends the stack. In init_process_group() a rank names no signal: in torch 2.4 one makes that call fail
("Interrupted system call"). A fatal signal, and SIGTERM unless the script handles it itself, writes the stack to
rank<k>.end.

A thread of its own writes, so that a rank that waits in a collective still tells how many steps it made, and so that a
step costs nothing. A rank that is stopped, or holds the GIL, falls silent: that is what the watch looks for.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import itertools
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ddp_ladder_instrument import host
from ddp_ladder_instrument.contract import BEAT_S, HEADER_BYTES, HEARTBEAT, METRICS_VARIABLE, STACK_AT_END
from ddp_ladder_instrument.files import read_bytes, write_atomically
from ddp_ladder_instrument.recorder import Recorder
from ddp_ladder_instrument.table import RECENT, StepTable

HANDLED_CHARACTERS = 100
FRAMES = 100  # of a stack, as faulthandler shows
# Torch's flight recorder is written once nothing has moved for so long: in a slow step it would only cost time.
RECORD_AFTER_S = 2.0
RECORD_AFTER_STEPS = 5.0
RECORDER_ENABLED_BY = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the second one is the older name


def announce(run_directory: Path) -> Path:
    """Set DDP_LADDER_METRICS to this rank's file and return it."""
    path = run_directory / "ranks" / f"metrics{host.place().rank}.jsonl"
    # If this fails, writing the record fails too, and that error is reported.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    os.environ[METRICS_VARIABLE] = str(path)
    return path


def read_metrics(path: Path) -> StepTable:
    """Return the steps in the file; none if there is no file. Raises ValueError, which names the line, or OSError."""
    table = StepTable()
    with contextlib.suppress(FileNotFoundError):
        for number, line in enumerate(read_bytes(path).decode().splitlines(), start=1):
            if line.strip():
                samples, step_s, wait_s = _reported_step(line, number)
                table.add(samples, 0, step_s, wait_s, math.nan, 0.0, 0, 0, 0, math.nan)
    return table


def _reported_step(line: str, number: int) -> tuple[int, float, float]:
    try:
        data = json.loads(line)
        samples, seconds, wait_s = data["samples"], float(data["seconds"]), float(data.get("wait_seconds", 0.0))
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 0:
            raise ValueError(f"samples is {samples!r}, not a whole number")
        if not (math.isfinite(seconds) and seconds > 0 and 0 <= wait_s <= seconds):
            raise ValueError(f"seconds is {seconds}, wait_seconds {wait_s}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"line {number} of {METRICS_VARIABLE}: {type(error).__name__}: {error}") from error
    return samples, seconds, wait_s


class Signs(NamedTuple):
    """What a rank shows of its progress.

    phase: starting (no step yet), training, evaluating (the model is in eval mode), between passes (a pass over a
        loader, or an evaluation, ended after the last step), unknown (steps without a DataLoader: what the program does
        between them cannot be told from training), ended.
    step_s: median time of the last steps. moved: changes with every event of the log, with what a GPU has done, and
        at the begin and the end of init_process_group().
    """

    steps: int
    phase: str
    step_s: Optional[float]
    moved: tuple[object, ...]


class Heartbeat:
    """The writer of this rank's heartbeat and, on rank 0, of progress.json. look: returns the signs.

    When nothing moves, it also writes the number of collective calls and, once, torch's flight recorder.
    """

    def __init__(
        self,
        run_directory: Path,
        recorder: Recorder,
        look: Callable[[], Signs],
        world_size: Callable[[], int],
    ) -> None:
        self._rank = host.place().rank
        self._ranks = run_directory / "ranks"
        self._path = Path()
        self._given_rendezvous = host.rendezvous()  # by the launcher
        self.own_rendezvous: str | None = None  # at which the script meets instead
        self._progress = run_directory / "progress.json" if self._rank == 0 else None
        self._recorder = recorder
        recorder.on_joins = self._on_joins
        self._look = look
        self._world_size = world_size
        self._shown = 0, 0, 0.0  # at the last progress: steps, their samples, and when the last one ended
        self._is_recorded = False
        self._file = -1
        self._stacks = -1
        self._signal: int | None = None
        self._at_sigterm: Any = None  # of Python's handlers
        self._moved: tuple[object, ...] | None = None
        self._moved_at_s = 0.0  # time.monotonic()
        self._stop = threading.Lock()
        self._writing = threading.Lock()

    def start(self, directory: Path) -> None:
        """Begin, with a file in this directory. Raises OSError if it cannot be written."""
        self._path = directory / HEARTBEAT.format(self._rank)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self._stacks = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._show_end(directory / STACK_AT_END.format(self._rank))
        self._signal = _register(self._stacks)
        self._stop.acquire()
        # Not one of module threading: a script that counts its threads finds none but its own.
        _thread.start_new_thread(self._beat_until, (self._stop,))
        self._beat()

    def _show_end(self, path: Path) -> None:
        """Write the stack there if a signal ends this process, for the agent's log. Raises OSError.

        A handler of SIGTERM that the script sets takes the place of ours; signal.getsignal() does not show ours.
        """
        end = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        faulthandler.enable(end)
        faulthandler.register(signal.SIGTERM, file=end, all_threads=False, chain=True)
        self._at_sigterm = signal.getsignal(signal.SIGTERM)
        os.register_at_fork(after_in_child=self._leave_sigterm)  # a child's end is not the rank's

    def _leave_sigterm(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._at_sigterm:
            faulthandler.unregister(signal.SIGTERM)

    def stop(self) -> None:
        """Write the last signs and end the thread."""
        if self._file >= 0 and self._stop.locked():
            self._stop.release()
            self._beat(more_than=self._shown[0])  # without a further step the last throughput stays

    def _on_joins(self, joins: bool, place: str | None = None) -> None:
        """Note whether this process is in init_process_group(), where it is to be sent no signal.

        place: at which it meets the others; None if it is not known.
        """
        self._recorder.joins = joins
        if place and self._given_rendezvous and place != self._given_rendezvous:
            self.own_rendezvous = place[:HANDLED_CHARACTERS]

    def _beat_until(self, stop: threading.Lock) -> None:
        while not stop.acquire(timeout=BEAT_S):
            try:
                self._beat()
            except Exception:  # a full disk is tried again; a fault of ours must not show in the script's output
                continue

    def _beat(self, more_than: int = 0) -> None:
        """Write the signs and, with more than so many steps, the progress. Raises OSError."""
        with self._writing:
            self._write(self._look())
            if self._progress is not None and self._recorder.settled.table.count > more_than:
                self._show(self._progress)

    def _show(self, path: Path) -> None:
        """Write progress.json: steps and saves so far, and the throughput since it was last written."""
        machine, (steps, samples, ended_s) = self._recorder.machine, self._shown
        # Between the ends of steps: the last progress of a run comes at any time after the one before it.
        now = self._recorder.counted()
        took_s = now[2] - ended_s if steps else 0.0
        content = {
            "step": now[0],
            "saves": machine.phases.saves.over,
            "samples_per_s": (now[1] - samples) * self._world_size() / took_s if took_s > 0 else None,
            "elapsed_s": time.perf_counter() - (machine.first_step_ended_s or time.perf_counter()),
            "updated_at_s": time.time(),
        }
        write_atomically(path, [json.dumps(content) + "\n"], durable=False)
        self._shown = now

    def _write(self, signs: Signs) -> None:
        if self._signal is not None and not _is_file(self._stacks, self._path):
            faulthandler.unregister(self._signal)
            faulthandler.disable()
            self._leave_sigterm()
            self._signal = None
        if not _is_file(self._file, self._path):
            return  # the script closed all files, and the number may be another file now
        still = signs.moved == self._moved
        if not still:
            self._moved = signs.moved
            self._moved_at_s = time.monotonic()
            self._is_recorded = False
        content = {
            "pid": os.getpid(),
            "signal": None if self._recorder.joins else self._signal,
            "own_rendezvous": self.own_rendezvous,
            "phase": signs.phase,
            "steps": signs.steps,
            "step_s": signs.step_s,
            "moved_monotonic_s": self._moved_at_s,
            "written_monotonic_s": time.monotonic(),
            "sequence": _collective_calls() if still else None,
            "handles": _handled() if still else None,
            "totals": self._recorder.totals(),
        }
        os.pwrite(self._file, (json.dumps(content).ljust(HEADER_BYTES - 1) + "\n").encode(), 0)
        if still:
            stack = _main_stack().encode("utf-8", "replace")
            os.pwrite(self._file, stack, HEADER_BYTES)
            os.ftruncate(self._file, HEADER_BYTES + len(stack))
        least_s = max(RECORD_AFTER_S, RECORD_AFTER_STEPS * (signs.step_s or 0.0))
        if not self._is_recorded and time.monotonic() - self._moved_at_s >= least_s:
            self._is_recorded = True
            write_flight_record(self._ranks)


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _register(stacks: int) -> int | None:
    """Make a real-time signal that nobody uses append the main thread's stack; return its number, None without one."""
    if not sys.platform.startswith("linux"):
        return None
    for signum in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(signum) == signal.SIG_DFL:
            faulthandler.register(signum, file=stacks, all_threads=False, chain=False)
            return signum
    return None


def signs(recorder: Recorder, reported: Path, ended: bool) -> Signs:
    """Return the signs; another thread than the one that trains may call this.

    reported: the file with steps that the program reports itself; its growth counts where no step is seen. What the
    device has passed counts, too: the host may be far ahead of it, and wait.
    """
    recorder.feed()
    machine, marks = recorder.machine, recorder.marks
    steps = machine.table.count
    size = 0 if steps else _size(reported)
    phase = "ended" if ended else "unknown" if size else machine.phase
    moved = (steps, phase, recorder.joins, len(recorder.log), size, marks.passed if marks is not None else 0)
    return Signs(steps, phase, _median_s(machine.table), moved)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _median_s(table: StepTable) -> float | None:
    """Return the median of the last steps' times; None before the second step, because the first is no measure."""
    last = [*table.recent_s][table.count <= RECENT :]
    median = statistics.median(last) if last else math.nan
    return median if math.isfinite(median) else None


def _handled() -> str | None:
    """Return the exception that the main thread handles, such as in a ``finally`` that waits for others; else None."""
    found = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error = found[1] if isinstance(found, tuple) else found  # a tuple before Python 3.12
    text = None if error is None else f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()
    return text and " ".join(text.split())[:HANDLED_CHARACTERS]


def _main_stack() -> str:
    """Return the stack of the main thread as faulthandler prints it. The caller is another thread, with the GIL."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    walk = itertools.islice(traceback.walk_stack(frame), FRAMES) if frame else ()
    calls = [(each.f_code, line) for each, line in walk]
    lines = [f'  File "{code.co_filename}", line {line} in {code.co_name}' for code, line in calls]
    return "\n".join(["Stack (most recent call first):", *lines, ""])


def _collective_calls() -> int | None:
    """Return the number of collective calls that this rank has begun in the default group; None if it is not known."""
    dist = _group()
    if dist is None:
        return None
    try:
        return int(dist.distributed_c10d._get_default_group()._get_sequence_number_for_group())
    except (AttributeError, RuntimeError, NotImplementedError):
        return None


def write_flight_record(directory: Path) -> None:
    """Write torch's last collective calls as torchfrtrace reads them, if its flight recorder is on. Raises OSError."""
    dist = _group()
    if dist is None or not any(os.environ.get(name, "0") not in ("", "0") for name in RECORDER_ENABLED_BY):
        return
    c10d: Any = getattr(sys.modules["torch"]._C, "_distributed_c10d", None)
    # NCCL's own recorder, and that of all others, also of torch 2.15's nccl2; torch 2.4 has the first one alone.
    names = ("_dump_nccl_trace", "_dump_fr_trace") if "nccl" in str(dist.get_backend_config()) else ("_dump_fr_trace",)
    traces = [getattr(c10d, name)() for name in names if hasattr(c10d, name)]
    if traces:  # that of the recorder in use is the longer one
        write_atomically(directory / f"flight_{dist.get_rank()}", [max(traces, key=len)])


def _group() -> Any:
    """Return torch.distributed if it has a default process group, without an import that the script has not made."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
