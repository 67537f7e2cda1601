"""The measuring half of ddp-ladder that lives inside the training process.

Runs under the site's Python beside the user's script: torch and the standard library only, nothing
of ``ddp_ladder``. Modules that import torch at their top are loaded only once the script itself has
imported torch, because a script may set environment variables before it does.

    entry         command line: what to run, how the process ends
    program       run the user's script as python itself would
    run_settings  the run's settings (run.json, environment)
    lifetime      end when the launcher ends
    hard_exit     write the record also when the script calls os._exit
    unfit         what is refused: ranks of the script's own beside the launcher's, and os.exec
    cycles        itertools.cycle over batches
    after_import  call back when torch has been imported
    measurement   connects everything that is measured in this rank
    program_end   how the program ended
    redaction     texts without passwords and tokens
    not_measured  what could not be measured, and why
    step_clock    one row per training step
    step_table    the rows, written as CSV
    phases        validations and epochs, so that what a node's monitor samples can be told apart
    step_batches  which batches a step trains on
    pass_timer    the time of each pass over a loader
    optimizer_steps  which optimizer's step ends a row
    loader_threads  batches that other threads draw
    loops         passes over loaders, and which of them are training
    gradients     backward passes, and gradients that the script has dropped
    stop          measure.max_steps and measure.max_seconds
    after_limit   the steps after these that are only traced: measure.profile_steps
    heartbeat     how far the rank is, and its stacks, for the hang watch
    signs         what the heartbeat shows
    progress      progress.json, for display only
    host          names and sizes of this process and its machine
    record        the rank's CSV and end record
    metrics       steps that the program reports itself
    compile_time  seconds of torch.compile
    provenance    digests of source and configuration files, versions of libraries
    files         atomic writes
    compiler *    keeps torch.compile out of the hooks
    torch_observer * what the hooks observe of the training
    hooks *       the patches on optimizers, DDP, process groups, autocast
    loader_hooks * the patches on DataLoader
    model_hooks * the patches on Module.eval and train
    handovers *   batches that one thread draws and another trains on
    samplers *    from a DataLoader to its samplers
    worker_times * how long a DataLoader's workers take for a batch
    loaders *     facts about a DataLoader, taken when its iterator is made
    batch_sizes * the number of samples in a batch
    last_step *   whether the loops of the training were over when the script failed
    own_ranks *   ranks that the script starts itself
    cuda *        step times from CUDA events
    ddp *         DistributedDataParallel's own timings
    backwards *   samples of the loss, the dtypes of matrix products
    shards *      digests of the first samples
    torch_facts * precision, compiled graphs, the optimizer's name
    flight_record * torch's flight recorder, when nothing moves
    step_profile * torch.profiler for the traced steps
    world *       rank, world size, backend, device
    parameters *  checksums of the parameters, and whether they are finite

Modules with a star import torch.
"""
