"""The keys of config.yaml: types, bounds, defaults and meanings."""

# Without `from __future__ import annotations`: pydantic would evaluate each text, 20 ms in every start.

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ddp_ladder.common.model import Several
from ddp_ladder.settings.cluster_keys import InterfaceName, Slurm
from ddp_ladder.settings.key_types import (
    ABSENT,
    DIFFERENT,
    VARIANT,
    AnyScale,
    Argument,
    Arguments,
    Environment,
    Items,
    NullIs,
    NumberIs,
    Section,
    Text,
    VariantName,
    refused,
)
from ddp_ladder.settings.terms import (
    DEFAULT_LOG_MB,
    MOST_JOBS,
    MOST_REPEATS,
    WARMUP_STEPS,
    Backend,
    Device,
    Launcher,
    Mode,
)

# Without ./, // and a last /, so that each file has one name.
_ONE_SPELLING = AfterValidator(lambda path: str(PurePosixPath(path)))
_Directory = Annotated[
    str,
    Text(
        "a path of letters, digits and . _ - / (it becomes part of Snakemake's file patterns)",
        r"^(?!\.?/*$)[A-Za-z0-9._/][A-Za-z0-9._/-]*$",
        1000,
        path=True,
    ),
    _ONE_SPELLING,
]
_WithPlaceholders = Annotated[
    str,
    Text(
        "a path of letters, digits and . _ - / with placeholders (null is where Snakemake was started)",
        r"^(?!\.?/*$)[A-Za-z0-9._/{][A-Za-z0-9._/{}-]*$",
        1000,
        path=True,
    ),
    _ONE_SPELLING,
]
_Command = Annotated[Several[Argument], Field(min_length=1, max_length=1000)]
_FieldName = Annotated[str, Text(most=100), Field(description="Name of a field.", examples=["num_workers"])]
_Scales = Annotated[Several[AnyScale], Field(min_length=1, max_length=100)]


class Workload(Section):
    """The training script, unmodified, and its arguments."""

    script: Annotated[str, Text(least=1, most=1000, home=True)] = Field(examples=["train.py"])
    """Training script, searched in the working directory, then in ddp-ladder's; or "-m package.module"."""
    args: Arguments = Field(default=(), examples=[["--epochs", 8]])
    """Arguments of the script, one list item each; may contain placeholders."""
    batch_per_gpu: int = Field(ge=1, le=10_000_000, examples=[32])
    """Samples per GPU and step at the first scale, 1x1 unless stage1 says otherwise. Weak mode keeps it at every scale;
    strong mode divides those of the first scale among the GPUs."""
    samples_per_step: Annotated[str, Text(most=1000, number=True)] | None = Field(
        default=None, examples=["{batch_per_gpu} * 4"]
    )
    """Samples that one process consumes in one optimizer step, for loops without a DataLoader; may be a product or
    quotient with placeholders."""
    throughput_regex: Annotated[str, Text(least=3, most=1000)] | None = Field(
        default=None, examples=["throughput: ([0-9.]+) samples/s"]
    )
    """Regular expression for the samples per second of all processes in the log: compared with what was counted, and
    read in its place for programs that cannot be instrumented."""
    lr: float | None = Field(default=None, gt=0, examples=[0.05])
    """Learning rate at the first scale; {lr} is scaled from it by lr_rule. Null if the script sets its own."""
    lr_rule: Literal["linear", "sqrt", "none"] = "linear"
    """How {lr} depends on the global batch."""
    seed: int = Field(default=1, ge=0, le=2**31 - 1)
    """Seed of the first repeat; {seed} is this plus repeat - 1."""
    data_dir: _Directory | None = Field(default=None, examples=["data/digits"])
    """Directory of the training data, for {data_dir}; null if the script needs none."""
    prepare: _Command | None = Field(default=None, examples=[["prepare.py", "{data_dir}"]])
    """Script and arguments that write data_dir once, in one process, before stage 1; null for none."""
    directory: _WithPlaceholders | None = Field(default=None, examples=["{run_dir}"])
    """Working directory of the training processes, created if missing; null is where Snakemake was started. May contain
    placeholders; "{run_dir}" gives each run a directory of its own."""
    env: Environment = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": 1}])
    """Environment variables of the training processes; values may contain placeholders."""


class Measure(Section):
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
    plain_baseline: bool = True
    """In stage1, also measure the script without launcher and process group, to show the cost of DDP itself; not if the
    ladder starts at several GPUs."""

    def warmup_steps_on(self, device: Device) -> int:
        """Return the least number of first steps that every run leaves out."""
        return WARMUP_STEPS[device] if self.warmup_steps is None else self.warmup_steps


class Hang(Section):
    """When a run in which no rank makes a step any more is ended; null switches a bound off."""

    times_median_step: float | None = Field(default=10, ge=2, le=1_000_000)
    """In the training loop: this many times the median step."""
    at_least_s: float = Field(default=60, ge=1, le=2_592_000)
    """But no less than this many seconds."""
    first_step_s: float | None = Field(default=1800, ge=1, le=2_592_000)
    """Seconds until the first step, and of a pause outside the training loop: a validation, a checkpoint."""


class GateThresholds(Section):
    """Thresholds that a stage must meet before the next one starts; one that is left out, or null, is not checked."""

    min_efficiency: float | None = Field(default=None, gt=0, le=1, examples=[0.8])
    """Minimum throughput as a fraction of the ideal (that of a GPU in stage1 times the number of GPUs)."""
    min_samples_per_s: float | None = Field(default=None, gt=0, examples=[1000])
    """Minimum throughput of all GPUs together, in samples per second."""
    max_data_wait_fraction: float | None = Field(default=None, ge=0, le=1, examples=[0.1])
    """Maximum fraction of the step time spent waiting for data."""
    max_efficiency: float = Field(default=1.05, ge=1, examples=[1.05])
    """An efficiency whose whole interval is above this closes the gate, because the baseline was disturbed."""
    jobs_differ_percent: float = Field(default=2, ge=0, le=100)
    """Usual standard deviation of this stage's throughput between jobs, in per cent. A verdict that it can turn is
    uncertain; where several jobs measure a scale, they count as well. 0 where all jobs have one node for themselves."""
    certain: bool = False
    """Judge minima by the lower end of the 95 % interval instead of the estimate, and the data wait by every repeat."""


class RepeatsKeys(Section):
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


def _in_order(repeats: RepeatsKeys) -> RepeatsKeys:
    if repeats.most < repeats.at_least:
        raise refused(
            "at_most is less than at_least",
            f"raise at_most, or lower at_least (now {repeats.at_least})",
            "at_least or more",
        )
    return repeats


class Stage1Keys(Section):
    """The first scale, the baseline of every efficiency: one GPU, or the smallest scale that the training fits."""

    scales: _Scales = Field(default=("1x1",), validate_default=True, examples=[["1x1"], ["1x2"]])
    """One scale: 1x1, or a larger one if the training does not fit one GPU."""
    runtime: int = Field(default=20, ge=1, le=43_200)
    """Time limit of each scale's job in minutes; the job runs every variant, mode and repeat of its scale."""
    gate: Annotated[GateThresholds, NullIs({})] = Field(
        default_factory=GateThresholds, examples=[{"min_efficiency": 0.8}]
    )
    slurm: Annotated[Slurm, NullIs({})] = Field(default_factory=Slurm, examples=[{"partition": "debug"}])
    """Slurm options of this stage, which override cluster.yaml's; left out or null keeps them. extra is appended."""


class Stage2Keys(Stage1Keys):
    """Several GPUs of one node."""

    scales: _Scales = Field(examples=[["1x2", "1x4"]])
    """Scales of one node with two or more GPUs, and more than stage1's."""


class Stage3Keys(Stage1Keys):
    """Several nodes."""

    scales: _Scales = Field(examples=[["2x1", "2x4"]])
    """Scales of two or more nodes, with more GPUs than stage1's."""


class StagesKeys(Section):
    """The stages of the ladder. A stage that is left out, or null, is skipped."""

    stage1: Stage1Keys = Field(examples=[{"scales": ["1x1"], "runtime": 10}])
    stage2: Stage2Keys | None = Field(default=None, examples=[{"scales": ["1x2"], "runtime": 10}])
    stage3: Stage3Keys | None = Field(default=None, examples=[{"scales": ["2x1"], "runtime": 10}])


class FingerprintKeys(Section):
    """Comparison of two runs before their throughputs are divided."""

    may_differ: Annotated[Items[_FieldName], DIFFERENT] = Field(
        default=(), examples=[["num_workers"]], json_schema_extra={"uniqueItems": True}
    )
    """Fields that differ between scales on purpose; the report shows both values."""


class VariantNetwork(Section):
    """Overrides of cluster.yaml's network."""

    backend: Backend | None = None
    """Backend of torch.distributed."""
    interface: InterfaceName | None = Field(default=None, examples=["ib0"])
    """Network interface of NCCL and Gloo."""


class VariantKeys(Section):
    """Overrides of one variant; left out or null keeps the base value."""

    launcher: Launcher | None = None
    """Overrides cluster.yaml's launcher; python starts one process for all GPUs of a node."""
    network: Annotated[VariantNetwork, NullIs({})] = Field(
        default_factory=VariantNetwork, examples=[{"backend": "gloo"}]
    )
    args: Arguments = Field(default=(), examples=[["--epochs", 8]])
    """Arguments appended to the workload's."""
    env: Environment = Field(default_factory=dict, examples=[{"OMP_NUM_THREADS": 1}])
    """Environment variables added to the workload's and the network's, whose values they override."""
    reason: Annotated[str, Text(most=1000, lines=True)] | None = Field(
        default=None, examples=["Gloo as a check on NCCL"]
    )
    """Why the variant is measured; shown in the report."""


class PreflightKeys(Section):
    """The test of the nodes, their network and the collectives, in each scale's job before its runs."""

    enabled: bool = True
    """False starts the runs without it."""
    timeout_s: float = Field(default=60, ge=5, le=3600)
    """Time limit of each of its two parts in seconds: the nodes and their network; the collectives."""
    min_busbw_gb_per_s: float | None = Field(default=None, gt=0, examples=[20])
    """Minimum bus bandwidth of an all-reduce at scales of several nodes, in GB/s as nccl-tests defines it; null checks
    none."""


def _with_default(variants: Any) -> Any:
    """Return the variants with a place for the one that must be there."""
    return {"default": ABSENT, **variants} if isinstance(variants, dict) else variants


_Variants = Annotated[
    dict[VariantName, Annotated[VariantKeys, NullIs({}), Field(examples=[{"network": {"backend": "gloo"}}])]],
    Field(max_length=100, json_schema_extra={"propertyNames": VARIANT, "required": ["default"]}),
    BeforeValidator(_with_default),
    NullIs({"default": {}}),
]


class Logs(Section):
    """What is kept of the output of a run."""

    max_mb_per_node: int = Field(default=DEFAULT_LOG_MB, ge=1, le=1_000_000)
    """Limit of the logs of one run on each node, in MB. Of more output the first half of this and the end are kept."""


class MonitorKeys(Section):
    """The samples of each node during a run: GPUs, CPUs, memory, network."""

    enabled: bool = True
    """False samples nothing."""
    every_s: float = Field(default=2, ge=0.2, le=60)
    """Seconds from one sample to the next."""


class ReportKeys(Section):
    """The training whose time and cost the report computes for each scale; without it, for a million samples."""

    epochs: float | None = Field(default=None, gt=0, le=1e9, examples=[90])
    """Epochs of the whole training, each as large as the data set of its DataLoader."""
    samples: float | None = Field(default=None, gt=0, le=1e18, examples=[50_000_000])
    """Samples of the whole training, in place of epochs."""


class ConfigKeys(Section, title="The experiment"):
    """What to train, at which scales, how often, and the thresholds of the gates between stages."""

    results: _Directory = "results"
    """Directory for all output; created if missing."""
    workload: Workload = Field(examples=[{"script": "train.py", "batch_per_gpu": 32}])
    measure: Annotated[Measure, NullIs({})] = Field(default_factory=Measure)
    hang: Annotated[Hang, NullIs({})] = Field(default_factory=Hang)
    modes: Annotated[Several[Mode], Field(min_length=1), DIFFERENT] = Field(
        default=("weak",), json_schema_extra={"uniqueItems": True}
    )
    """How the batch depends on the scale. weak keeps the batch per GPU, strong keeps the global batch."""
    repeats: Annotated[RepeatsKeys, AfterValidator(_in_order), NumberIs("at_least", MOST_REPEATS)] = Field(
        default_factory=RepeatsKeys, json_schema_extra={"default": 3}
    )
    """Repetitions of every measurement in a job: a number, or as many as it takes. Intervals of 2 are very wide, 1 has
    none."""
    jobs: int = Field(default=1, ge=1, le=MOST_JOBS, examples=[2])
    """Slurm jobs that measure each scale, one after the other, each with all repeats. Several show what jobs differ by.
    Without Slurm, and inside an allocation, there is one."""
    stages: StagesKeys = Field(examples=[{"stage1": {"scales": ["1x1"], "runtime": 10}}])
    fingerprint: Annotated[FingerprintKeys, NullIs({})] = Field(
        default_factory=FingerprintKeys, examples=[{"may_differ": ["num_workers"]}]
    )
    logs: Annotated[Logs, NullIs({})] = Field(default_factory=Logs)
    monitor: Annotated[MonitorKeys, NullIs({})] = Field(default_factory=MonitorKeys, examples=[{"every_s": 5}])
    report: Annotated[ReportKeys, NullIs({})] = Field(default_factory=ReportKeys, examples=[{"epochs": 90}])
    variants: _Variants = Field(default_factory=lambda: {"default": VariantKeys()})
    """Named sets of overrides that are measured side by side; the gates judge "default"."""
    preflight: Annotated[PreflightKeys, NullIs({})] = Field(
        default_factory=PreflightKeys, examples=[{"enabled": False}]
    )
