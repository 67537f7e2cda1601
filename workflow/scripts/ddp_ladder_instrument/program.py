"""Run the user's script as python itself would, and note how it ended."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType

from ddp_ladder_instrument import host
from ddp_ladder_instrument.files import chain_of, one_line

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends.

    The kernel watches the *thread* that started this process, so a launcher must start its ranks
    from a thread that lives as long as they do. If the parent ends during this call, the parent's id
    changes. A parent that ended before it looks like a launcher that runs as process 1 of a container,
    so that case is ignored.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class ProgramError(Exception):
    """The script cannot be started; the text is for the user."""


@dataclass(frozen=True)
class Program:
    """A script file, or a module given with -m."""

    name: str
    is_module: bool
    args: tuple[str, ...]

    def check(self) -> None:
        """Raise ProgramError if there is no such script. A module is only looked for when it is run."""
        if self.is_module:
            return
        try:
            with open(self.name, "rb"):
                pass
        except OSError as error:
            raise ProgramError(
                f"cannot read the training script: {error.strerror}\n"
                f"  found    {self.name} (in {os.getcwd()})\n"
                "  next     correct workload.script"
            ) from error

    def run(self) -> None:
        """Run the program to its end; its exceptions propagate.

        ``__main__`` and sys.path become the program's and stay so: atexit functions, threads and spawned
        loader workers rely on them.
        """
        main = ModuleType("__main__")
        vars(main)["__builtins__"] = builtins
        sys.modules["__main__"] = main
        if self.is_module:
            self._run_module()
        elif self._is_other_language():
            self._run_executable()
        else:
            self._run_file(main)

    def _is_other_language(self) -> bool:
        """Return True if it is an executable of another language, judged by its first bytes, not its name."""
        if not os.access(self.name, os.X_OK):
            return False
        with open(self.name, "rb") as file:
            head = file.readline(256)
        return head.startswith(b"\x7fELF") or (head.startswith(b"#!") and b"python" not in head)

    def _run_executable(self) -> None:
        """Run it as a child that ends with this process, and exit with its exit code."""
        command = [os.path.abspath(self.name), *self.args]
        code = subprocess.Popen(command, preexec_fn=die_with_parent).wait()
        raise SystemExit(code if code >= 0 else 128 - code)

    def _run_module(self) -> None:
        sys.argv[:] = ["-m", *self.args]
        if not _safe_path():
            sys.path.insert(0, os.getcwd())
        # Private, but `python -m` calls the same function, so messages and tracebacks are the same.
        runpy._run_module_as_main(self.name, alter_argv=True)  # type: ignore[attr-defined]

    def _run_file(self, main: ModuleType) -> None:
        path = os.path.abspath(self.name)
        sys.argv[:] = [self.name, *self.args]
        if not _safe_path():
            sys.path.insert(0, os.path.dirname(os.path.realpath(self.name)))
        main.__file__ = path
        main.__loader__ = SourceFileLoader("__main__", path)
        if sys.version_info < (3, 14):
            vars(main).update(__cached__=None, __annotations__={})
        with io.open_code(path) as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), vars(main))

    def sha256(self) -> str:
        """Return the SHA-256 of the source that ran as ``__main__``. Raises OSError if it is not a plain file."""
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        digest = host.sha256(path) if path else None
        if digest is None:
            raise OSError(f"no file of source: {path}")
        return digest


@contextlib.contextmanager
def handlers_set_aside() -> Iterator[None]:
    """Keep the script's own handlers of signals from raising in the block; what came meanwhile is sent again after it.

    But for SIGCHLD: torch's handler raises if a loader's worker was killed, which at the end harms nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {signum: signal.getsignal(signum) for signum in signal.valid_signals()}
    own = {signum: handler for signum, handler in handlers.items() if callable(handler)}
    for signum in own:
        signal.signal(signum, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for signum, handler in own.items():
            signal.signal(signum, handler)
        for number in came:
            if number != signal.SIGCHLD:
                os.kill(os.getpid(), number)


def _safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def hide_own_frames(own_directory: str) -> None:
    """Make the traceback of an uncaught exception show the program's frames only."""
    show = sys.excepthook
    own = tuple(os.path.join(own_directory, part) for part in ("instrument.py", f"ddp_ladder_instrument{os.sep}"))

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for linked in chain_of(error):
            linked.__traceback__ = _without(linked.__traceback__, own)
        show(kind, error, error.__traceback__)

    sys.excepthook = excepthook


def _without(trace: TracebackType | None, own: tuple[str, ...]) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = None
    for frame in reversed(frames):
        if not frame.tb_frame.f_code.co_filename.startswith(own):
            frame.tb_next = kept
            kept = frame
    return kept


class ProgramEnd:
    """The end of the program: by the script itself, an exception, or a limit of the measurement (``ended_by``)."""

    def __init__(self) -> None:
        self.exit_code = 0
        self.ended_by = "script"
        self.exception: str | None = None
        self.handled: str | None = None  # the exception that the script handled when it exited
        self.after_training = False  # it failed, but only after the limit

    def note(self, error: BaseException | None) -> None:
        self.exit_code = exit_code(error)
        if isinstance(error, SystemExit):
            # A script that exits in an ``except`` or ``finally``, with a code of failure, exits for that exception.
            handled = error.__context__ or sys.exc_info()[1]
            self.handled = None if handled is None else one_line(handled)
            error = None if self.exit_code in (0, os.EX_TEMPFAIL) else handled
        if error is not None:
            self.ended_by = "exception"
            self.exception = one_line(error)


def exit_code(error: BaseException | None) -> int:
    """Return the exit code that python would end with; 130 for Ctrl-C, as shells show it."""
    if error is None:
        return 0
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
