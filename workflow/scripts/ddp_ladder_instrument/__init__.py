"""The measuring half of ddp-ladder that lives inside the training process.

Runs under the site's Python beside the user's script: torch and the standard library only, nothing
of ``ddp_ladder``. Modules that import torch at their top are loaded only once the script itself has
imported torch, because a script may set environment variables before it does.

    entry         command line: what to run, how the process ends
    program       run the user's script as if python had been given it
    job           what the job was told (run.json, environment)
    lifetime      die with the launcher
    output        a full disk under the log does not end the script
    hard_exit     write the record also when the script calls os._exit
    after_import  call back when torch has been imported
    measurement   everything measured in this rank, wired together
    steps         step clock: one row per training step
    loops         passes over loaders, and which of them are training
    stop          measure.max_steps and measure.max_seconds
    progress      progress.json, for the eye only
    host          names and sizes of this process and its machine
    record        the rank's CSV and end record
    metrics       steps that the program writes down itself
    compile_time  seconds of torch.compile
    provenance    digests of source and configuration files, versions of libraries
    files         atomic writes
    compiler *    keeps torch.compile out of the hooks
    hooks *       the patches on optimizers, DDP, process groups, autocast
    loader_hooks * the patches on DataLoader
    model_hooks * the patches on Module.eval and train
    loaders *     batches, padding and facts of a DataLoader
    own_ranks *   ranks that the script starts itself
    cuda *        step times from CUDA events
    ddp *         DistributedDataParallel's own timings
    backwards *   the loss now and then, the types of products
    shards *      digests of the first samples
    torch_facts * precision, compiled graphs, the optimizer's name
    world *       rank, world size, backend, device
    parameters *  checksums of the parameters, and whether they are finite

Those with a star import torch.
"""
