"""The lock on the run directories of a scale: one job writes to them, whatever start, host or checkout it comes from.

A lock is a file, results/jobs/<scale>.lock<n>, that names its job, host and process; the one of the highest n counts.
It is made with O_EXCL, which a network file system holds to also where it does not know flock. Whoever takes over from
a job that is over makes the next: of several that try, one succeeds. A job that ends says so in its lock.
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

from ddp_ladder.files import read_json, write_json
from ddp_ladder.messages import Problem, UserError
from ddp_ladder.process_id import ProcessId
from ddp_ladder.slurm_query import SlurmError
from ddp_ladder.slurm_states import GONE, ask

SCHEMA_VERSION = 1
BEAT_S = 5.0  # how often a holder touches its lock
SILENT_AFTER_S = 60.0  # what another host may take to see that, and a busy file system to do it
LOOK_S = 1.0
ENDS_WITHIN_S = 60.0  # what a job takes that is told to end; more than job.END_S

OLD_S = 600.0  # clocks of one Slurm differ by less: munge would not take its messages

Say = Callable[[str], None]
Signs = tuple[tuple[int, int, int], ...]  # inode, size, time of change in ns


@dataclass(frozen=True)
class Holder:
    """Who holds a scale. ended: whether it has let go."""

    job_id: str
    process: ProcessId
    since: str
    ended: bool = False

    @classmethod
    def here(cls, job_id: str) -> Holder:
        """This process."""
        return cls(job_id, ProcessId.own(), time.strftime("%Y-%m-%d %H:%M:%S"))

    @property
    def slurm_id(self) -> str | None:
        """None for a job that is not Slurm's."""
        return self.job_id if self.job_id.isdecimal() else None


@contextlib.contextmanager
def held(results: Path, label: str, scale: str, job_id: str, say: Say, lost: Callable[[], None]) -> Iterator[None]:
    """Hold the run directories of a scale for the job that this process is. label: begins what the user is told.

    lost: called from another thread when another job holds them all the same, because this one showed no life for long.
    Raises UserError while another job holds them, or where that cannot be noted.
    """
    directory, mine = results / "jobs", Holder.here(job_id)
    try:
        path = _acquire(directory, label, scale, mine, say)
    except OSError as error:
        raise UserError(
            Problem(
                str(directory),
                f"the lock of {scale} cannot be written, and two jobs on the same runs would destroy them",
                found=str(error),
                next="make room or correct the permissions; then start snakemake again",
            )
        ) from error
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, scale, mine, done, lost), daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
        with contextlib.suppress(OSError):  # then it will be seen that the process is dead
            write_json(path, _text(replace(mine, ended=True)))


def problem_of_holder(results: Path, scale: str, say: Say) -> Problem | None:
    """What to tell while a job holds the scale; None where none does."""
    path = _newest(results / "jobs", scale)
    return None if path is None else _problem(path, scale, Holder.here(""), say)


def _acquire(directory: Path, label: str, scale: str, mine: Holder, say: Say) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    begun_s, is_waiting = time.monotonic(), False
    while True:
        newest = _newest(directory, scale)
        if newest is not None and (problem := _problem(newest, label, mine, say)):
            holder = _read(newest)
            # Perhaps its start was killed, and it is ending its processes on this machine.
            may_end_soon = holder and holder.slurm_id in (None, mine.job_id) and holder.process.is_alive()
            if not may_end_soon or time.monotonic() - begun_s > ENDS_WITHIN_S:
                raise UserError(problem)
            if not is_waiting:
                say(f"{label}: {_who(holder)}, holds its run directories; waiting for its end")
            is_waiting = True
            time.sleep(LOOK_S)
            continue
        path = directory / f"{scale}.lock{1 if newest is None else _number(newest) + 1}"
        try:
            _create(path, mine)
        except FileExistsError:
            continue  # another job was faster
        if _newest(directory, scale) == path:
            break
        path.unlink(missing_ok=True)  # others have come and gone since this one has looked
    for old in _locks(directory, scale)[:-1]:
        with contextlib.suppress(OSError):  # of another user, perhaps: it counts for nothing any more
            old.unlink()
    return path


def _problem(path: Path, label: str, mine: Holder, say: Say) -> Problem | None:
    """What to tell while a job holds this lock; None where it is over."""
    holder = _read(path)
    if holder is not None and holder.ended:
        return None
    alive = _is_known_to_live(holder, mine) if holder else None
    if alive is None:
        say(f"{label}: {path} is held by {_who(holder)}; looking whether that is alive")
        alive, holder = shows_life(lambda: _signs([path])), _read(path)
    if not alive:
        return None
    end = f"`scancel {holder.slurm_id}`" if holder and holder.slurm_id else "SIGTERM to its process"
    return Problem(
        label,
        "another job holds its run directories, and a second one would write to the same files",
        found=f"{_who(holder)} ({path})",
        next=f"wait for it, or end it with {end}; then start snakemake again. If it is certainly over, delete {path}",
    )


def _who(holder: Holder | None) -> str:
    if holder is None:
        return "a job that cannot be read"
    return f"job {holder.job_id} on {holder.process.host}, process {holder.process.pid}, since {holder.since}"


def _is_known_to_live(holder: Holder, mine: Holder) -> bool | None:
    """Whether a holder's job goes on; None where neither this machine nor Slurm can tell."""
    alive = holder.process.is_alive()
    # In one allocation there may be several starts, and a requeued job had another life under the same id.
    if alive is not None or holder.slurm_id in (None, mine.job_id):
        return alive
    try:
        state = ask([holder.job_id])[holder.job_id]
    except SlurmError:
        return None
    return None if state.state == GONE else state.phase == "running"


def signs_of_life(results: Path, scale: str, log: Path | None = None) -> Signs:
    """What changes while a job of the scale lives: its lock, what its runs write, its own log."""
    newest = _newest(results / "jobs", scale)
    runs = (results / "runs").glob(f"*/*/{scale}/r*")
    written = [path for run in runs for path in (run / "progress.json", run / "train.log", *run.glob("nodes/*"))]
    return _signs(path for path in (newest, log, *written) if path is not None)


def shows_life(look: Callable[[], Signs]) -> bool:
    """Whether something changes, as long as that takes; at once where nothing has for long."""
    before, until_s = look(), time.monotonic() + SILENT_AFTER_S
    if all(changed_ns < 1e9 * (time.time() - OLD_S) for _, _, changed_ns in before):
        return False
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
        if look() != before:
            return True
    return False


def _signs(paths: Iterable[Path]) -> Signs:
    """Of the files that are there. Only where a file is opened does a network file system look whether it changed."""
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
    """Raises FileExistsError where it is there, and another OSError, without leaving it, where it cannot be written."""
    with path.open("x") as file:
        try:
            file.write(json.dumps(_text(holder), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink()
            raise


def _read(path: Path) -> Holder | None:
    """None for a lock that is being written, torn, or gone."""
    try:
        data = read_json(path)
        process = ProcessId(**data.pop("process"))
        return Holder(process=process, **data) if data.pop("schema_version") == SCHEMA_VERSION else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
