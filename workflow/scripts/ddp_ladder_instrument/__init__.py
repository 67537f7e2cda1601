"""The measuring half of ddp-ladder that lives inside the training process.

Runs under the site's Python beside the user's script: torch and the standard library only, nothing of ``ddp_ladder``.
Modules that import torch at their top (*) are loaded only once the script itself has imported torch, because a script
may set environment variables before it does.

    entry          command line: what to run, how the process ends
    program        run the user's script as python itself would
    python_hooks   what is patched in Python itself: imports, os._exit
    measurement    connects everything that is measured in this rank; its CSV, log and end record
    observer *     what the hooks on torch observe of the training
    hooks *        the patches on optimizers, DDP, process groups, autocast, backward passes, Module.train
    loader_hooks * the patches on DataLoader, its workers, and the loaders of accelerate, torchdata and webdataset
    collectives *  the patches on torch.distributed's collectives, and DDP's broadcast of buffers
    saves *        the patches on torch.save and torch.distributed.checkpoint
    recorder       what the hooks notify: it appends to the log, and lets the state machine see what came
    log            the events of a rank: what happened, with its time; its file
    machine        from events to rows, phases and doubts: the rules, with their version
    table          of the machine: the rows, written as CSV, and the phases
    timer          of the machine: whose time it is
    trained        of the machine: which batches a backward pass used whose gradients a step applied
    judgement      from the judged log and the facts beside it to the fields of the end record
    samplers *     facts about a DataLoader and its samplers: shards, order, padding
    batch_sizes *  the number of samples in a batch, digests of the first ones
    flops *        the FLOPs of what a witness sees
    witness *      which drawn batches change a parameter: an own run that is asked to follows each of them
    places         the lines of a script that draw batches
    testimony      what a witness has seen, as the content of its file and in words
    ddp *          DistributedDataParallel's own timings
    accelerator *  the device: its name, precision and versions, marks on a GPU; alone says torch.cuda
    torch_facts *  rank and backend; the trained parameters: names, checksum, finite or sharded; the state of a training
                   before its first step and at its end: where another start goes on
    host           names and sizes of this process and its machine; sources, configuration and libraries of the program
    slow_settings  settings that slow down every step, with what they do
    own_run        a run that the ladder did not start: its settings and directory, and the summary at its end
    stop           measure.max_steps and max_seconds, and the steps after these that are only traced
    progress       the heartbeat for the hang watch and progress.json; steps that the program reports itself
    files          the run's settings, atomic writes, what could not be measured; the reader of files that others may
                   have made or replaced, also the workflow's
    redaction      texts without passwords and tokens, also those of the workflow
    contract       names and formats that the workflow and the preflight's ranks share

What only appends (hooks, recorder) is apart from what decides (machine, trained, judgement), which needs no torch: the
workflow judges the same logs by the same code.
"""
