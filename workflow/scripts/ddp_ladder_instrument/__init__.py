"""The measuring half of ddp-ladder that lives inside the training process.

Runs under the site's Python beside the user's script: torch and the standard library only, nothing of ``ddp_ladder``.
Modules that import torch at their top (*) are loaded only once the script itself has imported torch, because a script
may set environment variables before it does.

    entry          command line: what to run, how the process ends
    program        run the user's script as python itself would
    settings       the run's settings (run.json, environment)
    python_hooks   what is patched in Python itself: imports, os._exit, os.exec, itertools.cycle, own processes
    measurement    connects everything that is measured in this rank; its CSV and end record
    observer *     what the hooks on torch observe of the training
    hooks *        the patches on optimizers, DDP, process groups, autocast, backward passes, Module.train
    loader_hooks * the patches on DataLoader, its workers, and the loaders of accelerate, torchdata and webdataset
    clock          one row per training step: when a step ends, and whose time it is
    batches        which batches a step trains on
    table          the rows, written as CSV
    samplers *     facts about a DataLoader and its samplers: shards, order, padding
    batch_sizes *  the number of samples in a batch, digests of the first ones
    ddp *          DistributedDataParallel's own timings
    parameters *   the trained parameters: names, checksum, whether they are finite or sharded
    torch_facts *  rank, device, precision, CUDA events
    host           names and sizes of this process and its machine; sources, configuration and libraries of the program
    stop           measure.max_steps and max_seconds, and the steps after these that are only traced
    progress       the heartbeat for the hang watch and progress.json; steps that the program reports itself
    files          atomic writes, what could not be measured, texts without passwords and tokens
"""
