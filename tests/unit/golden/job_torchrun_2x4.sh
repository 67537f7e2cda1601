#!/bin/bash
# The run default/weak/2x4/r1, with nothing of Snakemake or ddp-ladder: sbatch job.sh
# To change it, edit a copy: a repeated run writes it again.
# chdir: paths are relative to it. no-requeue: a second start would overwrite the first's results.
#SBATCH --job-name=default-weak-2x4-r1
#SBATCH --chdir=/home/me/ladder
#SBATCH --output=results/runs/default/weak/2x4/r1/job-%j.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=64000M
#SBATCH --time=20
#SBATCH --account=p1
#SBATCH --partition=gpu,big
#SBATCH --qos=devel
#SBATCH --constraint='a100&ib'
#SBATCH --reservation=course
#SBATCH --nodelist='n[1-2]'
#SBATCH --exclude=n3
#SBATCH --exclusive
#SBATCH --signal=TERM@60
#SBATCH --no-requeue

job_id=${SLURM_JOB_ID:?this run has 2 nodes, which Slurm gives it: sbatch job.sh}
export job_id
set -e

fail() { echo "$(hostname): $*" >&2; exit 1; }

# The interface of the node that runs this, and its address there.
find_interface() {
    own_interface=ib0
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

# From here to the closing brace: what srun starts, once per node.
on_each() {
# The training has its own Python; these variables of the submitting shell are for another one.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV VIRTUAL_ENV_PROMPT
# A job's shell is no login shell and may not know `module` yet.
for ddp_ladder_file in "${LMOD_PKG:+$LMOD_PKG/init/bash}" "${MODULESHOME:+$MODULESHOME/init/bash}" \
  /etc/profile.d/{lmod,modules,z00_lmod}.sh /usr/share/{lmod/lmod,modules}/init/bash; do
  if ! declare -F module >/dev/null && [[ -r $ddp_ladder_file ]]; then . "$ddp_ladder_file"; fi
done
# Reload them: the submitting shell may have loaded them, and some of what they set may be gone.
module unload NCCL CUDA/12 >/dev/null 2>&1
module load CUDA/12 || exit 1
module load NCCL || exit 1
# The first command that fails ends the job; many site modules fail under set -u and pipefail.
set -e

# software.setup of cluster.yaml:
ulimit -l

# End of software.setup.
# Environment: ours, network.env, workload.env, the variant's env. OMP_NUM_THREADS replaces these:
unset GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS VECLIB_MAXIMUM_THREADS \
    NUMEXPR_NUM_THREADS
export OMP_NUM_THREADS=8 PYTHONUNBUFFERED=1
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 NCCL_NET=IB
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}" # more, if the submitting shell asks for it

# The interface of this node that reaches the others.
find_interface
export GLOO_SOCKET_IFNAME="$own_interface" NCCL_SOCKET_IFNAME="$own_interface"

# torchrun starts a process per GPU and sets the ranks, in the order of the job's nodes.
exec /opt/torch/bin/python -m torch.distributed.run \
    --nnodes=2 "--node-rank=${SLURM_NODEID}" --nproc-per-node=4 --max-restarts=0 \
    --rdzv-backend=static "--rdzv-id=${job_id}.default.weak.2x4.r1" --rdzv-conf=timeout=300 \
    "--master-addr=${MASTER_ADDR}" "--master-port=${MASTER_PORT}" \
    -- workflow/workloads/mnist.py --batch-size 64
}
export -f on_each find_interface fail

# One torchrun on each node, which starts a process per GPU.
# Counts in full: srun takes no --cpus-per-task from sbatch since Slurm 22.05. kill-on-bad-exit:
# others would wait for a process that failed. mpi=none: torch brings its own communication.
# block:block: neighbouring ranks on neighbouring cores. unset: defaults that would hide GPUs.
unset SLURM_GPU_BIND SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_BIND SLURM_TRES_PER_TASK
srun \
    --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 \
    --distribution=block:block --kill-on-bad-exit=1 --mpi=none \
    bash -c on_each
