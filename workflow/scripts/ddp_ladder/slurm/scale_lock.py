"""The lock on the run directories of a scale: only one job writes to them, from any start, host or checkout.

A lock is a file, results/jobs/<scale>.lock<n>, that names its job, host and process; the highest n counts. Training
data that are being prepared are locked in the same way: <data_dir>/.prepare.lock<n>.
It is created with O_EXCL, which works on network file systems without flock, too. A job that takes over from one that
has ended creates the next: of several that try, one succeeds. A job that ends records that in its lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import read_json, write_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.process_id import ProcessId
from ddp_ladder.slurm.query import SlurmError
from ddp_ladder.slurm.states import GONE, ask

SCHEMA_VERSION = 1
BEAT_S = 5.0  # how often a holder touches its lock
SILENT_AFTER_S = 60.0  # another host may see that this late, or a busy file system write it
LOOK_S = 1.0
ENDS_WITHIN_S = 60.0  # for a job that has got SIGTERM; more than job.END_S

OLD_S = 600.0  # clocks of a cluster differ by less, or munge would reject Slurm's messages

CLOCK = "%Y-%m-%d %H:%M:%S"

Say = Callable[[str], None]
Signs = tuple[tuple[int, int, int], ...]  # inode, size, time of change in ns


@dataclass(frozen=True)
class Holder:
    """The job that holds a scale. ended: whether it has released it."""

    job_id: str
    process: ProcessId
    since: str
    ended: bool = False

    @classmethod
    def here(cls, job_id: str) -> Holder:
        """Return the holder that this process is."""
        return cls(job_id, ProcessId.own(), time.strftime(CLOCK))

    @property
    def since_s(self) -> float:
        """Return when it took the scale (unix time)."""
        return time.mktime(time.strptime(self.since, CLOCK))

    @property
    def slurm_id(self) -> str | None:
        """The job's id in Slurm; None for a job without Slurm."""
        return self.job_id if self.job_id.isdecimal() else None


@dataclass(frozen=True)
class Locked:
    """The object of a lock, in messages ``label: another job holds what``.

    ends_within_s: how long to wait for a holder on this machine.
    """

    directory: Path
    name: str
    label: str
    what: str
    ends_within_s: float

    @classmethod
    def scale(cls, results: Path, scale: str, label: str) -> Locked:
        """Return the lock on the run directories of a scale."""
        return cls(results / "jobs", scale, label, "its run directories", ENDS_WITHIN_S)


@contextlib.contextmanager
def held(locked: Locked, job_id: str, say: Say, lost: Callable[[], None]) -> Iterator[None]:
    """Hold the lock for the job that this process is.

    lost: called from another thread if another job takes the lock, because this one showed no sign of life for long.
    Raises UserError while another job holds it, or if the lock cannot be written.
    """
    mine = Holder.here(job_id)
    try:
        path = _acquire(locked, mine, say)
    except OSError as error:
        raise UserError(
            Problem(
                str(locked.directory),
                f"the lock of {locked.name} cannot be written, and two jobs on the same files would destroy them",
                found=str(error),
                next="make room or correct the permissions; then start snakemake again",
            )
        ) from error
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, locked.name, mine, done, lost), daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
        with contextlib.suppress(OSError):  # others will then see that the process is dead
            write_json(path, _text(replace(mine, ended=True)))


def problem_of_holder(results: Path, scale: str, say: Say) -> Problem | None:
    """Return the problem of a scale that a job holds; None if none does."""
    locked = Locked.scale(results, scale, label=scale)
    path = _newest(locked.directory, locked.name)
    return None if path is None else _problem(path, locked, Holder.here(""), say)


def _acquire(locked: Locked, mine: Holder, say: Say) -> Path:
    locked.directory.mkdir(parents=True, exist_ok=True)
    begun_s, is_waiting = time.monotonic(), False
    while True:
        newest = _newest(locked.directory, locked.name)
        if newest is not None and (problem := _problem(newest, locked, mine, say)):
            holder = _read(newest)
            # Its start may have been killed, and it may be ending its processes on this machine.
            may_end_soon = holder and holder.slurm_id in (None, mine.job_id) and holder.process.is_alive()
            if not may_end_soon or time.monotonic() - begun_s > locked.ends_within_s:
                raise UserError(problem)
            if not is_waiting:
                say(f"{locked.label}: {_describe(holder)}, holds {locked.what}; waiting for its end")
            is_waiting = True
            time.sleep(LOOK_S)
            continue
        path = locked.directory / f"{locked.name}.lock{1 if newest is None else _number(newest) + 1}"
        try:
            _create(path, mine)
        except FileExistsError:
            continue  # another job was faster
        if _newest(locked.directory, locked.name) == path:
            break
        path.unlink(missing_ok=True)  # others have come and gone in the meantime
    for old in _locks(locked.directory, locked.name)[:-1]:
        with contextlib.suppress(OSError):  # it may be another user's; it no longer counts
            old.unlink()
    return path


def _problem(path: Path, locked: Locked, mine: Holder, say: Say) -> Problem | None:
    """Return the problem of a lock that a job holds; None if that job has ended."""
    holder = _read(path)
    if holder is not None and holder.ended:
        return None
    alive = _is_known_to_live(holder, mine) if holder else None
    if alive is None:
        say(f"{locked.label}: {path} is held by {_describe(holder)}; looking whether that is alive")
        alive, holder = shows_life(lambda: _signs([path])), _read(path)
    if not alive:
        return None
    end = f"`scancel {holder.slurm_id}`" if holder and holder.slurm_id else "SIGTERM to its process"
    return Problem(
        locked.label,
        f"another job holds {locked.what}, and a second one would write to the same files",
        found=f"{_describe(holder)} ({path})",
        next=f"wait for it, or end it with {end}; then start snakemake again. If it is certainly over, delete {path}",
    )


def _describe(holder: Holder | None) -> str:
    if holder is None:
        return "a job that cannot be read"
    return f"job {holder.job_id} on {holder.process.host}, process {holder.process.pid}, since {holder.since}"


def _is_known_to_live(holder: Holder, mine: Holder) -> bool | None:
    """Return whether a holder's job goes on; None if neither this machine nor Slurm knows."""
    alive = holder.process.is_alive()
    # Several starts may share an allocation, and a requeued job keeps its id: the id then proves nothing.
    if alive is not None or holder.slurm_id in (None, mine.job_id):
        return alive
    try:
        state = ask([holder.job_id])[holder.job_id]
    except SlurmError:
        return None
    return None if state.state == GONE else state.phase == "running"


def newest_lock(names: Iterable[str], scale: str) -> str | None:
    """Return the lock of a scale that counts, of the names in results/jobs; None if there is none."""
    own = [name for name in names if re.fullmatch(rf"{re.escape(scale)}\.lock\d+", name)]
    return max(own, key=lambda name: _number(Path(name)), default=None)


def read_lock(path: Path) -> tuple[Holder, float]:
    """Return the holder, and when it last touched its lock (unix time). Raises OSError, or ValueError if it is torn."""
    beat_s, found = path.stat().st_mtime, _read(path)
    if found is None:
        raise ValueError(f"{path} does not hold a lock")
    return found, beat_s


def signs_of_life(results: Path, scale: str, log: Path | None = None) -> Signs:
    """Return what changes while a job of the scale is alive: its lock, the files of its runs, its log."""
    newest = _newest(results / "jobs", scale)
    runs = (results / "runs").glob(f"*/*/{scale}/r*")
    written = [path for run in runs for path in (run / "progress.json", run / "train.log", *run.glob("nodes/*"))]
    return _signs(path for path in (newest, log, *written) if path is not None)


def shows_life(look: Callable[[], Signs]) -> bool:
    """Return True as soon as something changes; False after SILENT_AFTER_S, or at once if all is older than OLD_S."""
    before, until_s = look(), time.monotonic() + SILENT_AFTER_S
    if all(changed_ns < 1e9 * (time.time() - OLD_S) for _, _, changed_ns in before):
        return False
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
        if look() != before:
            return True
    return False


def _signs(paths: Iterable[Path]) -> Signs:
    """Return inode, size and time of the files that exist. Opening makes a network file system refresh them."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as file:
            now = os.fstat(file.fileno())
            found.append((now.st_ino, now.st_size, now.st_mtime_ns))
    return tuple(found)


def _beat(path: Path, scale: str, mine: Holder, done: threading.Event, lost: Callable[[], None]) -> None:
    while not done.wait(BEAT_S):
        try:
            os.utime(path)
        except FileNotFoundError:  # deleted by hand
            with contextlib.suppress(OSError):
                if _newest(path.parent, scale) is None:
                    _create(path, mine)
        except OSError:
            continue
        if _newest(path.parent, scale) not in (path, None):
            lost()
            return


def _locks(directory: Path, scale: str) -> list[Path]:
    found = [path for path in directory.glob(f"{scale}.lock*") if re.fullmatch(r".*\.lock\d+", path.name)]
    return sorted(found, key=_number)


def _newest(directory: Path, scale: str) -> Path | None:
    return next(iter(_locks(directory, scale)[-1:]), None)


def _number(path: Path) -> int:
    return int(path.name.rpartition(".lock")[2])


def _text(holder: Holder) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, **asdict(holder)}


def _create(path: Path, holder: Holder) -> None:
    """Create the lock. Raises FileExistsError if it exists, or another OSError, without leaving a file."""
    with path.open("x") as file:
        try:
            file.write(json.dumps(_text(holder), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink()
            raise


def _read(path: Path) -> Holder | None:
    """Return the holder; None for a lock that is being written, torn, or deleted."""
    try:
        data = read_json(path)
        process = ProcessId(**data.pop("process"))
        return Holder(process=process, **data) if data.pop("schema_version") == SCHEMA_VERSION else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
