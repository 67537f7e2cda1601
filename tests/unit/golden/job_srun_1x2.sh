#!/bin/bash
# The run default/weak/1x2/r1 as a job of its own, with nothing of Snakemake or ddp-ladder:
#     sbatch job.sh
# or without Slurm, on this machine:
#     bash job.sh here
# ddp-ladder writes this file again when it repeats the run. To change something, edit a copy.
#
# chdir: the paths below are relative to it. no-requeue: a second start would overwrite the results of
# the first.
#SBATCH --job-name=default-weak-1x2-r1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=8
#SBATCH --mem=64000M
#SBATCH --time=20
#SBATCH --account=p1
#SBATCH --partition=gpu
#SBATCH --chdir=/home/me/ladder
#SBATCH --output=results/runs/default/weak/1x2/r1/job-%j.log
#SBATCH --no-requeue

# Do not train on a login node by accident: without Slurm only with the argument `here`.
if [ -z "$SLURM_JOB_ID" ] && [ "$1" != here ]; then
    echo "this script is for Slurm: sbatch job.sh (or on this machine: bash job.sh here)" >&2
    exit 1
fi
cd /home/me/ladder || exit
job_id=${SLURM_JOB_ID:-$$}

export job_id
set -e

# The rendezvous is on this node.
# There is no other node: the loopback, which has another name on macOS.
own_interface=lo own_address=127.0.0.1
if [ "$(uname)" = Darwin ]; then own_interface=lo0; fi
export GLOO_SOCKET_IFNAME="$own_interface" NCCL_SOCKET_IFNAME="$own_interface"

# The rendezvous endpoint. Each job on a node gets another port, below the range of outgoing connections.
export MASTER_ADDR="$own_address"
export MASTER_PORT="$((20000 + job_id % 10000))"

# From here to the closing brace: what srun starts, once per GPU.
on_each() {

# The training has its own Python; these variables of the submitting shell are for another one.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV VIRTUAL_ENV_PROMPT

# The first command that fails ends the job. set -u and pipefail stay off: many site modules fail under them.
set -e

# The environment of every process: ours first, then network.env, workload.env and the variant's env.
# OMP_NUM_THREADS replaces the thread counts of other libraries.
unset GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS
export OMP_NUM_THREADS=8
export PYTHONUNBUFFERED=1
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2
# NCCL's warnings, unless the submitting shell asks for more.
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"

# The script reads its rank where torchrun would have set it; the values come from Slurm.
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK="$SLURM_NODEID"
exec /opt/torch/bin/python \
    workflow/workloads/mnist.py --batch-size 64

}
export -f on_each

if [ -n "$SLURM_JOB_ID" ]; then
    # One process per GPU. Each sees all GPUs of its node, as NCCL wants, and takes that of its LOCAL_RANK.
    # Counts in full: srun has no --cpus-per-task from sbatch since Slurm 22.05. kill-on-bad-exit: without the
    # process that failed the others would wait. mpi=none: torch brings its own communication.
    srun \
        --nodes=1 \
        --ntasks=2 \
        --ntasks-per-node=2 \
        --cpus-per-task=8 \
        --distribution=block \
        --kill-on-bad-exit=1 \
        --mpi=none \
        bash -c on_each
else
    # Without Slurm: the variables that srun sets, for scripts that read them. No job of Slurm has this number.
    simulated=$((100000000 + job_id))
    export SLURM_JOB_ID="${simulated}"
    export SLURM_JOBID="${simulated}"
    export SLURM_STEP_ID=0
    export SLURM_STEPID=0
    export SLURM_JOB_NODELIST="${HOSTNAME}"
    export SLURM_NODELIST="${HOSTNAME}"
    export SLURM_STEP_NODELIST="${HOSTNAME}"
    export SLURM_JOB_NUM_NODES=1
    export SLURM_NNODES=1
    export SLURM_STEP_NUM_NODES=1
    export SLURM_NTASKS=2
    export SLURM_NPROCS=2
    export SLURM_STEP_NUM_TASKS=2
    export SLURM_NTASKS_PER_NODE=2
    export SLURM_GPUS_ON_NODE=2
    export SLURM_TASKS_PER_NODE=2
    export SLURM_STEP_TASKS_PER_NODE=2
    export SLURM_CPUS_PER_TASK=8
    export SLURM_CPUS_ON_NODE=16
    # One process that fails ends the script, and the script ends the others.
    processes=()
    trap 'kill "${processes[@]}" 2>/dev/null || true' EXIT
    for k in 0 1; do
        SLURM_PROCID=$k SLURM_LOCALID=$k SLURM_NODEID=0 on_each &
        processes+=("$!")
    done
    for process in "${processes[@]}"; do wait "$process"; done
fi
