"""The keys of config.yaml and cluster.yaml: types, bounds, defaults and meanings. These models are the settings."""

# Without `from __future__ import annotations`: pydantic would evaluate each text, 20 ms in every start.

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from ddp_ladder_instrument.contract import WITNESS_STEPS
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from ddp_ladder.common.model import Several
from ddp_ladder.common.process import start_allowance_s
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.settings import key_types as types
from ddp_ladder.settings import terms
from ddp_ladder.settings.key_types import DIFFERENT, KeySection, form, refused
from ddp_ladder.settings.terms import MOST_REPEATS, STAGES, Mode, NumaBinding, Scale, Transport, WrapperPer
from ddp_ladder.settings.yaml import YamlFile


class SettingsFile(KeySection):
    """What a whole file holds."""

    _file: Path = PrivateAttr(default=Path("the settings"))

    @property
    def file(self) -> Path:
        return self._file


# cluster.yaml


class Slurm(KeySection):
    """Options of sbatch, but for replace_bad_node; those left out or null are Slurm's own. extra is appended."""

    account: types.OfSlurm | None = Field(default=None, examples=["my-project"])
    """Account to charge."""
    partition: types.OfSlurm | None = Field(default=None, examples=["gpu"])
    """Partition, or several with commas between them."""
    qos: types.OfSlurm | None = Field(default=None, examples=["debug"])
    """Quality of service."""
    constraint: types.OfSlurm | None = Field(default=None, examples=["a100"])
    """Features that the nodes must have."""
    reservation: types.OfSlurm | None = Field(default=None, examples=["course"])
    """Reservation to use."""
    nodelist: types.OfSlurm | None = Field(default=None, examples=["node[01-04]"])
    """Nodes that a job must have."""
    exclude: types.OfSlurm | None = Field(default=None, examples=["node07"])
    """Nodes that a job must not have."""
    extra: Annotated[Several[types.Option], Field(max_length=100)] = Field(default=(), examples=[["--exclusive"]])
    """Further options of sbatch."""
    replace_bad_node: bool | None = Field(default=None, examples=[True])
    """If the preflight of a job finds broken nodes, submit the scale once more without them: at most a quarter of its
    nodes, and 16. They are listed in results/bad_nodes.json, and no further job gets them."""

    def overridden(self, other: Self) -> Self:
        """Return these values with those of ``other`` on top; its extra options are appended."""
        given = {name: value for name, value in other if value is not None}
        return self.replace(**{**given, "extra": self.extra + other.extra})


class Node(KeySection):
    """Resources of one node; a scale that uses some of its GPUs requests their share of cores and memory."""

    gpus: int = Field(ge=1, le=terms.MOST_GPUS, examples=[4])
    """GPUs per node. With device cpu, a "GPU" is one CPU process."""
    device: types.Device
    cpus: int = Field(ge=1, le=4096, examples=[64])
    """CPU cores per node, shared by its GPUs' processes."""
    gres: types.Gres | None = Field(default=None, examples=["gpu"])
    """Name of a GPU in Slurm; the scale adds the number. Null requests no GPU."""
    memory_mb: int | None = Field(default=None, ge=1, le=10**9, examples=[256_000])
    """Memory per node in MB, as in --mem (1024 MB are 1 GB); null is the partition's default."""

    @property
    def threads_per_rank(self) -> int:
        """Cores of one process: the same at every scale, so that the baseline does not win by using idle cores."""
        return max(1, self.cpus // self.gpus)


class Container(KeySection):
    """The image that the training runs in."""

    image: types.PathText = Field(examples=["/images/pytorch.sif"])
    """File, URI or name of the image, as the engine takes it."""
    engine: types.Engine = "apptainer"
    """Program that runs the image. Where the site's guide has `srun --container-image`, enroot, which that option of
    pyxis calls; where it has `srun --environment`, edf."""
    gpus: types.GpusInside | None = "nvidia"
    binds: Annotated[Several[types.PathText], Field(max_length=100)] = Field(default=(), examples=[["/data"]])
    """Directories to mount inside; each source or source:target, with :ro at the end read-only."""
    args: Annotated[Several[types.Typed], Field(max_length=100)] = Field(default=(), examples=[["--no-home"]])
    """Further options of the engine's exec, start or run."""


class Software(KeySection):
    """Software of the training. Modules and setup run on the node; Python is in the container if there is one."""

    python: types.PathText | None = Field(default=None, examples=["/opt/venv/bin/python"])
    """Python that has the workload's packages; null for the Python that runs the workflow."""
    modules: Annotated[Several[types.Module], Field(max_length=100)] = Field(default=(), examples=[["PyTorch/2.8.0"]])
    """Environment modules, loaded on each node in this order, outside any container."""
    setup: str = Field(default="", max_length=100_000, examples=["source /opt/venv/bin/activate"])
    """Shell commands that each node runs after loading the modules; exported variables reach the training."""
    container: Container | None = Field(default=None, examples=[{"image": "/images/pytorch.sif"}])
    """Image that the training runs in; null for none."""


class Network(KeySection):
    """Communication between the processes."""

    backend: types.BackendOrAuto = "auto"
    interface: types.Interface = Field(
        default="auto",
        examples=["ib0", {"node01": "eth0", "node02": "eth1"}],
        json_schema_extra={
            "patternErrorMessage": "an interface's name such as eth0 or ib0, auto, or a map from node names to these"
        },
    )
    """Network interface of NCCL and Gloo; auto detects it, a map sets it per node."""
    transport: Transport = "any"
    """What NCCL must use between nodes; the preflight compares it with NCCL's log. ib is InfiniBand or RoCE, ofi a
    plugin for libfabric (Slingshot, EFA), socket is TCP; any takes all."""
    env: types.Environment = Field(default_factory=dict, examples=[{"NCCL_DEBUG": "INFO"}])
    """Environment variables that the site's network needs; values may contain placeholders."""


class CentreHours(KeySection):
    """The hours in which the computing centre counts, beside GPU hours: set one of the two prices."""

    name: types.Short = Field(examples=["normalised GPU h"])
    """How the report names them."""
    per_gpu_hour: float | None = Field(default=None, gt=0, le=1e6, examples=[2])
    """How many of them an hour of one GPU costs; a share of a node costs its share."""
    per_node_hour: float | None = Field(default=None, gt=0, le=1e6, examples=[1])
    """How many of them an hour of a node costs, in place of per_gpu_hour; a share of a node costs the whole of it."""

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        if (self.per_gpu_hour is None) == (self.per_node_hour is None):
            raise refused("the price of an hour is given twice, or not at all", "set per_gpu_hour or per_node_hour")
        return self

    def of(self, gpu_hours: float, node_hours: float) -> float:
        """Return how many of them these GPUs cost, on so many nodes."""
        return node_hours * (self.per_node_hour or 0) if self.per_gpu_hour is None else gpu_hours * self.per_gpu_hour


class Carbon(KeySection):
    """The carbon dioxide of the site's electricity."""

    grams_co2_per_kwh: float = Field(ge=0, le=10_000, examples=[220])
    """Grams of CO2, or of its equivalent, per kWh."""
    source: types.Short = Field(examples=["national grid, mean of 2025"])
    """Where that is from; the report shows it beside the result."""


class Site(SettingsFile, title="The site"):
    """A cluster, or this machine."""

    site: types.Name = Field(examples=["local"])
    """Name of the site, for the report."""
    slurm: Slurm = Field(default_factory=Slurm, examples=[{"partition": "gpu"}])
    node: Node = Field(examples=[{"gpus": 4, "device": "cuda", "cpus": 64}])
    software: Software = Field(default_factory=Software)
    network: Network = Field(default_factory=Network, examples=[{"backend": "auto", "interface": "auto"}])
    launcher: types.SiteLauncher = "torchrun"
    numa_binding: NumaBinding | None = None
    """Of torchrun (torch 2.9 or newer, with numactl): node binds each rank to the cores of its GPU's NUMA node, socket
    to those of its socket, exclusive to a share of its NUMA node, core-complex to cores of it that share an L3 cache;
    null binds nothing. It needs all cores of the node (node.cpus). Left out at scales
    with some of a node's GPUs, whose share of the cores may be far from them, and with device cpu."""
    hours: CentreHours | None = Field(default=None, examples=[{"name": "node h", "per_node_hour": 1}])
    carbon: Carbon | None = Field(
        default=None, examples=[{"grams_co2_per_kwh": 220, "source": "national grid, mean of 2025"}]
    )


# config.yaml


class BatchRange(KeySection):
    """The batches per GPU among which the job of the first scale searches; all are multiples of the smallest."""

    least: int = Field(default=8, ge=1, le=10_000_000, alias="from")
    """Smallest batch that is tried; the others are its multiples."""
    most: int = Field(default=4096, ge=1, le=10_000_000, alias="to")
    """Largest batch that is tried."""
    headroom_percent: float = Field(default=10, ge=0, le=99)
    """Part of a GPU's memory that the chosen batch leaves free, in per cent."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.most < self.least:
            raise refused("`to` is less than `from`", f"raise to, or lower from (now {self.least})")
        return self


BatchSize = Annotated[
    Annotated[int, Field(ge=1, le=10_000_000), Tag("number")] | Annotated[BatchRange, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, dict | BatchRange) else "number"),
    BeforeValidator(lambda value: {} if value == "auto" else value),
    types.OrAuto("a whole number from 1 to 10000000, auto, or keys from, to, headroom_percent"),
]


class Workload(KeySection):
    """The training script, unmodified, and its arguments."""

    script: types.Script = Field(examples=["train.py"])
    """Training script, searched in the working directory, then in ddp-ladder's; or "-m package.module"."""
    args: types.Arguments = Field(default=(), examples=[["--epochs", 8]])
    """Arguments of the script, one list item each; may contain placeholders."""
    batch_per_gpu: BatchSize = Field(examples=[32])
    """Samples per GPU and step at the first scale, 1x1 unless stage1 says otherwise. Weak mode keeps it at every scale;
    strong mode divides those of the first scale among the GPUs. auto, or a range {from: 8, to: 4096,
    headroom_percent: 10}, lets the job of the first scale search for it."""
    global_batch: int | None = Field(default=None, ge=1, le=10_000_000_000, examples=[1024])
    """Samples per optimizer step of all GPUs together, with modes: [strong]. Each GPU then keeps batch_per_gpu, and
    accumulates the gradients of {accumulation} batches, fewer where more GPUs share them. Null accumulates none."""
    samples_per_step: types.Typed | None = Field(default=None, examples=["{batch_per_gpu} * 4"])
    """Samples that one process consumes in one optimizer step, for loops without a DataLoader; may be a product or
    quotient with placeholders."""
    tokens_per_sample: int | None = Field(default=None, ge=1, le=1_000_000_000, examples=[2048])
    """Tokens of a sample, for tokens/s. Null takes the length of `input_ids` in the batches, if all have the same."""
    throughput_regex: types.Text | None = Field(default=None, examples=["throughput: ([0-9.]+) samples/s"])
    """Regular expression for the samples per second of all processes in the log, for programs that cannot be
    instrumented."""
    lr: float | None = Field(default=None, gt=0, examples=[0.05])
    """Learning rate at the first scale; {lr} is scaled from it by lr_rule. Null if the script sets its own."""
    lr_rule: Literal["linear", "sqrt", "none"] = "linear"
    """How {lr} depends on the global batch."""
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    """Seed of the first repeat; {seed} is this plus repeat - 1."""
    data_dir: types.Directory | None = Field(default=None, examples=["data/digits"])
    """Directory of the training data, for {data_dir}; null if the script needs none."""
    prepare: types.Command | None = Field(default=None, examples=[["prepare.py", "{data_dir}"]])
    """Script and arguments that write data_dir once, in one process, before stage 1; null for none."""
    directory: types.WithPlaceholders | None = Field(default=None, examples=["{run_dir}"])
    """Working directory of the training processes, created if missing; null is where Snakemake was started. May contain
    placeholders; "{run_dir}" gives each run a directory of its own."""
    env: types.Environment = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": 1}])
    """Environment variables of the training processes; values may contain placeholders."""
    wrapper: types.Arguments = Field(default=(), examples=[["nsys", "profile", "-o", "{run_dir}/rank%q{{RANK}}"]])
    """Command that starts the training's Python, such as a profiler with its options; it gets Python and script as
    further words. May contain placeholders; {run_dir} is here a directory of the run whose files the report lists."""
    wrapper_per: WrapperPer = "rank"
    """rank starts each rank with the wrapper; node starts it once a node: around torchrun, else around the node's first
    rank."""
    secrets: Annotated[Several[types.Variable], Field(max_length=100)] = Field(default=(), examples=[["WANDB_API_KEY"]])
    """Environment variables of the training whose values come from the shell that starts Snakemake, and are written
    nowhere."""

    @property
    def least_batch(self) -> int:
        """The batch per GPU; of a range the smallest."""
        return self.batch_per_gpu.least if isinstance(self.batch_per_gpu, BatchRange) else self.batch_per_gpu


class Measure(KeySection):
    """Which steps of a run are measured, and when it may end early."""

    warmup_steps: int | None = Field(default=None, ge=0, le=1_000_000, examples=[50])
    """First steps of a run, left out of every figure; more are left out if step times are not steady by then. Null is
    20 with device cuda, 10 with cpu."""
    min_steps: int = Field(default=30, ge=1, le=1_000_000)
    """Minimum of measured steps; a run with fewer closes the gate."""
    max_steps: int | None = Field(default=None, ge=1, le=100_000_000, examples=[200])
    """End a run cleanly after this number of steps, warm-up included; null lets the script end by itself."""
    max_seconds: float | None = Field(default=None, gt=0, le=2_592_000, examples=[120])
    """End a run cleanly after this many seconds of training; null lets the script end by itself."""
    profile_steps: int = Field(default=0, ge=0, le=100, examples=[5])
    """Trace this many steps with torch.profiler after the measured ones, where max_steps or max_seconds ends a run."""
    count_flops: bool = True
    """Tell the FLOPs per sample and the FLOP/s: they are counted in the witness run, at the first scale on rank 0."""
    plain_baseline: bool = True
    """In stage1, also measure the script without launcher and process group, to show the cost of DDP itself; not if the
    ladder starts at several GPUs."""
    witness_steps: types.WitnessSteps = WITNESS_STEPS
    """Before the runs of the first scale, run the script for so many steps, or two passes over the training data, while
    each batch is followed to the parameters: it shows which batches are trained on. Slow, not timed, once for each
    script, arguments and environment; off makes none."""
    witness_s: float = Field(default=120, gt=0, le=86_400)
    """Seconds of steps after which that run ends, if it makes fewer; with its start-up it has twice as many, and at
    most a quarter of the job's time."""
    production: Literal["on", "off"] = "on"
    """Whether the jobs of `snakemake production` are measured, too. Without, only their exit codes are known: no steps,
    no speed, no saves."""

    def warmup_steps_on(self, device: str) -> int:
        """Return the least number of first steps that every run leaves out."""
        return ACCELERATORS[device].warmup_steps if self.warmup_steps is None else self.warmup_steps


class Hang(KeySection):
    """When a run in which no rank makes a step any more is ended; null switches a bound off."""

    times_median_step: float | None = Field(default=10, ge=2, le=1_000_000)
    """In the training loop: this many times the median step."""
    at_least_s: float = Field(default=45, ge=1, le=2_592_000)
    """But no less than this many seconds."""
    first_step_s: float | None = Field(default=1800, ge=1, le=2_592_000)
    """Seconds until the first step, and of a pause outside the training loop: a validation, a checkpoint."""


class GateThresholds(KeySection):
    """Thresholds that a stage must meet before the next one starts; one that is left out, or null, is not checked."""

    min_efficiency: float | None = Field(default=None, gt=0, le=1, examples=[0.8])
    """Minimum throughput as a fraction of the ideal (that of a GPU in stage1 times the number of GPUs)."""
    min_samples_per_s: float | None = Field(default=None, gt=0, examples=[1000])
    """Minimum throughput of all GPUs together, in samples per second."""
    max_data_wait_fraction: float | None = Field(default=None, ge=0, le=1, examples=[0.1])
    """Maximum fraction of the step time spent waiting for data."""
    max_efficiency: float = Field(default=terms.MOST_EFFICIENCY, ge=1, examples=[1.05])
    """An efficiency whose whole interval is above this closes the gate, because the baseline was disturbed."""
    jobs_differ_percent: float = Field(default=terms.JOBS_DIFFER_PERCENT, ge=0, le=100)
    """Usual standard deviation of this stage's throughput between jobs, in per cent. A verdict that it can turn is
    uncertain; where several jobs measure a scale, they count as well. 0 where all jobs have one node for themselves."""


class Repeats(KeySection):
    """Repetitions of every measurement: as many as it takes to know it, within bounds."""

    at_least: int = Field(default=3, ge=1, le=MOST_REPEATS)
    """Repetitions that are always made."""
    at_most: int | None = Field(default=None, ge=1, le=MOST_REPEATS, examples=[8])
    """The job of a scale goes on up to this many, if its time holds them; null makes no more than at_least."""
    until_percent: float = Field(default=3, gt=0, le=100)
    """It ends once the 95 % interval of each variant's efficiency (in stage1: its throughput) is at most this many per
    cent to either side, or lies wholly above or below the gate's minimum."""

    @property
    def most(self) -> int:
        return self.at_most or self.at_least

    @model_validator(mode="before")
    @classmethod
    def _from_a_number(cls, data: Any) -> Any:
        return {"at_least": data} if isinstance(data, int) and not isinstance(data, bool) else data

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.most < self.at_least:
            raise refused("at_most is less than at_least", f"raise at_most, or lower at_least (now {self.at_least})")
        return self


class Stage(KeySection):
    """One rung of the ladder: its scales, the limits of their jobs, and the gate that opens the next one."""

    name: ClassVar[str]
    scales: types.Scales
    runtime: int = Field(default=20, ge=1, le=43_200)
    """Time limit of each scale's job in minutes; the job runs every variant, mode and repeat of its scale."""
    gate: GateThresholds = Field(default_factory=GateThresholds, examples=[{"min_efficiency": 0.8}])
    slurm: Slurm = Field(default_factory=Slurm, examples=[{"partition": "debug"}])
    """Slurm options of this stage, which override cluster.yaml's; left out or null keeps them. extra is appended."""


class Stage1(Stage):
    """The first scale, the baseline of every efficiency: one GPU, or the smallest scale that the training fits."""

    name = "stage1"
    scales: Annotated[types.Scales, Field(max_length=1)] = Field(
        default=("1x1",), validate_default=True, examples=[["1x1"], ["1x2"]]
    )
    """One scale: 1x1, or a larger one if the training does not fit one GPU."""


class Stage2(Stage):
    """Several GPUs of one node."""

    name = "stage2"
    scales: types.Scales = Field(examples=[["1x2", "1x4"]])
    """Scales of one node with two or more GPUs, and more than stage1's."""


class Stage3(Stage):
    """Several nodes."""

    name = "stage3"
    scales: types.Scales = Field(examples=[["2x1", "2x4"]])
    """Scales of two or more nodes, with more GPUs than stage1's."""


class Stages(KeySection):
    """The stages of the ladder. A stage that is left out, or null, is skipped."""

    stage1: Stage1 = Field(examples=[{"scales": ["1x1"], "runtime": 10}])
    stage2: Stage2 | None = Field(default=None, examples=[{"scales": ["1x2"], "runtime": 10}])
    stage3: Stage3 | None = Field(default=None, examples=[{"scales": ["2x1"], "runtime": 10}])


class FingerprintKeys(KeySection):
    """Comparison of two runs before their throughputs are divided."""

    may_differ: Annotated[Several[types.FieldName], DIFFERENT] = Field(default=(), examples=[["num_workers"]])
    """Fields that differ between scales on purpose; the report shows both values."""


class VariantNetwork(KeySection):
    """Overrides of cluster.yaml's network."""

    backend: types.BackendOrAuto | None = None
    """Backend of torch.distributed."""
    interface: types.InterfaceName | None = Field(default=None, examples=["ib0"])
    """Network interface of NCCL and Gloo."""


class Variant(KeySection):
    """Overrides of one variant; left out or null keeps the base value."""

    launcher: types.Launcher | None = None
    """Overrides cluster.yaml's launcher; python starts one process for all GPUs of a node."""
    numa_binding: NumaBinding | None = None
    """Overrides cluster.yaml's numa_binding."""
    network: VariantNetwork = Field(default_factory=VariantNetwork, examples=[{"backend": "gloo"}])
    args: types.Arguments = Field(default=(), examples=[["--epochs", 8]])
    """Arguments appended to the workload's."""
    env: types.Environment = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": 1}])
    """Environment variables added to the workload's and the network's, whose values they override."""
    wrapper: types.Arguments | None = Field(default=None, examples=[["numactl", "--localalloc"], []])
    """Overrides the workload's wrapper; [] is none."""
    wrapper_per: WrapperPer | None = None
    """Overrides the workload's wrapper_per."""
    reason: types.Text | None = Field(default=None, examples=["Gloo as a check on NCCL"])
    """Why the variant is measured; shown in the report."""


class Preflight(KeySection):
    """The test of the nodes, their network and the collectives, in each scale's job before its runs."""

    enabled: bool = True
    """False starts the runs without it."""
    timeout_s: float | None = Field(default=None, ge=5, le=3600, examples=[120])
    """Time limit of each of its two parts in seconds: the nodes and their network; the collectives; null: 60, and one
    more for every 4 nodes, which load torch from one file system."""
    min_busbw_gb_per_s: float | None = Field(default=None, gt=0, examples=[20])
    """Minimum bus bandwidth of an all-reduce at scales of several nodes, in GB/s as nccl-tests defines it; null checks
    none."""

    def limit_s(self, nodes: int) -> float:
        """Return the time limit of each part on so many nodes."""
        return 60.0 + start_allowance_s(nodes) if self.timeout_s is None else self.timeout_s


class Production(KeySection):
    """The training that the ladder was climbed for: a chain of jobs, each of which goes on where the last one saved."""

    scale: types.ScaleOrRecommended = Field(default="recommended", examples=["4x4"])
    """Scale of every job: one that was measured and whose gate is open, or the one that the report recommends."""
    args: types.Arguments | None = Field(default=None, examples=[["--epochs", 90]])
    """Arguments of the script, in place of workload.args; null keeps these. May contain placeholders; {run_dir} is one
    directory for the whole chain."""
    runtime: int = Field(default=1440, ge=1, le=43_200)
    """Time limit of each job in minutes."""
    up_to_hours: float | None = Field(default=None, gt=0, le=1e9, examples=[2000])
    """GPU hours that the chain may use. No job is begun that could exceed them."""
    warn_before_s: float = Field(default=300, ge=1, le=86_400)
    """Seconds before a job ends its script at which that gets the signal SIGUSR1: it saves its state, and ends with
    exit code 75. Under Slurm a job ends its script 70 s before its own time is up."""
    slower_percent: float = Field(default=15, gt=0, lt=100)
    """A job that is slower than the ladder's figure by more than this, for ten minutes, is reported."""
    slower: Literal["warn", "stop"] = "warn"
    """What a slower job leads to: a warning, or the end of the chain."""
    rehearse_s: float = Field(default=120, ge=1, le=86_400)
    """Seconds of each of the two links of a rehearsal, before the signal."""
    unproven: bool = False
    """True also takes a scale that was not measured, or whose gate is closed."""
    unrehearsed: bool = False
    """True also starts without a rehearsal of this script and its arguments."""
    slurm: Slurm = Field(default_factory=Slurm, examples=[{"partition": "long"}])
    """Slurm options of these jobs, which override cluster.yaml's; left out or null keeps them. extra is appended."""


Notice = Literal["gate", "end", "slower"]


class Notify(KeySection):
    """A command that tells you what you wait for. It runs where Snakemake does, and delays nothing."""

    command: types.Arguments | None = Field(default=None, examples=[["mail", "-s", "{subject}", "me@site.org"]])
    """Program and arguments; {subject} is one line on what happened, and standard input has the text. null: none."""
    at: Annotated[Several[Notice], Field(min_length=1), DIFFERENT] = ("gate", "end", "slower")
    """gate: a gate was judged. end: a climb or a chain ended, and why. slower: a link is slower than promised."""


def _with_default(variants: dict[str, Variant]) -> dict[str, Variant]:
    if terms.REFERENCE_VARIANT not in variants:
        raise refused("the variant that the gates judge is missing", "add default: {} under variants")
    return variants


_EMPTY = BeforeValidator(lambda variant: {} if variant is None else variant)
_Variants = Annotated[
    dict[
        Annotated[str, form(types.NAME, f"{types.NAME_WORDS} (a variant's name becomes a directory)", 60)],
        Annotated[Variant, _EMPTY, Field(examples=[{"network": {"backend": "gloo"}}])],
    ],
    Field(max_length=100),
    AfterValidator(_with_default),
]


class Logs(KeySection):
    """What is kept of the output of a run."""

    max_mb_per_node: int = Field(default=terms.DEFAULT_LOG_MB, ge=1, le=1_000_000)
    """Limit of the logs of one run on each node, in MB. Of more output the first half of this and the end are kept."""


class Monitor(KeySection):
    """The samples of each node during a run: GPUs, CPUs, memory, network."""

    enabled: bool = True
    """False samples nothing."""
    every_s: float = Field(default=2, ge=terms.LEAST_EVERY_S, le=60)
    """Seconds from one sample to the next."""


class Report(KeySection):
    """The training whose time and cost the report computes for each scale, by epochs, samples, steps or tokens; without
    it, for a million samples."""

    epochs: float | None = Field(default=None, gt=0, le=1e9, examples=[90])
    """Epochs of the whole training, each as large as the data set of its DataLoader."""
    samples: float | None = Field(default=None, gt=0, le=1e18, examples=[50_000_000])
    """Samples of the whole training, in place of epochs."""
    steps: int | None = Field(default=None, gt=0, le=10**12, examples=[90_000])
    """Optimizer steps of the whole training, in place of epochs; each of the global batch of its scale."""
    tokens: float | None = Field(default=None, gt=0, le=1e18, examples=[3.0e11])
    """Tokens of the whole training, in place of epochs; the tokens of a sample: workload.tokens_per_sample."""
    runs: int | None = Field(default=None, gt=0, le=10**6, examples=[12])
    """Trainings that the project needs, with seeds, searches and repetitions: for the hours to ask for."""
    reserve: float = Field(default=0.1, ge=0, le=1)
    """Reserve on these hours for failed jobs and restarts, a fraction."""
    tables: str | None = Field(default=None, min_length=1, examples=["256x4"])
    """A scale, or a part of a run's name: the report writes the steps of its ranks and the samples of its nodes as CSV
    files, which most runs of up to 64 ranks have anyway."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        given = [name for name in ("epochs", "samples", "steps", "tokens") if getattr(self, name) is not None]
        if len(given) > 1:
            raise refused(f"{' and '.join(given)} both give its length", "set all but one to null")
        return self


class Experiment(SettingsFile, title="The experiment"):
    """What to train, at which scales, how often, and the thresholds of the gates between stages."""

    results: types.Directory = "results"
    """Directory for all output; created if missing."""
    workload: Workload = Field(examples=[{"script": "train.py", "batch_per_gpu": 32}])
    measure: Measure = Field(default_factory=Measure)
    hang: Hang = Field(default_factory=Hang)
    modes: Annotated[Several[Mode], Field(min_length=1), DIFFERENT] = ("weak",)
    """How the batch depends on the scale. weak keeps the batch per GPU, strong keeps the global batch."""
    repeats: Annotated[Repeats, types.OrNumber(MOST_REPEATS)] = Field(
        default_factory=Repeats, json_schema_extra={"default": 3}
    )
    """Repetitions of every measurement: a number, or as many as it takes. Intervals of 2 are very wide, 1 has
    none."""
    stages: Stages = Field(examples=[{"stage1": {"scales": ["1x1"], "runtime": 10}}])
    fingerprint: FingerprintKeys = Field(default_factory=FingerprintKeys, examples=[{"may_differ": ["num_workers"]}])
    logs: Logs = Field(default_factory=Logs)
    monitor: Monitor = Field(default_factory=Monitor, examples=[{"every_s": 5}])
    report: Report = Field(default_factory=Report, examples=[{"epochs": 90}])
    variants: _Variants = Field(default_factory=lambda: {"default": Variant()})
    """Named sets of overrides that are measured side by side; the gates judge "default"."""
    preflight: Preflight = Field(default_factory=Preflight, examples=[{"enabled": False}])
    production: Production = Field(default_factory=Production, examples=[{"up_to_hours": 2000}])
    notify: Notify = Field(default_factory=Notify, examples=[{"at": ["end"]}])

    @property
    def ladder(self) -> tuple[Stage, ...]:
        """The stages that there are, in climbing order."""
        return tuple(stage for name in STAGES if (stage := getattr(self.stages, name)))

    @property
    def first_scale(self) -> Scale:
        """The scale of stage 1, the baseline of every efficiency."""
        return self.stages.stage1.scales[0]

    @property
    def scales(self) -> tuple[Scale, ...]:
        return tuple(scale for stage in self.ladder for scale in stage.scales)


@dataclass(frozen=True)
class Settings:
    """All settings of the user, checked."""

    experiment: Experiment
    site: Site
    # The files, for the line of each key.
    config: YamlFile = field(default_factory=lambda: YamlFile(Path("config/config.yaml")))
    cluster: YamlFile = field(default_factory=lambda: YamlFile(Path("config/cluster.yaml")))

    def with_batch(self, batch_per_gpu: int) -> "Settings":
        """Return the settings with this batch in place of a range."""
        workload = self.experiment.workload.model_copy(update={"batch_per_gpu": batch_per_gpu})
        return replace(self, experiment=self.experiment.model_copy(update={"workload": workload}))
