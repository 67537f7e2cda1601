#!/bin/bash
# The run default/weak/1x2/r1, with nothing of Snakemake or ddp-ladder: sbatch job.sh
# Without Slurm: bash job.sh here. To change it, edit a copy: a repeated run writes it again.
# chdir: paths are relative to it. no-requeue: a second start would overwrite the first's results.
#SBATCH --job-name=default-weak-1x2-r1
#SBATCH --chdir=/home/me/ladder
#SBATCH --output=results/runs/default/weak/1x2/r1/job-%j.log
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=16
#SBATCH --time=20
#SBATCH --account=p1
#SBATCH --partition=gpu
#SBATCH --no-requeue

# Do not train on a login node by accident: without Slurm only with the argument `here`.
if [ -z "$SLURM_JOB_ID" ] && [ "$1" != here ]; then
    echo "this script is for Slurm: sbatch job.sh (without Slurm: bash job.sh here)" >&2; exit 1
fi
cd /home/me/ladder || exit
job_id=${SLURM_JOB_ID:-$$}

# The training has its own Python; these variables of the submitting shell are for another one.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV VIRTUAL_ENV_PROMPT
# The first command that fails ends the job; many site modules fail under set -u and pipefail.
set -e
# Environment: ours, network.env, workload.env, the variant's env. OMP_NUM_THREADS replaces these:
unset GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS VECLIB_MAXIMUM_THREADS \
    NUMEXPR_NUM_THREADS
export OMP_NUM_THREADS=8 PYTHONUNBUFFERED=1
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}" # more, if the submitting shell asks for it

# The rendezvous is on this node, at a port for each job, below the range of outgoing connections.
own_interface=lo own_address=127.0.0.1; if [ "$(uname)" = Darwin ]; then own_interface=lo0; fi
export GLOO_SOCKET_IFNAME="$own_interface" NCCL_SOCKET_IFNAME="$own_interface"
export MASTER_ADDR="$own_address" MASTER_PORT="$((20000 + job_id % 10000))"

# torchrun starts a process per GPU and sets the ranks, in the order of the job's nodes.
exec /opt/torch/bin/python -m torch.distributed.run \
    --nnodes=1 --node-rank=0 --nproc-per-node=2 --max-restarts=0 --rdzv-backend=static \
    "--rdzv-id=${job_id}.default.weak.1x2.r1" --rdzv-conf=timeout=300 \
    "--master-addr=${MASTER_ADDR}" "--master-port=${MASTER_PORT}" \
    -- workflow/workloads/mnist.py --batch-size 64
