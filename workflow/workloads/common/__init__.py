"""The parts that the four workloads share. Plain PyTorch: nothing of ddp-ladder is imported here.

distributed  the process group, under any launcher
datasets     the image sets, read from their own file formats
loaders      resident images, the samplers, the DataLoaders
augment      normalising, random crops and flips of whole batches, on the device
parallel     DistributedDataParallel and its options; state dicts with and without ``module.``
precision    fp32, tf32, bf16, fp16
schedule     learning rate: scaled with the batch, warm-up, decay
training     the state in a checkpoint, saved atomically, resumed exactly
interrupt    SIGTERM and SIGUSR1: all ranks stop after the same step
loop         one epoch of training, one evaluation
console      output of rank 0
options      the command-line options that the workloads share
files        atomic writes
fetch        downloads for the prepare scripts

Python 3.9 and torch 2.4, or newer.
"""
