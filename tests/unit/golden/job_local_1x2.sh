#!/bin/bash
# The run default/weak/1x2/r1 on this machine, with nothing of Snakemake or ddp-ladder:
#     bash job.sh
# ddp-ladder writes this file again when it repeats the run: to change something, edit a copy.

# The paths below are relative to it.
cd /home/me/ladder || exit

# The training has a Python of its own: what the submitting shell set for another one would mislead it.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV VIRTUAL_ENV_PROMPT

# The first command that fails ends the job. Neither -u nor pipefail: few modules and set-ups bear them.
set -e

# What every process is told: ours first, then network.env, workload.env and the variant's env.
# OMP_NUM_THREADS is to hold for all that use threads.
unset GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2
export CUDA_VISIBLE_DEVICES=''

# Tells this start from others on the machine.
job_id=$$

# The processes meet on this node.
# The loopback: there is no other node.
own_interface=lo own_address=127.0.0.1
export GLOO_SOCKET_IFNAME="$own_interface" NCCL_SOCKET_IFNAME="$own_interface"

# Where the processes meet. Another job on the same node has another port, all of them below the range that
# outgoing connections take theirs from.
export MASTER_ADDR="$own_address"
export MASTER_PORT="$((20000 + job_id % 10000))"

# On macOS the loopback has another name.
if [ "$(uname)" = Darwin ]; then own_interface=lo0; fi
export GLOO_SOCKET_IFNAME="$own_interface" NCCL_SOCKET_IFNAME="$own_interface"

# torchrun starts a process per GPU and tells each its rank, in the order of the job's nodes.
exec /opt/torch/bin/python -m torch.distributed.run \
    --nnodes=1 \
    --node-rank=0 \
    --nproc-per-node=2 \
    --max-restarts=0 \
    --rdzv-backend=static \
    "--rdzv-id=${job_id}.default.weak.1x2.r1" \
    --rdzv-conf=timeout=300 \
    "--master-addr=${MASTER_ADDR}" \
    "--master-port=${MASTER_PORT}" \
    workflow/workloads/mnist.py --batch-size 64
