"""Run the user's script as python itself would, and note how it ended."""

from __future__ import annotations

import ast
import builtins
import ctypes
import hashlib
import io
import linecache
import math
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from ddp_ladder_instrument.files import chain_of, one_line

PR_SET_PDEATHSIG = 1
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def die_with_parent() -> bool:
    """Ask Linux to kill this process when its parent ends; return True on success.

    The kernel watches the *thread* that started this process, so a launcher must start its ranks
    from a thread that lives as long as they do. If the parent ends during this call, the parent's id
    changes. A parent that ended before it looks like a launcher that runs as process 1 of a container,
    so that case is ignored.
    """
    if not sys.platform.startswith("linux"):
        return False
    parent = os.getppid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        arranged = bool(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return arranged


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

    def file(self) -> str | None:
        """Return the file that ran as ``__main__``, absolute, links resolved; None if it is not a plain file."""
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        return os.path.realpath(path) if path is not None and os.path.isfile(path) else None

    def sha256(self) -> str | None:
        """Return the SHA-256 of the source that ran as ``__main__``; None if it is not a plain file."""
        path = self.file()
        if path is None:
            return None
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()


def _safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def hide_own_frames(own_directory: str) -> None:
    """Make the traceback of an uncaught exception show the program's frames only."""
    show = sys.excepthook
    own = tuple(os.path.join(own_directory, part) for part in ("instrument.py", f"ddp_ladder_instrument{os.sep}"))

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for each in chain_of(error):
            each.__traceback__ = _without(each.__traceback__, own)
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
    """The end of the program: by the script itself, an exception, or a limit of the measurement (``ended_by``).

    after_training: it failed, but only after the limit, or after all loops that made steps.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        self.ended_by = "script"
        self.exception: str | None = None
        self.after_training = False

    def note(self, error: BaseException | None) -> None:
        """Note the error that ends the program."""
        self.exit_code = exit_code(error)
        if error is not None and not isinstance(error, SystemExit):
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


class LastStep:
    """The calls that led to a late optimizer step, innermost first: code and line.

    An exception after the loops spoils no figure: all planned steps were made. One in a loop that made steps (a
    validation between two epochs) may have cut the training short, even if no step would have followed.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[CodeType, int]] = []

    def note(self) -> None:
        """Note the calls that led to this optimizer step; not at each step, as all of a loop tell the same."""
        frame, calls = sys._getframe(1), []
        while frame is not None:
            calls.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        self._calls = calls

    def loops_were_over(self, error: BaseException) -> bool:
        """Return True if no loop that made the last step was running when this was raised, nor what led to it."""
        steps = self._calls[::-1]
        if error.__traceback__ is None or error.__traceback__.tb_frame.f_code not in (code for code, _ in steps):
            return False
        return all(_after_loops(steps, one.__traceback__) for one in chain_of(error))


def _after_loops(steps: list[tuple[CodeType, int]], trace: TracebackType | None) -> bool:
    """Compare a step's calls with a traceback, both outermost first, as far as they are the same calls.

    What was caught in a function that is none of the step's calls interrupted none of its loops.
    """
    place = next((k for k, (code, _) in enumerate(steps) if trace and code is trace.tb_frame.f_code), len(steps))
    for code, step_line in steps[place:]:
        if trace is None or trace.tb_frame.f_code is not code:
            break
        if trace.tb_lineno <= _end_of_loops(code, step_line):
            return False
        if trace.tb_lineno != step_line:
            break
        trace = trace.tb_next
    return True


def _end_of_loops(code: CodeType, line: int) -> float:
    """Return the last line of the outermost loop of a function around a line; 0 if there is none.

    From the source, as compilers move parts of a loop behind its end; infinite if it cannot be read, but for the
    interpreter's own part in starting a module.
    """
    if code.co_filename.startswith("<frozen"):
        return 0
    source = "".join(linecache.getlines(code.co_filename))
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, LOOPS)]
    except (SyntaxError, ValueError):
        return math.inf
    around = [node for node in nodes if code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)]
    return max((node.end_lineno or 0 for node in around), default=0) if source else math.inf
