"""What the job of a run asked for on each node: part of a job and not of its runs, so a change of it repeats none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from ddp_ladder.common.model import Model

if TYPE_CHECKING:
    from ddp_ladder.plan.plan import ScaleJob

Positive = Annotated[int, Field(ge=1)]


class Asked(Model):
    """A scale's share of a node: of ``node`` of cluster.yaml."""

    slurm: bool = Field(description="True: Slurm gives no more than this. False: the run may use all of the machine.")
    cpus: Positive
    node_gpus: Positive | None = Field(description="GPUs of a whole node, of which the job has a share.")

    @classmethod
    def of(cls, job: ScaleJob, *, slurm: bool) -> Self:
        return cls(slurm=slurm, cpus=job.cpus, node_gpus=job.node_gpus)
