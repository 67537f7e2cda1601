"""Locks of results: on a start of Snakemake, on the run directories of a scale, on training data that are prepared.

A lock is a file, ``<directory>/<name>.lock<n>``, that names its holder: job, process, host, user, and since when. The
highest n counts. It is created with O_EXCL, which works on network file systems without flock, too. Whoever takes over
from a holder that has ended creates the next: of several that try, one succeeds. A holder touches its lock every few
seconds, and records its end in it. It lives if its process does, as seen from the same machine; from another machine,
if its lock is still touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from ddp_ladder.common.files import read_json, touched_s, write_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.process import ProcessId

BEAT_S = 5.0  # how often a holder touches its lock
SILENT_AFTER_S = 60.0  # another host may see that this late, or a busy file system write it
CLOCKS_S = 600.0  # clocks of a cluster differ by less, or munge would reject Slurm's messages
LOOK_S = 1.0
SEEN_AFTER_S = 120.0  # for a viewer: clocks differ, and network file systems cache
ENDS_WITHIN_S = 60.0  # for a job that has got SIGTERM; more than limits.END_S

Say = Callable[[str], None]


@dataclass(frozen=True)
class Holder:
    """What holds a lock."""

    job_id: str  # START for a start of Snakemake
    process: ProcessId
    user: str
    directory: str  # where it was started
    since_s: float  # unix time
    ended: bool = False  # it has released the lock

    @classmethod
    def here(cls, job_id: str) -> Holder:
        return cls(job_id, ProcessId.own(), psutil.Process().username(), str(Path.cwd()), time.time())

    @property
    def since(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since_s))

    def __str__(self) -> str:
        job = "" if self.job_id == START else f"job {self.job_id}, "
        where = f"on {self.process.host}, since {self.since}, of {self.user}, in {self.directory}"
        return f"{job}process {self.process.pid} {where}"

    @property
    def slurm_id(self) -> str | None:
        """The job's id in Slurm; None for a job without Slurm."""
        return self.job_id if self.job_id.isdecimal() else None


START = "start"


@dataclass(frozen=True)
class Lock:
    """A lock that may be taken."""

    directory: Path
    name: str
    label: str  # in messages: "label: another job holds what"
    what: str
    ends_within_s: float = 0.0  # the wait for a living holder on this machine, which may be about to end

    @classmethod
    def of_start(cls, results: Path) -> Lock:
        """Return the lock of the results that one start of Snakemake at a time holds."""
        return cls(results, START, str(results), "these results")

    @classmethod
    def of_chain(cls, directory: Path) -> Lock:
        """Return the lock of a chain of jobs: the start that holds it may have lost its Snakemake, and end its link."""
        return cls(directory, START, str(directory), "this chain", ENDS_WITHIN_S)

    @classmethod
    def of_scale(cls, results: Path, scale: str, label: str) -> Lock:
        return cls(results / "jobs", scale, label, "its run directories", ENDS_WITHIN_S)

    @property
    def newest(self) -> Path | None:
        """The file that counts; None if there is none."""
        return max(self.files, key=_number, default=None)

    @property
    def files(self) -> list[Path]:
        """The files of this lock: the one that counts, and older ones."""
        form = re.compile(rf"{re.escape(self.name)}\.lock\d+")
        return [path for path in self.directory.glob("*.lock*") if form.fullmatch(path.name)]


@dataclass(frozen=True)
class Held:
    """A lock as others see it."""

    holder: Holder
    is_alive: bool  # its holder has not let go of it and shows life


def look(lock: Lock) -> Held | None:
    """Return who holds a lock, or held it last, without waiting for a sign of life; None without one to read."""
    if (newest := lock.newest) is None or (holder := _read(newest)) is None:
        return None
    return Held(holder, _is_alive(holder, newest, lambda path: time.time() - _touched_s(path) < SEEN_AFTER_S))


def living(lock: Lock) -> Holder | None:
    """Return who holds a lock and lives; None if nobody does."""
    held = look(lock)
    return held.holder if held is not None and held.is_alive else None


def _end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def held(lock: Lock, job_id: str, say: Say, lost: Callable[[], None] = _end_this_process) -> Iterator[Holder | None]:
    """Hold the lock for the job that this process is; yield the killed holder that it was taken over from.

    lost: called from another thread if another job takes the lock, because this one showed no sign of life for long.
    Raises UserError while another job holds it, or if the lock cannot be written.
    """
    mine = Holder.here(job_id)
    try:
        path, killed = _acquire(lock, mine, say)
    except OSError as error:
        what = f"the lock of {lock.what} cannot be written, and two jobs on the same files would destroy them"
        advice = "make room or correct the permissions; then start snakemake again"
        raise UserError(Problem(str(lock.directory), what, str(error), next=advice)) from error
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, lock, done, say, lost), daemon=True)
    beat.start()
    try:
        yield killed
    finally:
        done.set()
        beat.join()
        with contextlib.suppress(OSError):  # others will then see that the process is dead
            if path.exists():
                write_json(path, asdict(replace(mine, ended=True)))


def _is_alive(holder: Holder | None, path: Path, beats: Callable[[Path], bool]) -> bool:
    """Return True if the holder of a lock lives. beats: tells it from the lock, for one of another machine."""
    if holder is not None and holder.ended:
        return False
    alive = holder.process.is_alive() if holder else None
    return beats(path) if alive is None else alive


def _beats(path: Path) -> bool:
    """Return True as soon as the lock is touched; False after SILENT_AFTER_S, at once if it is older than CLOCKS_S."""
    before, until_s = _touched_s(path), time.monotonic() + SILENT_AFTER_S
    while before > time.time() - CLOCKS_S and time.monotonic() < until_s:
        time.sleep(LOOK_S)
        if _touched_s(path) != before:
            return True
    return False


def _touched_s(path: Path) -> float:
    """Return when a lock was last touched (unix time); 0 if it is gone."""
    try:
        return touched_s(path)
    except OSError:
        return 0.0


def _acquire(lock: Lock, mine: Holder, say: Say) -> tuple[Path, Holder | None]:
    """Return the file of the lock, and the killed holder that it was taken over from."""
    lock.directory.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + lock.ends_within_s
    is_waiting = False
    while True:
        newest = lock.newest
        holder = None if newest is None else _read(newest)
        if newest is not None:
            if holder is None or (not holder.ended and holder.process.is_alive() is None):
                say(f"{lock.label}: {newest} is held by {holder or 'a job'}; looking whether that is alive")
            if _is_alive(holder, newest, _beats):
                # Its start may have been killed, and it may be ending its processes on this machine.
                may_end = holder and holder.slurm_id in (None, mine.job_id) and holder.process.is_alive()
                if not may_end or time.monotonic() >= until_s:
                    raise _refusal(lock, newest)
                if not is_waiting:
                    say(f"{lock.label}: {holder} holds {lock.what}; waiting for its end")
                is_waiting = True
                time.sleep(LOOK_S)
                continue
        path = lock.directory / f"{lock.name}.lock{1 if newest is None else _number(newest) + 1}"
        try:
            _create(path, mine)
        except FileExistsError:
            continue  # another job was faster
        if lock.newest == path:
            break
        path.unlink(missing_ok=True)  # others have come and gone in the meantime
    for old in lock.files:
        if _number(old) < _number(path):
            with contextlib.suppress(OSError):  # it may be another user's; it no longer counts
                old.unlink()
    return path, None if holder is None or holder.ended else holder


def _refusal(lock: Lock, path: Path) -> UserError:
    holder = _read(path)
    end = "SIGTERM to its process"
    if holder:
        end = f"`scancel {holder.slurm_id}`" if holder.slurm_id else f"`kill {holder.process.pid}`"
    who = "start" if lock.name == START else "job"
    what = f"another {who} holds {lock.what}, and a second one would write to the same files"
    advice = f"wait for it, or end it with {end}; then start snakemake again"
    return UserError(Problem(lock.label, what, f"{holder or 'a holder that cannot be read'} ({path})", next=advice))


def _beat(path: Path, lock: Lock, done: threading.Event, say: Say, lost: Callable[[], None]) -> None:
    while not done.wait(BEAT_S):
        try:
            os.utime(path)
        except OSError:  # deleted by hand, or the file system is unavailable for a while
            continue
        with contextlib.suppress(OSError):
            if lock.newest not in (path, None):
                say(f"{lock.label}: another job has taken {lock.what} over")
                lost()
                return


def _number(path: Path) -> int:
    return int(path.name.rpartition(".lock")[2])


def _create(path: Path, holder: Holder) -> None:
    """Create the lock. Raises FileExistsError if it exists, or another OSError, without leaving a file."""
    with path.open("x") as file:
        try:
            file.write(json.dumps(asdict(holder), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink()
            raise


def _read(path: Path) -> Holder | None:
    """Return the holder; None for a lock that is being written, torn, or deleted."""
    try:
        data = read_json(path)
        return Holder(process=ProcessId(**data.pop("process")), **data)
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
