from __future__ import annotations

from dataclasses import replace

from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.query import sbatch_options, step_argv, step_environment

JOB = ScaleJob("stage3", Scale(2, 4), 20, (), cpus=34, slurm=Slurm(), memory_mb=64000, gres="gpu:a100:4")
NODES = ["node1", "node2"]


def test_a_step_with_one_task_per_node() -> None:
    assert " ".join(step_argv(JOB, NODES, 1, "run-1")) == (
        "srun --job-name=run-1 --nodelist=node1,node2 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=34 "
        "--distribution=block:block --kill-on-bad-exit=1 --mpi=none --gres=gpu:a100:4 --mem=64000 --exact "
        "--export=ALL --input=none"
    )


def test_a_step_with_one_task_per_gpu_shares_the_same_among_more() -> None:
    one, four = (step_argv(JOB, NODES, tasks, "run-1") for tasks in (1, 4))
    changed = [(a, b) for a, b in zip(one, four, strict=True) if a != b]
    assert changed == [
        ("--ntasks=2", "--ntasks=8"),
        ("--ntasks-per-node=1", "--ntasks-per-node=4"),
        ("--cpus-per-task=34", "--cpus-per-task=8"),
    ]


def test_without_gres_and_memory_a_step_has_what_the_job_has() -> None:
    step = step_argv(replace(JOB, gres=None, memory_mb=None), NODES[:1], 1, "run-1")
    assert "--mem=0" in step
    assert not [option for option in step if option.startswith(("--gres", "--gpu"))]


def test_of_the_further_options_only_those_that_say_what_a_cpu_is_apply_to_steps() -> None:
    slurm = Slurm(account="p1", extra=("--exclusive", "--hint=nomultithread", "--signal=TERM@120"))
    step = step_argv(replace(JOB, slurm=slurm), NODES, 1, "run-1")
    assert [word for word in step if word not in step_argv(JOB, NODES, 1, "run-1")] == ["--hint=nomultithread"]


def test_no_default_of_the_allocation_reaches_srun() -> None:
    defaults = (
        "SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_CPUS_PER_TASK SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_GPUS "
        "SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_GPU_BIND SLURM_CPU_BIND SLURM_DISTRIBUTION SLURM_EXACT "
        "SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_WAIT SLURM_STEP_ID SLURM_PROCID SRUN_CPUS_PER_TASK"
    ).split()
    names = "PATH SLURM_JOB_ID SLURM_CONF SLURM_HINT SLURM_SUBMIT_DIR SLURMD_NODENAME CUDA_VISIBLE_DEVICES"
    kept = dict.fromkeys(names.split(), "1")
    assert step_environment({**kept, **dict.fromkeys(defaults, "7")}) == kept


def test_a_job_asks_for_the_scales_share_and_for_what_the_site_sets() -> None:
    slurm = Slurm(account="p1", partition="gpu", qos="devel", nodelist="n[1-2]", extra=("--exclusive",))
    name, *options = sbatch_options(replace(JOB, slurm=slurm), {"job-name": "a b"})
    assert name == "--job-name=a b"
    assert " ".join(options) == (
        "--nodes=2 --ntasks-per-node=1 --gres=gpu:a100:4 --cpus-per-task=34 --mem=64000M --time=20 --account=p1 "
        "--partition=gpu --qos=devel --nodelist=n[1-2] --exclusive --no-requeue"
    )
    bare = sbatch_options(replace(JOB, scale=Scale(1, 1), memory_mb=None, gres=None), {}, tasks_per_node=2)
    assert bare == ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=17", "--time=20", "--no-requeue"]
