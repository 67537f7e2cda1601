"""The last checks before jobs are submitted to Slurm."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.messages import Problem, UserError, notify
from ddp_ladder.common.paths import profile
from ddp_ladder.preflight.admission import check_jobs, read_partitions
from ddp_ladder.slurm.job_end import SUBMITTED, JobEnd, job_end_file, read_job_end
from ddp_ladder.slurm.job_names import NamedJob, jobs_by_name
from ddp_ladder.slurm.query import SlurmError
from ddp_ladder.slurm.scale_lock import problem_of_holder, shows_life, signs_of_life
from ddp_ladder.slurm.states import GONE, ask

TOOLS = ("sbatch", "scontrol", "squeue", "scancel")


def check_before_submission(ladder: Ladder, scales: Collection[str]) -> None:
    """Ask Slurm whether it takes the jobs of these scales; print on stderr when it would start them, and which wait.

    Raises UserError for jobs that Slurm would refuse or never start, without Slurm, and while a job of an earlier start
    goes on.
    """
    if not scales:
        return
    require_slurm()
    require_no_job_left(Path(ladder.results), scales)
    jobs = [job for job in ladder.plan.jobs if str(job.scale) in scales]
    admission = check_jobs(jobs, ladder.settings, read_partitions())
    for problem in admission.waits:
        notify(f"warning: {problem}\n")
    if admission.refused:
        raise UserError(admission.refused)
    if admission.starts:
        notify(f"Slurm would start them, if submitted now: {admission.starts_in_words}")


def require_slurm() -> None:
    """Raise UserError if jobs cannot be submitted from this machine."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise UserError(
            Problem(
                "--executor slurm",
                "this machine has no Slurm to submit jobs to",
                found=f"no {', '.join(missing)}",
                allowed="a login node of the cluster",
                next=f"start it there, or climb on this machine: snakemake --profile {profile('local')}",
            )
        )


def require_no_job_left(results: Path, scales: Collection[str]) -> None:
    """Raise UserError while a job of an earlier start goes on, whether or not that start has recorded it."""
    try:
        queue = jobs_by_name(results)
        problems = [problem for scale in sorted(scales) for problem in _left(results, scale, queue)]
    except SlurmError as silent:
        raise UserError(Problem("squeue", str(silent), next="start again when Slurm answers")) from None
    if problems:
        raise UserError(problems)


def require_every_job_over(results: Path) -> None:
    """Call require_no_job_left for every scale, if this machine has Slurm."""
    scales = [file.stem for file in (results / "jobs").glob("*.json")]
    if scales and shutil.which("squeue"):
        require_no_job_left(results, scales)


def _left(results: Path, scale: str, queue: Sequence[NamedJob]) -> Iterator[Problem]:
    noted = _noted(results, scale)
    states = {each.id: each.state for each in queue if each.scale == scale}
    if noted and noted.job_id not in states:
        states |= ask([noted.job_id])
    found = {job_id: state.state for job_id, state in states.items() if state.phase != "ended"}
    if noted and states[noted.job_id].state == GONE:
        log = Path(noted.log)
        if shows_life(lambda: signs_of_life(results, scale, log)):
            found[noted.job_id] = f"unknown to squeue and sacct, but its files change: {log}"
    for job_id, state in found.items():
        yield Problem(
            str(job_end_file(results, scale)),
            "a job of an earlier start is not over, and a second one would write to the same files",
            found=f"job {job_id} of {scale}: {state}",
            next=f"wait for it, or end it with `scancel {job_id}`; then start snakemake again",
        )
    if not found and (problem := problem_of_holder(results, scale, notify)):
        yield problem


def _noted(results: Path, scale: str) -> JobEnd | None:
    """Return the job whose end nobody has seen; None also if the file is torn, for the queue knows the job's name."""
    try:
        end = read_job_end(results, scale)
    except (OSError, ValueError):
        return None
    return end if end and end.state == SUBMITTED else None
