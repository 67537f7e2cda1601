"""Models of the raw files of a run: of its job (run.json, ended.json), its agents and its ranks.

Times are unix times or durations in seconds, sizes are bytes. A field with a default may be missing in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from ddp_ladder_instrument.contract import FOLLOWED
from pydantic import ConfigDict, Field, model_validator

from ddp_ladder.common.files import Agent, RunDirectory, agents_of, read_as, read_json, readable
from ddp_ladder.common.formats import percent
from ddp_ladder.common.model import Count, Duration, Model, Name, Positive, Several, Version2
from ddp_ladder.nodes.sampler import MonitorEnd
from ddp_ladder.plan.plan import Job as Job  # read from here by the users of the models below
from ddp_ladder.plan.plan import RawFile as RawFile
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.launchers import Rendezvous
from ddp_ladder.settings.keys import Hang, Monitor
from ddp_ladder.settings.terms import DEFAULT_LOG_MB

OWN_LINE = "ddp-ladder: "  # begins an agent's line in the log of its ranks, who have not printed it
SHORT = 8  # hexadecimal digits of a tensor's digest
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Source = Literal["counted", "samples_per_step", "metrics", "log", "guessed"]
"""Source of the throughput: samples counted at the loader; steps timed, with their samples set in the configuration;
steps and samples reported by the program itself; read from its log; counted at the loader, from batches whose size is
not clear."""
EndedBy = Literal["script", "max_steps", "max_seconds", "exception"]
Outcome = Literal[
    "finished", "time limit", "hang", "silent agent", "srun ended", "agent ended", "interrupted", "not written"
]


class Repository(Model):
    """Git state of the repository that tracks the script."""

    commit: str
    dirty: bool | None  # True if tracked files differed; None if it has another commit now


class PreflightLimits(Model):
    """What the nodes and the ranks of a preflight keep to."""

    timeout_s: float = Field(gt=0)  # of each part
    largest_bytes: Positive  # largest all-reduce


WitnessStatus = Literal["witnessed", "differs", "doubtful", "not followed"]
"""The rules count its run as the witness saw it; they count otherwise; it is not certain what it saw; or it did not see
all."""


class WitnessedPlace(Model):
    """What became of the batches that a place in the script has drawn, in a witness run. lines: as of DrawingPlace."""

    lines: Several[str]
    passes: Count
    passes_that_train: Count
    batches: Count
    trained: Count  # of these batches
    samples: Count
    samples_trained: Count  # that the training was shown
    sizes: Mapping[str, Count]  # batches of each size
    batches_of_a_step: Mapping[str, Count]  # steps of each number of its batches
    targets: Count  # batches that only a loss saw
    shares: Several[float] = ()  # of each pass, samples_trained / samples; without a last one that was cut short
    counted: Count  # samples that the rules count as trained on


class Flops(Model):
    """FLOPs of the training, per sample: of matrix products and convolutions, the mean of a witness run of rank 0."""

    why: str | None = None  # why they are not counted
    forward: float | None = Field(None, ge=0)
    backward: float | None = Field(None, ge=0)
    recomputed: float | None = Field(None, ge=0)  # of activations, in the backward pass; not in backward
    precisions: Mapping[str, float] = {}  # share of forward and backward: fp32, tf32, bf16, ...
    steps: Count = 0  # of the training
    spread: float = Field(0.0, ge=0)  # (most - least of its batches) / their mean

    @property
    def of_model(self) -> float | None:
        """Return the FLOPs of forward and backward pass per sample."""
        return None if self.forward is None or self.backward is None else self.forward + self.backward


class Tokens(Model):
    """The tokens of the batches that a witness run has seen trained."""

    all: Annotated[int, Field(ge=1)]  # of input_ids, padding included
    attended: Count | None  # that attention_mask shows; None: the batches have none
    labelled: Count | None  # with a label that is not ignored; None: no labels of the same shape

    @property
    def in_words(self) -> str:
        """Return which of them are real; empty if nothing tells it."""
        parts = (("no padding (attention_mask)", self.attended), ("in the loss (labels)", self.labelled))
        return ", ".join(f"{percent(part / self.all)} of them {what}" for what, part in parts if part is not None)


class Witnessed(Model):
    """What the witness of a run says of its count."""

    status: WitnessStatus | Literal["off", "not made"]
    why: str = ""
    places: Several[WitnessedPlace] = ()
    flops: Flops | None = None  # None if nothing was followed
    tokens: Tokens | None = None  # None if its batches have no input_ids

    @property
    def is_seen(self) -> bool:
        """Return True if its batches were followed."""
        return self.status in FOLLOWED

    @property
    def is_counted(self) -> bool:
        """Return True if the samples that are told are those that it saw."""
        return self.status in ("witnessed", "differs")

    @property
    def in_words(self) -> str:
        """Return what it says of the samples that are told, as a sentence."""
        if self.is_counted:
            return (
                "The number of samples is witnessed: in a short run of the same script each batch was followed through "
                "every operator to the model's parameters, and the batches that changed them are counted."
            )
        return f"The number of samples is not witnessed, but counted by the form of the loop: {self.why}."


class RunFile(RawFile):
    """Input of a run (run.json), written by its job before it starts. Its version rises with that of any other file."""

    schema_version: Version2
    spec: RunSpec
    rendezvous: Rendezvous
    start_directory: str  # absolute path where Snakemake was started; the spec's paths start there
    run_directory: str  # absolute path of the run's own directory when it ran
    nodes: Several[Name] = Field(min_length=1)  # names by rank; equal ones are simulated: agents on one machine
    agents_per_node: Positive  # agents that start the run's processes on each node
    repository: Repository | None = None
    max_log_mb_per_node: Positive = DEFAULT_LOG_MB  # limit of the logs of each node's processes
    memory_mb: Positive | None = None  # of 1024^2 bytes, of the job on each node; None: not limited
    hang: Hang | None = None  # None: the agents do not look for hangs
    monitor: Monitor | None = None  # None: the nodes are not sampled
    goes_on: bool = False  # True if an earlier attempt saved its state (exit code 75): this one may make fewer steps
    totals_every_s: float | None = None  # the agents write the sums of their ranks so often; None: not at all
    link: Positive | None = None  # the number of its link; None: it is of no chain
    is_witness: bool = False  # its ranks follow their batches, and nothing is timed
    warn_at_s: float | None = None  # unix time at which the agents send SIGUSR1 to the ranks; None: they do not
    preflight: PreflightLimits | None = None  # None: the ranks run the script, not the probe
    witness: Witnessed | None = None  # of its script, arguments and environment; None: it can have none

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields by which a file of the job, or of an agent, is one of this run."""
        return {"schema_version": 1, "spec_hash": self.spec_hash, "job": self.job}

    @property
    def agents(self) -> int:
        """Return the number of agents on all nodes."""
        return len(self.nodes) * self.agents_per_node

    @property
    def all_agents(self) -> tuple[Agent, ...]:
        return agents_of(len(self.nodes), self.agents_per_node)

    def first_agent(self, node_rank: int) -> Agent:
        """Return the agent of a node that samples it."""
        return Agent(node_rank, None if self.agents_per_node == 1 else 0)

    def ranks_of(self, agent: Agent) -> tuple[int, ...]:
        """Return the ranks that an agent starts."""
        if self.spec.world_size == 1:
            return (0,)
        first = agent.node_rank * self.spec.gpus_per_node
        if agent.local_rank is not None:
            return (first + agent.local_rank,)
        return tuple(range(first, first + self.spec.gpus_per_node))


def read_run_file(directory: RunDirectory) -> RunFile:
    """Read run.json. Raises OSError or ValueError if it does not describe a run."""
    data = read_json(directory.run)
    try:
        run = RunFile.from_json(data)
    except ValueError as error:
        raise ValueError(f"{directory.run} does not describe a run: {error}") from None
    if run.spec_hash != run.spec.hash:
        raise ValueError(f"{directory.run}: spec_hash is not that of its spec")
    return run


class SilentAgent(Model):
    """An agent that had not ended and gave no sign of life for long."""

    node_rank: Count
    local_rank: Count | None
    silent_s: Duration
    has_begun: bool  # False: it never gave a sign

    @property
    def agent(self) -> Agent:
        return Agent(self.node_rank, self.local_rank)


class RunEnd(RawFile):
    """End record of one run (ended.json), written by its job."""

    host: Name  # the host whose clock it is, on which srun ran
    started_at_s: float
    ended_at_s: float
    outcome: Outcome
    found_at_s: float | None = None  # when the job ended a run of silent agents, missed a process, or got a signal
    silent: Several[SilentAgent] = ()  # of the outcome 'silent agent'
    srun_signal: str | None = None  # what ended srun, for the outcome 'srun ended'
    agent_signal: str | None = None  # what ended an agent without Slurm, for the outcome 'agent ended'
    job_signal: str | None = None  # what ended the job, for the outcome 'interrupted'
    asked_min: Positive | None = None  # the job's runtime, for the outcome 'time limit'
    slurm_s: Duration | None = None  # the same: from its begin to the end that Slurm had set; None: it had set none

    @property
    def wall_s(self) -> float:
        return self.ended_at_s - self.started_at_s

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.wall_s < 0:
            raise ValueError("it ends before it starts")
        return self


class FailedRank(Model):
    """A rank that failed by itself, not because of a signal from its agent or launcher."""

    rank: Count
    local_rank: Count
    pid: Positive
    exit_code: int
    ended_at_s: float  # in whole seconds, rounded down, if torchrun started the ranks
    signal: str | None


class Gpu(Model):
    """A GPU as the driver's program shows it."""

    name: str
    driver: str
    power_limit_w: float | None


class AgentLog(Model):
    """What an agent's processes printed, and how much of it is not in its log."""

    bytes: Count
    left_out_bytes: Count  # of the middle, because of logs.max_mb_per_node
    lost_bytes: Count  # could not be written
    error: str | None  # why the log is incomplete, other than by its limit


class SignalSent(Model):
    """A signal that someone sent to an agent."""

    signal: str
    at_s: float


class AgentEnd(RawFile):
    """End record of one agent (nodes/node<k>.json, or nodes/node<k>.task<l>.json where each GPU has its own)."""

    node_rank: Count
    local_rank: Count | None  # None if the node has one agent
    node: Name  # Slurm's name of the node if Slurm started the agent
    host: Name
    launched_at_s: float
    ended_at_s: float
    exit_code: int
    signal: str | None
    failed_ranks: Several[FailedRank] = ()
    argv: Several[str]
    cpus: Several[int]
    gpus: Several[Gpu] = ()  # empty without the driver's program
    interface: Name | None = None  # network interface of NCCL and Gloo; None if there was none
    error: Name | None = None  # why its processes could not be started
    told: SignalSent | None = None  # the first that it was sent
    warned: Count | None = None  # ranks that were sent SIGUSR1, as they have a handler; None: its time did not come
    orphaned: bool = False  # its parent had died: under Slurm the step daemon of its node
    log: AgentLog | None = None
    monitor: MonitorEnd | None = None  # None if this agent did not sample its node
    packed: Sha256 | None = None  # digest of its archive (nodes/node<k>.zip); None: none was written, or not known

    @property
    def agent(self) -> Agent:
        return Agent(self.node_rank, self.local_rank)

    @property
    def failed(self) -> bool:
        """Return True if it ended with another exit code than 0, or by a signal."""
        return self.exit_code != 0 or bool(self.signal)


class RankDevice(Model):
    """The device that a rank trained on."""

    kind: Name
    index: Count | None
    name: str | None
    id: Name


class GpusSeen(Model):
    """The GPUs that torch saw, for a rank that should have trained on one and did not."""

    count: Count
    built_for: str | None  # version of CUDA, or of what else torch is built for
    visible: str | None  # the variables that limit the GPUs that a process sees, with their values; None: none is set
    why: str  # torch's error if it saw none


class StepsFile(Model):
    """The rank's file of its steps."""

    count: Count
    sha256: str


class Parameters(Model):
    """The trained parameters of a rank at the end."""

    count: Count
    sharded: bool = False  # this rank held only a part of them
    checksum: Name


class NotFinite(Model):
    """Tensors with values that are not finite, and the first names."""

    count: Count
    names: Several[str]


class RankParameters(Parameters):
    """Parameters with what shows where ranks differ."""

    not_finite: NotFinite = Field(default_factory=lambda: NotFinite(count=0, names=()))
    names: Several[str] = ()  # of each tensor, on rank 0 alone: all ranks have the same
    digests: Annotated[str, Field(pattern="^([0-9a-f]{8})*$")] = ""  # of each, short, in the same order

    @property
    def of_each(self) -> tuple[str, ...]:
        """Return the short digest of each tensor."""
        return tuple(self.digests[k : k + SHORT] for k in range(0, len(self.digests), SHORT))


class Ddp(Model):
    """DistributedDataParallel: its gradient buckets, and the median of single steps' exposed communication."""

    bucket_bytes: list[Count] | None = None
    comm_hook: str | None = None
    exchanges: Positive | None = None  # of the gradients, in a step: several if it accumulates without no_sync
    samples: Count = 0  # number of steps that were timed
    exposed_comm_s: Duration | None


class Loader(Model):
    """The training DataLoader. Null: unknown."""

    num_workers: Count | None = None
    sampler: str | None = None  # the innermost one and the wrappers that change its samples; of a stream the dataset
    shards: bool | None = False  # True if it divides the data between the ranks
    shuffle: bool | None = None
    set_epoch_called: bool | None = None  # None also if the sampler has none
    epochs_set: Positive | None = None  # number of distinct epochs that set_epoch was called with
    dataset_size: Count | None = None
    passes: Positive = 1
    whole_passes: Count | None = None  # those that were not abandoned before another one began
    unclear_sizes: Several[Count] = ()  # sizes that an unclear batch may have; empty if all are clear
    tokens_per_sample: Positive | None = None  # the one length of input_ids, padding included


Spans = Several[Annotated[tuple[float, float], Field(strict=False)]]


class RankSaves(Model):
    """Sums over the saves of a rank: torch.save, and save and async_save of torch.distributed.checkpoint."""

    count: Count
    seconds: Duration  # that its main thread was in them
    aside_s: Duration  # that other threads were, beside the training
    bytes: Count | None  # None: not known of one of them


class RankPhases(Model):
    """When a rank validated, in unix time, and which steps, counted from 1, begin a pass over training data."""

    epoch_steps: Several[Positive]
    validations_s: Spans  # begin and end of each: model.eval() to model.train(), or a pass without a step
    without_a_pass_s: Spans = ()  # those of validations_s in which no pass over a DataLoader began
    saves_s: Spans = ()  # begin and end of each save
    compiles_s: Spans = ()  # begin and end of each compilation by torch.compile
    rests_s: Spans = ()  # beside the training, from a step to the next draw: what was longer than usual
    saves: RankSaves | None = None  # None: not summed up, by an earlier version

    @property
    def passes_s(self) -> Spans:
        """Return the validations that pass over a DataLoader: what surely is no training."""
        unclear = {*self.without_a_pass_s}
        return tuple(span for span in self.validations_s if span not in unclear)

    @property
    def beside_s(self) -> Spans:
        """Return what is in no step and passes over no DataLoader: most likely a validation, perhaps a rollout."""
        return (*self.rests_s, *self.without_a_pass_s)


class Profiling(RawFile):
    """Profiled steps of one rank (ranks/rank<k>.profile.json), written after its end record and its trace."""

    schema_version: Version2
    rank: Count
    problem: str | None  # why there is no trace
    took_s: Duration  # what the run took longer: the profiled steps, and writing their trace


class RankSummary(Model):
    """One rank, as its record keeps it from its end record."""

    rank: Count
    local_rank: Count
    node_rank: Count | None  # the launcher's GROUP_RANK; None without one
    host: Name
    pid: Positive
    device: RankDevice
    exit_code: int
    ended_by: EndedBy
    startup_s: Mapping[
        str, Duration | None
    ]  # spawn, import_torch, process_group, first_step, total, compile, compile_later
    peak_memory_bytes: Mapping[str, Count | None]  # host, device
    memory_limit_bytes: Mapping[str, Count | None] = {}  # the same, of what it can have: its share of the job's

    @property
    def memory_bytes(self) -> tuple[int, int | None] | None:
        """Return peak and limit of the device if it has a memory of its own, else of the host; None if not known."""
        for kind in ("device", "host"):
            if (peak := self.peak_memory_bytes.get(kind)) is not None:
                return peak, self.memory_limit_bytes.get(kind)
        return None


class Communication(Model):
    """Collectives of one name: sums over a rank's steps from the second on; no exchange that DDP's reducer times."""

    name: Name  # the function of torch.distributed; or buffers, SyncBatchNorm, clip_grad_norm_
    calls: Count
    bytes: Count
    seconds: Duration | None  # that the script waited in these calls; on a GPU, its stream; None: not known


class BatchCounts(Model):
    """What the log of a rank shows of its batches, beyond their number; earlier versions have written more."""

    model_config = ConfigDict(extra="ignore")

    drawn: Count  # batches of the passes that trained
    untrained: Count  # those of them that no backward pass and step used
    unclear: Count | None = None  # backward passes and steps for which it does not show what they trained on
    again: Count = 0  # further optimizer steps on batches of an earlier one, which are parts of its step


class DrawingPlace(Model):
    """A place of the script that drew batches, on one rank; padding is counted."""

    lines: Several[str] = Field(min_length=2)  # what draws, who called it, and a digest of the lines between
    batches: Count
    samples: Count
    trained: Count  # of these samples, as the rules counted them


class RankFingerprint(Model):
    """What ran on one rank, and on which software and hardware. None: the program has none, or showed none."""

    script_sha256: str | None = None  # of the source that ran as __main__
    args: Several[str] = ()  # of the script
    batch_per_gpu: Count | None = None  # samples of a step of this rank: the median, with the sampler's padding
    backward_passes: Positive | None = None  # of a step: more than one accumulate gradients
    sources: Mapping[str, str] | None = None  # SHA-256 of the imported files beside the script, by relative path
    configuration: Mapping[str, str] | None = None  # SHA-256 of the files among the arguments
    backend_class: str | None = None  # of the process group's backend
    parameter_dtype: str | None = None  # of most elements
    autocast_dtype: str | None = None  # every one that autocast was entered with, joined by " + "
    float32_products: str | None = None  # "highest", or what torch may compute them with
    compiled_graphs: Count | None = None  # made by torch.compile
    slow_settings: Several[str] | None = None  # of the environment and of torch, that may slow down every step
    optimizer: str | None = None  # classes of all, with the implementation if one was chosen
    torch: str | None = None  # version; None: never imported
    cuda: str | None = None  # what torch is built for, also "ROCm 6.2"; None: trained on no GPU, as nccl and cudnn
    nccl: str | None = None
    cudnn: Count | None = None
    threads: Positive | None = None  # of torch, within an operator
    num_workers: Count | None = None  # of the training's DataLoader; None: it had none
    python: str | None = None
    gpu: str | None = None  # name
    cpu_model: str | None = None
    cpus: Positive | None = None  # that the process may use
    cpu_set: str | None = None  # the same, in taskset's notation
    libraries: Mapping[str, str] | None = None  # versions of those imported that change the work of a step
    unread: Several[str] = ()  # fields whose reading raised: None, and equal to nothing


class TrainingState(Model):
    """How far the training of a rank is."""

    optimizer_steps: Count | None  # the most that a parameter has had; None: the optimizer counts none, or unknown
    lr: Several[float]  # of each parameter group
    values: Several[float | None]  # of some elements of the parameters, of shards this rank's; None: not finite
    count: Count  # of all elements


class RankStart(RawFile):
    """A rank of a link before its first step (ranks/rank<k>.first.json); its end record, if it leaves one, has it."""

    rank: Count
    state: TrainingState


class RankEnd(RawFile, RankSummary):
    """End record of one rank (ranks/rank<k>.json), written by the instrument."""

    schema_version: Version2
    world_size: Positive
    backend: str | None
    gpus_seen: GpusSeen | None = None
    source: Literal["counted", "samples_per_step", "metrics", "guessed", "none"] = "counted"
    ended_at_s: float  # unix time at which the script had ended
    exception: str | None
    handled: str | None = None  # the exception that the script handled when it exited
    working_directory: str | None = None  # in files of earlier versions
    own_rendezvous: str | None = None  # host:port at which its script meets the others, if it is not the launcher's
    after_training: bool = False  # it failed, but only after the limit (max_steps, max_seconds)
    training_s: Duration | None = None  # from the first step's end to the script's end, on a GPU to that of its work
    phases: RankPhases | None = None
    joins_uneven: bool = False  # DDP's join() let the ranks make different numbers of steps: their inputs are uneven
    parameters: RankParameters | None
    first_state: TrainingState | None = None  # of a link, before its first step: what it has loaded, or initial values
    last_state: TrainingState | None = None  # the same at its end
    pipeline_stage: Count | None = None  # in files of earlier versions, as is the next one
    pipeline_stages: Positive | None = None
    ddp: Ddp | None
    loader: Loader | None
    flops: Flops | None = None  # in files of earlier versions, which counted them in measured runs
    worker_batch_s: Duration | None = None  # that a worker of the training loader takes for a batch, in the mean
    first_samples: Several[str] = ()  # digests of the first batches that were trained on
    fingerprint: RankFingerprint
    steps: StepsFile
    rules: Count = 0  # version of the rules that judged the log; 0: none was kept
    log: Mapping[str, Any] | None = None  # SHA-256 of the rank's log, and the facts that are needed to judge it
    batches: BatchCounts | None = None
    places: Several[DrawingPlace] = ()  # that drew batches; empty in files of earlier versions
    communication: Several[Communication] = ()
    not_measured: Several[str]

    @property
    def failed(self) -> bool:
        """Return True if the script raised an exception or ended with another exit code than 0."""
        return self.exit_code != 0 or bool(self.exception)


LoopPhase = Literal["starting", "training", "evaluating", "between passes", "unknown", "ended"]
ProcessState = Literal["alive", "stopped", "uninterruptible", "gone", "unknown"]


class HeartbeatHeader(Model):
    """The first line of a rank's heartbeat, which the instrument rewrites once a second."""

    pid: Positive
    signal: Positive | None  # makes a silent rank append its main thread's stack to this file
    phase: LoopPhase
    steps: Count
    step_s: Duration | None  # median of the last steps
    moved_monotonic_s: float  # when a step, a backward pass or a batch was last seen: CLOCK_MONOTONIC
    written_monotonic_s: float  # when this was; its main thread's stack follows if nothing moved for a second
    sequence: int | None  # collective calls begun in the default group; None while the rank goes on
    handles: str | None = None  # the exception that the main thread handles meanwhile, in short
    totals: Several[float | None] | None = None  # contract.TOTALS; None before two steps
    own_rendezvous: str | None = None  # host:port at which its script meets the others, if it is not the launcher's


class RankTotals(Model):
    """The sums so far of a rank."""

    rank: Count
    totals: Several[float | None]  # contract.TOTALS


class AgentTotals(RawFile):
    """The sums so far of an agent's ranks (nodes/totals-node<k>.json); without those that have made no two steps."""

    ranks: Several[RankTotals]


class Slow(Model):
    """A link was slower than promised for ten minutes."""

    at_s: float  # unix time
    samples_per_s: float  # of these ten minutes
    why: str


class SlowFile(RawFile):
    """When a start of the script was slower than promised (slow.json)."""

    slow: Several[Slow] = Field(min_length=1)
    action: Literal["warn", "stop"]  # stop: it was ended for the first one


Number = Annotated[float, Field(ge=0, strict=False)]


class Progress(Model):
    """What rank 0 writes once a second (progress.json)."""

    step: Count
    saves: Count | None = None  # of rank 0; None: an earlier version wrote it
    elapsed_s: float  # since the end of the first step
    samples_per_s: Number | None  # None before the second step
    updated_at_s: Number


def read_progress(path: Path) -> Progress | None:
    """Return rank 0's latest progress; None before its first step. Raises OSError, or ValueError for anything else."""
    try:
        return read_as(Progress, path)
    except FileNotFoundError:
        return None


class RankStall(Model):
    """One rank that makes no step."""

    rank: Count
    stuck: bool  # False: it has ended, or nothing is known of it; the others are judged
    process: ProcessState  # gone: it is no process of its agent. unknown: it left no sign
    pid: Positive | None
    phase: LoopPhase | None  # None: it left no sign
    steps: Count
    step_s: Duration | None
    silent_s: Duration
    sequence: int | None
    handles: str | None = None
    stack: str | None  # None: none could be had
    own_rendezvous: str | None = None  # as in the heartbeat
    listener: str | None = None  # a process that listens there, on this node, and is none of the run


class Unreached(Model):
    """Another node, to which an agent that reports a stall could not connect."""

    node_rank: Count
    why: str  # with the address


class AgentStall(RawFile):
    """Report of an agent whose ranks make no step (nodes/hang-node<k>.json); deleted if they go on.

    nodes/look-node<k>.json: the same while one of them may go on, such as in a long validation.
    """

    node_rank: Count
    local_rank: Count | None
    node: Name
    host: Name
    found_at_s: float
    tested: Several[Count] = ()  # the nodes that it tried to connect to
    unreached: Several[Unreached] = ()  # those of them that did not answer
    bounds: Hang
    ranks: Several[RankStall]


def read_stalls(path_of: Callable[[Agent], Path], agents: Iterable[Agent]) -> dict[Agent, AgentStall]:
    """Return the reports of these agents, as far as there are any that can be read."""
    stalls = {}
    for agent in agents:
        if stall := readable(AgentStall, path_of(agent)):
            stalls[agent] = stall
    return stalls
