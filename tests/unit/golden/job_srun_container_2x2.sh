#!/bin/bash
# The run default/weak/2x2/r1, with nothing of Snakemake or ddp-ladder: sbatch job.sh
# To change it, edit a copy: a repeated run writes it again.
# chdir: paths are relative to it. no-requeue: a second start would overwrite the first's results.
#SBATCH --job-name=default-weak-2x2-r1
#SBATCH --chdir=/home/me/ladder
#SBATCH --output=results/runs/default/weak/2x2/r1/job-%j.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=8
#SBATCH --mem=64000M
#SBATCH --time=20
#SBATCH --account=p1
#SBATCH --partition=gpu
#SBATCH --no-requeue

# The measured run stopped after 200 steps or 90 seconds. This one trains to the end,
# and --time above is that of the measured runs: give it the time of a whole training.

job_id=${SLURM_JOB_ID:?this run has 2 nodes, which Slurm gives it: sbatch job.sh}
export job_id
set -e

fail() { echo "$(hostname): $*" >&2; exit 1; }

# The interface of the node that runs this, and its address there.
find_interface() {
    own_interface=hsn0
    read -r _ _ _ own_address _ < <(ip -o -4 address show dev "$own_interface") ||
        fail "no IPv4 address on the interface $own_interface"
    own_address=${own_address%/*}
}

# This is the job's first node. Its name may stand for another network: the others get the address
# that it has on the training's own interface.
find_interface
case $own_address in 127.*) fail "$own_interface is the loopback: no other node reaches it" ;; esac

# The rendezvous endpoint: a port for each job on a node, below the range of outgoing connections.
export MASTER_ADDR="$own_address" MASTER_PORT="$((20000 + job_id % 10000))"

# From here to the closing brace: what srun starts, once per GPU.
on_each() {
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

# The interface of this node that reaches the others.
find_interface
export GLOO_SOCKET_IFNAME="$own_interface" NCCL_SOCKET_IFNAME="$own_interface"

# The script reads its rank where torchrun would have set it; the values come from Slurm.
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"
export WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK="$SLURM_NODEID"
exec apptainer exec --nv --bind /home/me/ladder --bind /data:/d:ro --cleanenv /images/torch.sif \
    python3 \
    workflow/workloads/mnist.py --batch-size 64
}
export -f on_each find_interface fail

# One process per GPU. Each sees all GPUs of its node, as NCCL wants, and takes its LOCAL_RANK's.
# Counts in full: srun takes no --cpus-per-task from sbatch since Slurm 22.05. kill-on-bad-exit:
# others would wait for a process that failed. mpi=none: torch brings its own communication.
# block:block: neighbouring ranks on neighbouring cores. unset: defaults that would hide GPUs.
unset SLURM_GPU_BIND SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_BIND SLURM_TRES_PER_TASK
srun \
    --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=8 \
    --distribution=block:block --kill-on-bad-exit=1 --mpi=none \
    bash -c on_each
