"""What the four workloads share, each part once. Plain PyTorch: nothing of ddp-ladder is imported here.

distributed  the process group, whoever launched the process
datasets     the image sets, read from their own file formats
loaders      resident images, the samplers, the DataLoaders
augment      normalising, random crops and flips of whole batches, on the device
parallel     DistributedDataParallel and its options; state dicts with and without ``module.``
precision    fp32, tf32, bf16, fp16
schedule     learning rate: scaled with the batch, warm-up, decay
training     everything that a checkpoint holds, saved atomically, resumed exactly
interrupt    SIGTERM and SIGUSR1: all ranks stop after the same step
loop         one epoch of training, one evaluation
console      what rank 0 prints
options      the command-line options that the workloads share
files        files that are whole or not there
fetch        downloads for the prepare scripts

Python 3.9 and torch 2.4, or newer.
"""
