"""Lock of a results directory: one start at a time, and one checkout. A file in the results names the holder.

The results of a killed start are taken over once its jobs have ended. Snakemake's own lock names no process, so it
cannot be taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ddp_ladder.common.files import read_json
from ddp_ladder.common.messages import Problem, Refused, UserError, notify
from ddp_ladder.common.process_id import ProcessId

START = "start.json"  # while a start is at work, and after one that was killed
LAST = "last_start.json"  # after its end
ENDING_S = 60.0  # for the jobs of a killed start, which end their own processes in order
LOOK_EVERY_S = 0.5
OWN_SCRIPTS = ("run_scale.py", "run_preflight.py", "preflight_node.py", "agent.py")
NO_START = ("not what a start writes", "look for another start on these results; if there is none, delete the file")


@dataclass(frozen=True)
class DirectoryId:
    """A directory: its path with links resolved, and its inode, which a move and another mount do not change."""

    path: str
    inode: int

    @classmethod
    def of(cls, directory: Path) -> DirectoryId:
        return cls(os.path.realpath(directory), directory.stat().st_ino)


@dataclass(frozen=True)
class Start:
    """One start of the workflow: which process, whose, from where, on which results, and since when (unix time)."""

    process: ProcessId
    user: str
    checkout: DirectoryId
    results: DirectoryId
    since_s: float

    @classmethod
    def now(cls, results: Path, checkout: Path) -> Start:
        """Return the start of this process."""
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
        return cls(ProcessId.own(), user, DirectoryId.of(checkout), DirectoryId.of(results), time.time())

    def is_on(self, other: Start) -> bool:
        """Return True if both are on the same results; a copy of them, which contains this file too, is not."""
        same_path = self.results.path == other.results.path and self._is_beside(other)
        return same_path or self.results.inode == other.results.inode

    def is_of_another_checkout(self, here: Start) -> bool:
        """Return True if it came from another checkout than ``here`` did, and that checkout still exists.

        Results inside a checkout are its own, wherever it was copied to. A checkout that is no longer at its path was
        moved, or is mounted elsewhere.
        """
        there, mine = Path(self.checkout.path), Path(here.checkout.path)
        if there == mine or Path(here.results.path).is_relative_to(mine):
            return False
        try:
            if (there / ".snakemake").is_dir():
                return not there.samefile(mine)
        except PermissionError:
            return True
        return not self._is_beside(here) and self.checkout.inode != here.checkout.inode

    def _is_beside(self, other: Start) -> bool:
        """Return True if both are on the same host."""
        here, there = self.process, other.process
        return here.host == there.host or (here.kernel != "" and here.kernel == there.kernel)

    @property
    def since(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since_s))

    def __str__(self) -> str:
        process = f"process {self.process.pid} on {self.process.host}"
        return f"{process}, since {self.since}, of {self.user}, in {self.checkout.path}"


@contextmanager
def held(results: Path, checkout: Path, check_jobs: Callable[[bool], None]) -> Iterator[None]:
    """Lock the results for this start; print a line if they are taken over from a killed one.

    check_jobs: raises UserError while jobs of earlier starts go on; its argument is whether the last one was killed.
    Raises Refused while another start holds the results, or processes of it are left, or if they belong to another
    checkout; UserError if they cannot be written.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        start = Start.now(results, checkout)
        with _one_at_a_time(results):
            _make_room(results, start, check_jobs)
            _write(results / START, start)
    except OSError as error:
        why = f"the results cannot be written: {error.strerror}"
        raise UserError(
            Problem(str(results), why, next="make room there, or name another directory: results")
        ) from None
    try:
        yield
    finally:
        _unlock(results, start)


def read_start(file: Path) -> Start:
    """Return the start in start.json or last_start.json. Raises OSError, or ValueError for anything else."""
    try:
        return _parsed(file)
    except (TypeError, KeyError) as error:
        raise ValueError(f"{file}: {NO_START[0]}") from error


def unlock_by_hand(results: Path) -> None:
    """Unlock results whose start has ended, as the user says; raises Refused if its process is seen to be alive."""
    try:
        start = _read(results / START)
    except UserError:
        start = None  # the file is removed, whatever it holds
    if start is not None and start.is_on(Start.now(results, results)) and start.process.is_alive():
        raise _refusal(start, Start.now(results, results))
    with contextlib.suppress(FileNotFoundError):
        (results / START).unlink()


def _make_room(results: Path, start: Start, check_jobs: Callable[[bool], None]) -> None:
    held_by = _read(results / START)
    killed = held_by if held_by is not None and held_by.is_on(start) else None
    if killed is not None and killed.process.is_alive() is not False:
        raise _refusal(killed, start)
    last = killed or _last(results)
    if last is not None and last.is_on(start) and last.is_of_another_checkout(start):
        raise _not_ours(last, results)
    check_jobs(killed is not None)
    if killed is not None:
        _await_processes(results, killed)
        was = f"the start of {killed.since} (process {killed.process.pid} on {killed.process.host})"
        notify(f"{was} was killed; this one goes on from what it has left")
    (results / START).unlink(missing_ok=True)


def _refusal(holder: Start, here: Start) -> Refused:
    pid, host = holder.process.pid, holder.process.host
    seen = bool(holder.process.is_alive())
    verdict = "not started: another start is at work on these results"
    if holder.is_of_another_checkout(here):
        verdict += ", from another checkout"
        own = "; or give this checkout results of its own: `results` in config/config.yaml"
    else:
        own = ""
    if seen:
        return Refused(verdict, str(holder), f"wait for it, or end it as Ctrl-C does: `kill {pid}`{own}")
    look = f"whether it still runs can be seen only there: `ps -p {pid}` on {host}"
    return Refused(verdict, str(holder), f"{look}; if it does not, `snakemake --unlock`, then start again{own}")


def _not_ours(last: Start, results: Path) -> Refused:
    return Refused(
        "not started: these results are another checkout's, and two would set aside each other's runs",
        f"{results}: last used by {last}",
        "give this checkout results of its own: `results` in config/config.yaml; or, to go on here with what the other "
        f"has measured, and there no more: delete {results / LAST}",
    )


def _await_processes(results: Path, killed: Start) -> None:
    """Wait for the processes that jobs of a killed start left on this machine. Raises Refused if they do not end."""
    until_s, is_announced = time.monotonic() + ENDING_S, False
    while left := processes_on(results):
        pids = " ".join(str(process.pid) for process in left)
        if time.monotonic() > until_s:
            verdict = "not started: processes of a start that was killed are still at work on these results"
            raise Refused(verdict, f"{pids}, of the start of {killed.since}", f"end them: `kill {pids}`")
        if not is_announced:
            notify(f"waiting for processes of a killed start to end: {pids}")
            is_announced = True
        time.sleep(LOOK_EVERY_S)


def processes_on(results: Path) -> list[psutil.Process]:
    """Return the ladder's processes on this machine that work on a results directory, as far as they can be seen."""
    root, found = Path(os.path.realpath(results)), []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        arguments, cwd = process.info["cmdline"] or [], process.info["cwd"]
        if cwd and any(Path(argument).name in OWN_SCRIPTS for argument in arguments):
            paths = (Path(os.path.realpath(Path(cwd, argument))) for argument in arguments)
            if any(path.is_relative_to(root) for path in paths):
                found.append(process)
    return found


def _read(file: Path) -> Start | None:
    """Return the start in the file, None if there is no file. Raises UserError if it holds something else."""
    until_s = time.monotonic() + LOOK_EVERY_S
    while True:
        try:
            return _parsed(file)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            if time.monotonic() > until_s:  # else it may be half written
                what, next_step = NO_START
                raise UserError(Problem(str(file), what, found=str(error), next=next_step)) from None
        time.sleep(0.05)


def _last(results: Path) -> Start | None:
    try:
        return read_start(results / LAST)
    except (OSError, ValueError):
        return None


def _parsed(file: Path) -> Start:
    data = read_json(file)
    raw = data["process"]
    return Start(
        ProcessId(str(raw["host"]), str(raw["kernel"]), str(raw["name_space"]), int(raw["pid"]), float(raw["started"])),
        str(data["user"]),
        DirectoryId(str(data["checkout"]["path"]), int(data["checkout"]["inode"])),
        DirectoryId(str(data["results"]["path"]), int(data["results"]["inode"])),
        float(data["since_s"]),
    )


def _write(file: Path, start: Start) -> None:
    """Write the file. Raises OSError, also if it exists."""
    content = json.dumps(asdict(start), indent=2).encode() + b"\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, content)
    except OSError:
        file.unlink()
        raise
    finally:
        os.close(descriptor)


def _unlock(results: Path, start: Start) -> None:
    """Unlock the results; remove them if they are empty. Never fails: the next start finds this process dead."""
    with contextlib.suppress(OSError, UserError):
        if _read(results / START) != start:
            return  # unlocked by hand meanwhile
        if {entry.name for entry in results.iterdir()} <= {START, LAST}:
            (results / LAST).unlink(missing_ok=True)
            (results / START).unlink()
            results.rmdir()
        else:
            os.replace(results / START, results / LAST)


@contextmanager
def _one_at_a_time(results: Path) -> Iterator[None]:
    """Let only one of several simultaneous starts check at a time, if the file system supports flock."""
    descriptor = os.open(results, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
