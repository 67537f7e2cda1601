"""The profiled steps of a run: the tables of rank 0 and of the slowest rank, whose traces are kept."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_ladder.common.files import RunDirectory, read_json
from ddp_ladder.records.profile_models import Profile, ProfileFile, ProfileTable, RankProfile
from ddp_ladder.records.raw_models import RunFile
from ddp_ladder.records.record import Rank, Record, Remark


def profile_of(run: RunFile, ranks: Sequence[Rank], directory: RunDirectory) -> Profile | None:
    """Return the profile of a run; None if none was wanted. A missing or damaged file is a problem in it."""
    if not run.spec.profile_steps or not ranks:
        return None
    slowest = slowest_rank(ranks)
    found, problem = [], None
    for rank in dict.fromkeys((ranks[0].rank, slowest)):
        try:
            found.append(RankProfile(rank=rank, slowest=rank == slowest, table=_table(run, rank, directory)))
        except FileNotFoundError:
            problem = problem or f"rank {rank} left no table of its profiled steps"
        except (OSError, ValueError) as error:
            problem = problem or f"rank {rank}: {error}"
    return Profile(ranks=tuple(found), problem=problem)


def profiling_s(run: RunFile, directory: RunDirectory) -> float:
    """Return what a run took longer for its profile; 0 if there is none, or it is not known."""
    if not run.spec.profile_steps:
        return 0.0
    try:
        return _read(run, 0, directory).took_s
    except (OSError, ValueError):
        return 0.0


def remarks_on_profile(profile: Profile | None) -> tuple[Remark, ...]:
    """Return why a profile that was wanted is incomplete."""
    if profile is None or profile.problem is None:
        return ()
    next_step = "nothing for the figures, which are complete without a profile"
    return (Remark(name="profile", what=f"not profiled: {profile.problem}", next=next_step),)


def slowest_rank(ranks: Sequence[Rank]) -> int:
    """Return the rank with the longest own work in a measured step: its time without its wait for gradients."""

    def own_s(rank: Rank) -> float:
        return (rank.step_time_s or 0.0) - ((rank.ddp.exposed_comm_s or 0.0) if rank.ddp else 0.0)

    return max(ranks, key=own_s).rank


def drop_other_traces(directory: RunDirectory, record: Record) -> None:
    """Delete the traces of all ranks but rank 0 and the slowest. One that cannot be deleted stays."""
    if not record.spec.profile_steps or not record.ranks:
        return
    kept = {directory.trace(rank) for rank in (record.ranks[0].rank, slowest_rank(record.ranks))}
    for path in directory.ranks.glob("rank*.trace.json.gz"):
        if path not in kept:
            try:
                path.unlink()
            except OSError:
                return


def _table(run: RunFile, rank: int, directory: RunDirectory) -> ProfileTable:
    """Return a rank's table. Raises OSError, or ValueError with the reason if there is none."""
    file = _read(run, rank, directory)
    if file.table is None:
        raise ValueError(file.problem or "no table")
    return file.table


def _read(run: RunFile, rank: int, directory: RunDirectory) -> ProfileFile:
    """Read a rank's file. Raises OSError, or ValueError if it is damaged or not of this run."""
    file = ProfileFile.from_json(read_json(directory.profile(rank)))
    if (file.spec_hash, file.job, file.rank) != (run.spec_hash, run.job, rank):
        raise ValueError(f"{directory.profile(rank).name} is of another run or rank")
    return file
