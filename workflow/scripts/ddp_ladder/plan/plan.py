"""The plan: the fully resolved list of runs of every stage, its file, and the units that its figures are said in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT
from pydantic import Field, TypeAdapter, ValidationError, with_config

from ddp_ladder.common.files import canonical_sha256, read_json
from ddp_ladder.common.formats import significant
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import IN_A_MODEL, Model, Name, Positive, Several, Version1, first_error
from ddp_ladder.platform.accelerators import ACCELERATORS, is_gpu
from ddp_ladder.platform.launchers import LAUNCHERS, WITH_RANKS, Python
from ddp_ladder.settings import keys, terms
from ddp_ladder.settings.key_types import AnyScale, Backend, BackendOrAuto, Device, Launcher
from ddp_ladder.settings.keys import (
    BatchRange,
    Carbon,
    CentreHours,
    Experiment,
    GateThresholds,
    Settings,
    Slurm,
    Stage,
    Variant,
)
from ddp_ladder.settings.terms import (
    ONE_GPU,
    PATH_PLACEHOLDERS,
    PLACEHOLDERS,
    PLAIN_VARIANT,
    STAGES,
    Interface,
    Mode,
    NumaBinding,
    Scale,
    Transport,
    WrapperPer,
    expand,
    whole_number,
)


class Units(Model):
    """Those of the settings. None: not said. They are part of no run."""

    tokens_per_sample: Positive | None = None
    hours: CentreHours | None = None
    carbon: Carbon | None = None

    @classmethod
    def of(cls, settings: Settings) -> Units:
        site, workload = settings.site, settings.experiment.workload
        return cls(tokens_per_sample=workload.tokens_per_sample, hours=site.hours, carbon=site.carbon)

    def carbon_kg(self, energy_kwh: float | None) -> float | None:
        """Return the CO2 of an energy in kg; None unless both are known."""
        return None if energy_kwh is None or self.carbon is None else energy_kwh * self.carbon.grams_co2_per_kwh / 1000

    def carbon_in_words(self, energy_kwh: float | None) -> str:
        """Return ``1.25 kg of CO2 at 250 g per kWh (grid, 2025)``; empty unless both are known."""
        if energy_kwh is None or self.carbon is None:
            return ""
        of = f"{self.carbon.grams_co2_per_kwh:g} g per kWh ({self.carbon.source})"
        return f"{significant(self.carbon_kg(energy_kwh))} kg of CO2 at {of}"


@dataclass(frozen=True)
class Hours:
    """Hours of an allocation, as centres count them: those of an application, and those that were used."""

    gpus: float = 0.0  # of processes on a site without GPUs
    nodes: float = 0.0

    @classmethod
    def held(cls, wall_hours: float, nodes: int, gpus: int) -> Hours:
        """Return those of jobs that hold so many nodes and GPUs."""
        return cls(gpus * wall_hours, nodes * wall_hours)

    def asked(self, runs: int | None, reserve: float) -> Hours:
        """Return what is asked for so many trainings of these hours, with the reserve. None: not said, one."""
        factor = (runs or 1) * (1 + reserve)
        return Hours(factor * self.gpus, factor * self.nodes)

    def of_centre(self, centre: CentreHours | None) -> float | None:
        """Return them in the hours of the centre; None if it has none of its own."""
        return None if centre is None else centre.of(self.gpus, self.nodes)

    def __add__(self, other: Hours) -> Hours:
        return Hours(self.gpus + other.gpus, self.nodes + other.nodes)


@dataclass(frozen=True)
class HourUnit:
    """In which hours costs are said."""

    device: str  # GPU, or process on a site without
    centre: CentreHours | None

    @property
    def devices(self) -> str:
        return {"GPU": "GPUs", "process": "processes"}[self.device]

    def of_device(self, text: str) -> str:
        """Return a text on GPUs in the words of this site: on processes if it has none."""
        return text.replace("GPUs", self.devices).replace("GPU", self.device)

    def in_words(self, cost: Hours) -> str:
        """Return ``4.20 GPU h``, or ``4.20 GPU h (8.40 normalised GPU h)``."""
        return f"{significant(cost.gpus)} {self.device} h{self.beside(cost)}"

    def of(self, used: Hours, most: Hours) -> str:
        """Return ``812 of 2,000 GPU h``, or ``812 of 2,000 GPU h (1,624 of 4,000 normalised GPU h)``."""
        shown = f"{significant(used.gpus)} of {significant(most.gpus)} {self.device} h"
        if self.centre is None:
            return shown
        both = " of ".join(significant(cost.of_centre(self.centre)) for cost in (used, most))
        return f"{shown} ({both} {self.centre.name})"

    def beside(self, cost: Hours) -> str:
        """Return `` (8.40 normalised GPU h)``; empty for a centre without hours of its own."""
        return "" if self.centre is None else f" ({significant(cost.of_centre(self.centre))} {self.centre.name})"


# --- The plan: the fully resolved list of runs of every stage, and its file. No torch, no Slurm.


Item = TypeVar("Item")


class Job(Model):
    """The job of a run, and the attempt that made it."""

    id: Name
    attempt: Positive  # from 1
    run_id: Name  # random, of this attempt: each of its processes writes it into its file

    @property
    def is_of_slurm(self) -> bool:
        """Return True if Slurm started it; else its id is local-<host>-<time>-<process>."""
        return self.id.isdecimal()


class RawFile(Model):
    """The keys that every raw file starts with. They show that it belongs to this spec, job and attempt."""

    schema_version: Version1
    spec_hash: str
    job: Job


WRAPPER_DIRECTORY = "wrapper"
"""That which {run_dir} means in workload.wrapper."""
OWN_DIRECTORY = "work"
"""The subdirectory of a run that {run_dir} means in workload.directory: the script's files stay apart from ours."""


class RunSpec(Model):
    """One run of a training process group: everything that decides what is measured."""

    stage: Annotated[str, Field(pattern="^(stage[123]|production|rehearsal)$")]
    variant: Name
    mode: Mode
    nodes: Positive
    gpus_per_node: Positive
    repeat: Positive  # from 1
    batch_per_gpu: Positive
    global_batch: Positive
    accumulation: Positive | None = None  # batches per step that workload.global_batch asks of each GPU, if it is set
    lr: float | None  # after the learning-rate rule
    seed: int
    samples_per_step: Positive | None  # of one process, if they cannot be counted; None counts them
    throughput_regex: str | None  # finds samples per second in the log
    script: Name
    args: Several[str]
    args_template: Several[str]  # with placeholders: equal at every scale
    directory: str | None  # working directory, relative to where Snakemake was started; None is that one
    directory_template: str | None = None  # as args_template
    data_dir: str | None
    env: Mapping[str, str]  # with a marker in place of each secret
    env_template: Mapping[str, str]  # as args_template
    python: str | None
    modules: Several[str]
    setup: str
    container: keys.Container | None  # with the data bound
    launcher: Launcher
    numa_binding: NumaBinding | None = None  # of torchrun, at scales with all GPUs of a node
    wrapper: Several[str] = ()  # words before the training's Python
    wrapper_template: Several[str] = ()  # as args_template
    wrapper_per: WrapperPer = "rank"
    device: Device
    backend: Backend
    backend_wanted: BackendOrAuto  # as configured: auto leaves the choice to the script
    interface: Interface  # auto, a name, or a name for each node
    cpus_per_node: Positive
    threads_per_rank: Positive
    warmup_steps: int = Field(ge=0)
    min_steps: Positive
    max_steps: Positive | None
    # An integer stays one: the hash of a spec depends on how its figures are written.
    max_seconds: Positive | Annotated[float, Field(gt=0)] | None
    profile_steps: Annotated[int, Field(ge=0)] = 0  # traced after the measured ones
    count_flops: bool = False  # told of those of its witness run; at the first scale
    instrument: bool = True  # False: the script runs alone, and only its exit codes are known

    @property
    def world_size(self) -> int:
        """Number of ranks: one per GPU, or one with all GPUs."""
        return self.gpus if LAUNCHERS[self.launcher].sets_ranks else 1

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def scale(self) -> Scale:
        return Scale(self.nodes, self.gpus_per_node)

    @property
    def name(self) -> str:
        """Path below results/runs and the name in messages: ``default/weak/1x2/r1``."""
        return f"{self.variant}/{self.mode}/{self.scale}/r{self.repeat}"

    @property
    def is_link(self) -> bool:
        """True if the script goes on where an earlier start of it has saved its state, in the same directory."""
        return self.stage in (terms.PRODUCTION, terms.REHEARSAL)

    @property
    def is_plain(self) -> bool:
        """True for the plain baseline. It closes no gate: many scripts need a process group."""
        return self.variant == PLAIN_VARIANT

    @property
    def hash(self) -> str:
        """SHA-256 of the resolved spec: equal for runs of the same spec only."""
        # Runs that were made before there were these fields keep their records.
        later = {"directory_template", "instrument"} if self.instrument else {"directory_template"}
        return canonical_sha256(self.model_dump(exclude=later))


class WitnessLimits(Model):
    """When a run that follows its batches ends, at the latest (measure.witness_steps, witness_s)."""

    steps: Positive
    seconds: float = Field(gt=0)


@with_config(IN_A_MODEL)
@dataclass(frozen=True)
class ScaleJob:
    """One job: all runs of one scale, variants and repeats interleaved, on the same nodes.

    Its Slurm options and limits are not part of its runs: another queue does not change what is measured.
    """

    stage: str
    scale: AnyScale
    runtime_min: int
    runs: tuple[RunSpec, ...]
    cpus: int  # per node
    slurm: Slurm
    memory_mb: int | None = None  # per node; None leaves it to the partition
    gres: str | None = None  # per node, with its count: gpu:a100:4
    preflight: keys.Preflight = field(default_factory=lambda: keys.Preflight(enabled=False))
    transport: Transport = "any"
    max_log_mb_per_node: int = terms.DEFAULT_LOG_MB
    hang: keys.Hang | None = None  # like the Slurm options, not part of a run
    monitor: keys.Monitor | None = None
    witness: WitnessLimits | None = None  # of runs that follow their batches, before the others; at the first scale
    more: tuple[RunSpec, ...] = ()  # further repeats, made as far as gates.repeats asks for them
    until_percent: float = 0.0  # half the interval of an efficiency that is known well enough

    @property
    def at_least(self) -> int:
        """Return the number of repeats without further ones, also if some have been made (``as_made``)."""
        return self.more[0].repeat - 1 if self.more else max(run.repeat for run in self.runs)

    @property
    def at_most(self) -> int:
        return self.more[-1].repeat if self.more else self.at_least

    @property
    def is_adaptive(self) -> bool:
        return self.at_most > self.at_least

    def cpus_per_task(self, tasks_per_node: int) -> int:
        """Return a task's share of the node's CPUs. Slurm has none with fewer than one."""
        return max(1, self.cpus // tasks_per_node)


@with_config(IN_A_MODEL)
@dataclass(frozen=True)
class Plan:
    """Every stage's jobs, in climbing order."""

    site: str
    results: str
    jobs: tuple[ScaleJob, ...]
    gates: Mapping[str, GateThresholds] = field(default_factory=dict)  # by stage
    may_differ: tuple[str, ...] = ()  # fields of the fingerprint; like the gates, not part of a run
    # The settings, while the batch is a range and none is chosen: the runs have its smallest one until then.
    batch_search: Mapping[str, Any] | None = None
    units: Units = field(default_factory=Units)
    schema_version: Version1 = 1

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(job.stage for job in self.jobs))

    @property
    def runs(self) -> tuple[RunSpec, ...]:
        return tuple(run for job in self.jobs for run in job.runs)

    @property
    def first_scale(self) -> Scale:
        """Return the scale of stage 1, the baseline of every efficiency."""
        return first_scale(self.runs)

    @property
    def hour_unit(self) -> HourUnit:
        return HourUnit(unit_of(self.runs), self.units.hours)

    def job(self, scale: Scale) -> ScaleJob:
        """Return the job of a scale. Raises KeyError if the plan has none."""
        for job in self.jobs:
            if job.scale == scale:
                return job
        raise KeyError(str(scale))

    def stage_jobs(self, stage: str) -> tuple[ScaleJob, ...]:
        return tuple(job for job in self.jobs if job.stage == stage)

    def stage_before(self, stage: str) -> str | None:
        """Return the stage whose gate must be open before this one; None for the first."""
        index = self.stages.index(stage)
        return self.stages[index - 1] if index else None

    def to_json(self) -> dict[str, Any]:
        return _adapter().dump_python(self, mode="json")  # type: ignore[no-any-return]


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)  # takes longer than the rest of this module, which agents import, too


REWRITE = "run `snakemake --cores 1 plan`, which writes it again from config/"


def read_plan(path: Path, rewrite: str = REWRITE) -> Plan:
    """Read plan.json. Raises UserError, with the next step, if it is missing or invalid. rewrite: what makes it."""
    try:
        return _adapter().validate_python(read_json(path))
    except FileNotFoundError:
        advice = "run `snakemake --cores all` first, or name the results with --results"
        raise UserError(Problem(str(path), "there is no plan here", next=advice)) from None
    except (OSError, ValueError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else str(error)
    what = "this is no plan of this version of ddp-ladder"
    raise UserError(Problem(str(path), what, why, next=f"use the version that wrote it; or {rewrite}"))


def unit_of(runs: Iterable[RunSpec]) -> str:
    """Return whose hours are counted: GPU, or process on a site without."""
    return "GPU" if any(is_gpu(run.device) for run in runs) else "process"


def first_scale(runs: Iterable[RunSpec]) -> Scale:
    """Return the scale of stage 1; one GPU if none of the runs is of that stage."""
    return next((run.scale for run in runs if run.stage == STAGES[0]), ONE_GPU)


def make_plan(settings: Settings) -> Plan:
    """Return the plan, with every run of every stage resolved."""
    experiment, search = settings.experiment, None
    if isinstance(experiment.workload.batch_per_gpu, BatchRange):
        models = {"experiment": experiment, "site": settings.site}
        search = {name: model.model_dump(mode="json", by_alias=True) for name, model in models.items()}
        settings = settings.with_batch(experiment.workload.least_batch)
    first, *others = (_job(settings, stage, scale) for stage in experiment.ladder for scale in stage.scales)
    steps, seconds = experiment.measure.witness_steps, experiment.measure.witness_s
    witness = None if steps == "off" else WitnessLimits(steps=steps, seconds=seconds)
    jobs = (replace(first, witness=witness), *others)
    gates = {stage.name: stage.gate for stage in experiment.ladder}
    may_differ, units = experiment.fingerprint.may_differ, Units.of(settings)
    return Plan(settings.site.site, experiment.results, jobs, gates, may_differ, search, units)


def _job(settings: Settings, stage: Stage, scale: Scale) -> ScaleJob:
    experiment, node, gpus = settings.experiment, settings.site.node, scale.gpus_per_node
    repeats, hang = experiment.repeats, experiment.hang
    runs = _runs(settings, stage, scale)
    return ScaleJob(
        stage=stage.name,
        scale=scale,
        runtime_min=stage.runtime,
        runs=tuple(run for run in runs if run.repeat <= repeats.at_least),
        more=tuple(run for run in runs if run.repeat > repeats.at_least),
        until_percent=repeats.until_percent,
        # The same share per GPU at every scale.
        cpus=max(1, node.cpus * gpus // node.gpus),
        memory_mb=None if node.memory_mb is None else max(1, node.memory_mb * gpus // node.gpus),
        gres=None if node.gres is None else f"{node.gres}:{gpus}",
        slurm=settings.site.slurm.overridden(stage.slurm),
        preflight=experiment.preflight,
        transport=settings.site.network.transport,
        max_log_mb_per_node=experiment.logs.max_mb_per_node,
        hang=None if hang.times_median_step is None and hang.first_step_s is None else hang,
        monitor=experiment.monitor if experiment.monitor.enabled else None,
    )


def chain_plan(settings: Settings, stage: Stage, scale: Scale, mode: Mode, results: str) -> Plan:
    """Return the plan of a chain of jobs: one run of the reference variant, which the script ends itself.

    stage: with the runtime and the Slurm options of each job; its name is production or rehearsal.
    """
    experiment, reference = settings.experiment, terms.REFERENCE_VARIANT
    args = experiment.workload.args if experiment.production.args is None else experiment.production.args
    whole = {"max_steps": None, "max_seconds": None, "profile_steps": 0, "count_flops": False}
    of_chain = {
        "results": results,
        "modes": (mode,),
        "repeats": keys.Repeats(at_least=1),
        "variants": {reference: experiment.variants[reference]},
        "measure": experiment.measure.replace(**whole),
        "workload": experiment.workload.model_copy(update={"args": args}),
    }
    job = _job(replace(settings, experiment=experiment.model_copy(update=of_chain)), stage, scale)
    if stage.name == terms.PRODUCTION and experiment.measure.production == "off":
        job = replace(job, runs=tuple(run.replace(instrument=False) for run in job.runs))
    return Plan(settings.site.site, results, (job,), {}, experiment.fingerprint.may_differ, units=Units.of(settings))


def _runs(settings: Settings, stage: Stage, scale: Scale) -> tuple[RunSpec, ...]:
    """Return the runs of a scale, repeats outermost, each with all variants and modes."""
    experiment, variants = settings.experiment, variants_of(settings.experiment, stage.name)
    # The plain baseline comes last in the first repeat: what the default variant took says when it has hung.
    measured = sorted(product(experiment.modes, variants), key=lambda run: run[1] == PLAIN_VARIANT)
    return tuple(
        _resolve(settings, stage, scale, (name, variants[name]), mode, repeat)
        for repeat in range(1, experiment.repeats.most + 1)
        for mode, name in balanced(measured, repeat)
    )


def balanced(items: Sequence[Item], repeat: int) -> Sequence[Item]:
    """Return the order of a repeat, from 1: ABC CBA, then BCA ACB, and so on.

    In each pair of repeats every item has the same mean place, so that a steady drift favours none of them; the
    rotation gives the first place, on a cold machine, to each in turn.
    """
    first = (repeat - 1) // 2 % len(items)
    order = (*items[first:], *items[:first])
    return order if repeat % 2 else order[::-1]


def variants_of(experiment: Experiment, stage: str) -> dict[str, Variant]:
    """Return the variants that a stage measures. One process alone cannot use several nodes.

    The plain baseline is one of them in stage1, if that is one GPU, unless measure.plain_baseline is false.
    """
    variants = dict(experiment.variants)
    if any(scale.nodes > 1 for rung in experiment.ladder if rung.name == stage for scale in rung.scales):
        variants = {name: variant for name, variant in variants.items() if variant.launcher in (None, *WITH_RANKS)}
    if stage == STAGES[0] and experiment.first_scale == ONE_GPU and experiment.measure.plain_baseline:
        variants[PLAIN_VARIANT] = experiment.variants[terms.REFERENCE_VARIANT].replace(launcher=Python.name)
    return variants


def argument_values(spec: RunSpec, run_dir: str, data_dir: str | None, start_dir: str) -> dict[str, object]:
    """Return the values of a run's placeholders; paths are relative to its working directory."""
    paths = dict(zip(PATH_PLACEHOLDERS, (run_dir, data_dir, start_dir), strict=True))
    of_run = {name: getattr(spec, name) for name in PLACEHOLDERS if name not in PATH_PLACEHOLDERS}
    of_run["accumulation"] = spec.accumulation or 1
    return {**of_run, **paths, "lr": None if spec.lr is None else f"{spec.lr:.10g}"}


def filled(spec: RunSpec, results: str) -> RunSpec:
    """Return the spec with its templates filled in; paths are relative to where Snakemake was started.

    So a spec does not depend on the checkout's path; ``launch.script_argv`` uses the paths of a run.
    """
    run_dir = f"{results}/runs/{spec.name}"
    values = argument_values(spec, run_dir, spec.data_dir, ".")
    in_work, of_wrapper = ({**values, "run_dir": f"{run_dir}/{own}"} for own in (OWN_DIRECTORY, WRAPPER_DIRECTORY))
    directory = spec.directory_template
    return spec.replace(
        args=tuple(expand(argument, values) for argument in spec.args_template),
        env={name: expand(value, values) for name, value in spec.env_template.items()},
        directory=None if directory is None else expand(directory, in_work),
        wrapper=tuple(expand(word, of_wrapper) for word in spec.wrapper_template),
    )


def _resolve(
    settings: Settings, stage: Stage, scale: Scale, named_variant: tuple[str, Variant], mode: Mode, repeat: int
) -> RunSpec:
    experiment, site = settings.experiment, settings.site
    name, variant = named_variant
    workload, measure = experiment.workload, experiment.measure
    first_size = experiment.first_scale.world_size
    batch, global_batch = terms.batches(workload.least_batch, mode, scale.world_size, first_size, workload.global_batch)
    _, first_batch = terms.batches(workload.least_batch, mode, first_size, first_size, workload.global_batch)
    wanted = variant.network.backend or site.network.backend
    container, data = site.software.container, [] if workload.data_dir is None else [workload.data_dir]
    secrets = dict.fromkeys(workload.secrets, FROM_ENVIRONMENT)
    accelerator, launcher = ACCELERATORS[site.node.device], variant.launcher or site.launcher
    binds = accelerator.is_gpu and LAUNCHERS[launcher].binds_numa and scale.gpus_per_node == site.node.gpus
    spec = RunSpec(
        stage=stage.name,
        variant=name,
        mode=mode,
        nodes=scale.nodes,
        gpus_per_node=scale.gpus_per_node,
        repeat=repeat,
        batch_per_gpu=batch,
        global_batch=global_batch,
        accumulation=None if workload.global_batch is None else global_batch // (batch * scale.world_size),
        lr=terms.scaled_lr(workload.lr, workload.lr_rule, global_batch / first_batch),
        seed=workload.seed + repeat - 1,
        samples_per_step=None,
        throughput_regex=workload.throughput_regex,
        script=workload.script,
        args=(),
        args_template=workload.args + variant.args,
        directory=None,
        directory_template=workload.directory,
        data_dir=workload.data_dir,
        env={},
        env_template={**site.network.env, **workload.env, **variant.env, **secrets},
        python=site.software.python,
        modules=site.software.modules,
        setup=site.software.setup,
        container=container and container.replace(binds=(*container.binds, *data)),
        launcher=launcher,
        numa_binding=(variant.numa_binding or site.numa_binding) if binds else None,
        wrapper_template=workload.wrapper if variant.wrapper is None else variant.wrapper,
        wrapper_per=variant.wrapper_per or workload.wrapper_per,
        device=site.node.device,
        backend=accelerator.backend if wanted == "auto" else wanted,
        backend_wanted=wanted,
        interface=variant.network.interface or site.network.interface,
        cpus_per_node=site.node.cpus,
        threads_per_rank=site.node.threads_per_rank,
        warmup_steps=measure.warmup_steps_on(site.node.device),
        min_steps=measure.min_steps,
        max_steps=measure.max_steps,
        max_seconds=measure.max_seconds,
        profile_steps=measure.profile_steps,
        count_flops=measure.count_flops and scale == experiment.first_scale,
    )
    if workload.samples_per_step is not None:
        values = argument_values(spec, ".", spec.data_dir, ".")
        spec = spec.replace(samples_per_step=whole_number(workload.samples_per_step, values))
    return filled(spec, experiment.results)
