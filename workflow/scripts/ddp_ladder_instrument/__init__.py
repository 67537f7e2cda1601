"""The measuring half of ddp-ladder that lives inside the training process.

Runs under the site's Python beside the user's script: torch and the standard library only, nothing
of ``ddp_ladder``. Modules that import torch at their top are loaded only once the script itself has
imported torch, because a script may set environment variables before it does.

    entry         command line: what to run, how the process ends
    program       run the user's script as if python had been given it
    job           what the job was told (run.json, environment)
    lifetime      die with the launcher
    after_import  call back when torch has been imported
    measurement   everything measured in this rank, wired together
    steps         step clock, samples and waits, one row per optimizer step
    stop          measure.max_steps and measure.max_seconds
    progress      progress.json, for the eye only
    host          names and sizes of this process and its machine
    record        the rank's CSV and end record
    files         atomic writes
    hooks *       the patches on torch
    loaders *     batches, padding and facts of a DataLoader
    cuda *        step times from CUDA events
    ddp *         DistributedDataParallel's own timings
    world *       rank, world size, backend, device
    parameters *  checksum of the parameters

Those with a star import torch.
"""
