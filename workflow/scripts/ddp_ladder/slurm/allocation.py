"""What jobs ask Slurm for, and what an allocation is: the options of sbatch and srun, nodes and time left.

The only place that builds options: for the executor, for ``sbatch --test-only``, for job.sh and for climb.sh.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_ladder.common.files import profile
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.query import answer, job_field, no_job, run_command, seconds

STARTING_MIN = 5  # of a whole climb in one job: Snakemake's own start, gates and report

# All other SLURM_* and SRUN_* set defaults of srun. They come from the allocation (SLURM_NTASKS, SLURM_MEM_PER_NODE,
# SLURM_GPU_BIND, ...) and would add to or contradict the command line. The job step gets its own from Slurm.
KEPT = frozenset(
    (
        # The Slurm to use, and the job; the unit of --cpus-per-task: a core or a hardware thread.
        "SLURM_CONF SLURM_CONF_SERVER SLURM_JWT SLURM_JOB_ID SLURM_HINT SLURM_THREADS_PER_CORE "
        # srun ignores these; the training may read them.
        "SLURM_CLUSTER_NAME SLURM_JOB_ACCOUNT SLURM_JOB_PARTITION SLURM_JOB_QOS SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST"
    ).split()
)

# A job may have some of these from its site, or from the shell that submits it. In job.sh they would hide GPUs from
# tasks, each of which has to see all of its node, or contradict the counts of its srun.
OF_GPUS = "SLURM_GPU_BIND SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_BIND SLURM_TRES_PER_TASK".split()


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for srun."""
    defaults = ("SLURM_", "SRUN_")
    return {key: value for key, value in environment.items() if key in KEPT or not key.startswith(defaults)}


def sbatch_options(job: ScaleJob, own: Mapping[str, str], tasks_per_node: int = 1) -> list[str]:
    """Return the options of sbatch for a scale's job: its ``own`` (name, directory, log), resources, the key `slurm`.

    Each is one word, not quoted.
    """
    named: Mapping[str, object] = {
        **own,
        "nodes": job.scale.nodes,
        "ntasks-per-node": tasks_per_node,
        "gres": job.gres,
        "cpus-per-task": job.cpus_per_task(tasks_per_node),
        "mem": None if job.memory_mb is None else f"{job.memory_mb}M",
        "time": job.runtime_min,
        **{name: value for name, value in job.slurm if name not in ("extra", "replace_bad_node")},
    }
    options = [f"--{name}={value}" for name, value in named.items() if value is not None]
    return [*options, *job.slurm.extra, "--no-requeue"]  # a second start would run beside what the first one left


def widest(jobs: Sequence[ScaleJob]) -> ScaleJob:
    """Return a job that has room for each of these, and time for all, one after the other."""
    most = max(jobs, key=lambda job: job.scale.gpus_per_node)
    return replace(
        most,
        scale=Scale(max(job.scale.nodes for job in jobs), most.scale.gpus_per_node),
        slurm=max(jobs, key=lambda job: job.scale.world_size).slurm,
        runtime_min=STARTING_MIN + sum(job.runtime_min for job in jobs),
    )


def salloc_for(job: ScaleJob) -> str:
    """Return an salloc command that asks for what a job would ask for."""
    return shlex.join(["salloc", *(option for option in sbatch_options(job, {}) if option != "--no-requeue")])


def srun_options(nodes: int, tasks_per_node: int, cpus_per_task: int) -> list[str]:
    """Return the options of every srun that starts ranks.

    Counts in full: srun has no --cpus-per-task from sbatch since Slurm 22.05.
    """
    return [
        f"--nodes={nodes}",
        f"--ntasks={nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--cpus-per-task={cpus_per_task}",
        # Rank k of a node is the node's k-th task, on the k-th share of its cores. By default tasks alternate between
        # sockets.
        "--distribution=block:block",
        "--kill-on-bad-exit=1",  # without the process that failed the others would wait
        "--mpi=none",  # torch brings its own communication
    ]


def step_argv(job: ScaleJob, nodes: Sequence[str], tasks_per_node: int, name: str) -> list[str]:
    """Return srun with its options, for a job step that has exactly the scale's share of each of these nodes.

    Every count is explicit: Snakemake's job step removes Slurm's own from the environment, and in an allocation of
    another shape they would not be the scale's.
    """
    return [
        "srun",
        f"--job-name={name}",
        f"--nodelist={','.join(nodes)}",
        *srun_options(len(nodes), tasks_per_node, job.cpus_per_task(tasks_per_node)),
        # Per node, and without --gpu-bind, so that each task sees all GPUs. With --gpu-bind=none several tasks see no
        # GPU at all in Slurm 22.05.
        *([f"--gres={job.gres}"] if job.gres else []),
        f"--mem={job.memory_mb or 0}",  # 0: all memory of the job
        "--exact",
        *(option for option in job.slurm.extra if option.startswith(("--hint=", "--threads-per-core="))),
        "--export=ALL",
        "--input=none",
    ]


# --- A Slurm allocation: its nodes, its time left, and whether a plan fits into it.


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
