"""A Slurm allocation: its nodes, its time left, and whether a plan fits into it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.files import profile
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.slurm.query import answer, job_field, no_job, run_command, seconds
from ddp_ladder.slurm.steps import salloc_for, widest

_GPUS = re.compile(r"\bgpu(?::[^:,()]+)*:(\d+)")
_SHARE = re.compile(r"Nodes=(?P<nodes>\S+) CPU_IDs=(?P<cpus>\S*) Mem=(?P<memory_mb>\d+) GRES=(?P<gres>\S*)")


@dataclass(frozen=True)
class AllocatedResources:
    """The resources of an allocation. Amounts per node are those of the smallest node."""

    job_id: str
    nodes: int
    gpus: int  # per node
    cpus: int  # per node, as Slurm counts them
    memory_mb: int  # per node

    def __str__(self) -> str:
        return (
            f"job {self.job_id} offers {count(self.nodes, 'node')}, and on each {count(self.gpus, 'GPU')}, "
            f"{count(self.cpus, 'CPU')} and {self.memory_mb} MB"
        )


def own_allocation(environment: Mapping[str, str], salloc: str) -> AllocatedResources:
    """Return the resources of the job that this process belongs to. Raises UserError if there is none.

    salloc: asks for one that has room for all scales.
    """
    if job_id := environment.get("SLURM_JOB_ID"):
        question = ["scontrol", "show", "job", "--details", job_id]
        return parse_allocation(job_id, answer(job_id, lambda within_s: run_command(question, within_s)))
    where, what = f"--profile {profile('allocation')}", "this is not inside a Slurm allocation"
    advice = f"start it inside `{salloc}`, or let the scales queue as jobs: --profile {profile('slurm')}"
    raise UserError(Problem(where, what, "SLURM_JOB_ID is not set", next=advice))


def parse_allocation(job_id: str, shown: str) -> AllocatedResources:
    """Parse the output of ``scontrol show job --details``. Raises UserError if it shows no nodes."""
    nodes = re.search(r"\bNumNodes=(\d+)", shown)
    shares = list(_SHARE.finditer(shown))
    if not nodes or not shares:
        raise UserError(no_job(job_id, "it has no nodes"))
    return AllocatedResources(
        job_id,
        int(nodes[1]),
        gpus=min(sum(map(int, _GPUS.findall(share["gres"]))) for share in shares),
        cpus=min(_ids(share["cpus"]) for share in shares),
        memory_mb=min(int(share["memory_mb"]) for share in shares),
    )


def _ids(ranges: str) -> int:
    """Count CPUs: ``0-3,8`` is 5."""
    pairs = (part.partition("-") for part in ranges.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in pairs)


def time_left_s(job_id: str, until_s: float) -> float | None:
    """Return the seconds until Slurm ends the job; None if it has no limit.

    until_s: as in query.answer. Raises UserError if there is no such job, or no answer.
    """
    return seconds(job_field(job_id, "L", until_s))


def check_allocation(jobs: Sequence[ScaleJob], environment: Mapping[str, str], cluster_file: str) -> None:
    """Raise UserError if there is no allocation, or if the scale of one of these jobs does not fit into it.

    cluster_file: the file with the key `node`, for messages.
    """
    salloc = salloc_for(widest(jobs))
    offer = own_allocation(environment, salloc)
    asked = [f"{job.scale} asks for {' and '.join(lacks)}" for job in jobs if (lacks := misfits(job, offer))]
    if asked:
        where, what = f"the allocation of job {offer.job_id}", f"not every scale fits into it: {'; '.join(asked)}"
        advice = f"start inside `{salloc}`, or ask for less: `stages` in the experiment, `node` in {cluster_file}"
        raise UserError(Problem(where, what, str(offer), next=advice))


def misfits(job: ScaleJob, offer: AllocatedResources) -> list[str]:
    """Return what a scale asks for and the allocation does not have: ``["3 nodes", "4 GPUs per node"]``."""
    nodes, gpus, memory_mb = job.scale.nodes, job.scale.gpus_per_node if job.gres else 0, job.memory_mb or 0
    wants = (
        (nodes, offer.nodes, count(nodes, "node")),
        (gpus, offer.gpus, f"{count(gpus, 'GPU')} per node"),
        (job.cpus, offer.cpus, f"{count(job.cpus, 'CPU')} per node"),
        (memory_mb, offer.memory_mb, f"{memory_mb} MB per node"),
    )
    return [words for wanted, offered, words in wants if wanted > offered]
