"""The short runs before the measured ones: which batches are tried, and which runs follow their batches. Pure.

The choice of a batch is kept in results/fit/<scale>.json. Both kinds of runs are made by run/short_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import Field

from ddp_ladder.common.files import canonical_sha256, read_as, read_bytes, readable, sha256
from ddp_ladder.common.formats import (
    DASH,
    count,
    duration,
    grouped,
    in_short,
    megabytes,
    milliseconds,
    share,
    significant,
    text_table,
)
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob, WitnessLimits, filled, make_plan
from ddp_ladder.settings.keys import BatchRange, Experiment, Settings, Site
from ddp_ladder.settings.terms import REFERENCE_VARIANT

NEARLY_BEST = 0.97  # of the best throughput: a larger batch costs memory, and often accuracy, for nothing
# Steps that are measured in a trial, where the script makes as many: what was measured in less time is mostly noise.
LEAST_STEPS, MOST_STEPS, TRIAL_S = 30, 1000, 3.0
CLOSE = 0.1  # the search ends when the largest batch that fits is known to this part
HEADINGS = ("batch per GPU", "samples/s", "step (ms)", "memory (MB)", "headroom", "outcome")

Outcome = Literal["fits", "out of memory", "too little data", "smaller batch"]


class Trial(Model):
    """One batch that was tried, in a short run of its own."""

    batch_per_gpu: int = Field(ge=1)
    outcome: Outcome
    why: str = ""  # how it ended; empty if it fits
    samples_per_s: float | None = None
    step_time_s: float | None = None
    peak_memory_bytes: int | None = None  # of the rank that used the most
    memory_headroom_fraction: float | None = None  # of what that rank can have; None if unknown

    @property
    def fits(self) -> bool:
        return self.outcome == "fits"

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row below HEADINGS."""
        memory = DASH if self.peak_memory_bytes is None else megabytes(self.peak_memory_bytes)
        known = significant(self.samples_per_s), milliseconds(self.step_time_s), memory
        return str(self.batch_per_gpu), *known, share(self.memory_headroom_fraction), self.outcome


class Fit(Model):
    """A finished search (results/fit/<scale>.json): the trials, by batch, and the choice."""

    key: str  # SHA-256 of what it depends on: another one is a reason to search again
    workload: str  # SHA-256 of what was run, whatever its batch; see workload_key
    scale: str
    headroom_percent: float
    trials: Several[Trial]
    chosen: int = Field(ge=1)
    schema_version: Version1

    @property
    def rule(self) -> str:
        first = next((trial for trial in self.trials if not trial.fits), None)
        ended = f". {first.batch_per_gpu} did not fit ({first.why})" if first else ""
        if first is None and self.chosen == self.trials[-1].batch_per_gpu:
            ended = ". It is the end of the range, and larger ones may be faster: raise `to` of workload.batch_per_gpu"
        return (
            f"Chosen: {self.chosen} per GPU, the smallest batch within {100 - 100 * NEARLY_BEST:.0f} % of the best "
            f"throughput that leaves {self.headroom_percent:g} % of a GPU's memory free{ended}"
        )


class Trials(Model):
    """The trials of a search that has not ended (results/fit/trials.json): the next job goes on from them."""

    key: str  # as of Fit
    trials: Several[Trial]
    schema_version: Version1 = 1


def search(least: int, most: int, trial: Callable[[int], bool]) -> None:
    """Find the largest batch that fits: doubling, then bisection. trial: tries a batch, returns whether it fits.

    All batches are multiples of ``least``, so that a quotient of it, or strong mode, stays whole.
    """
    fits, most = 0, most // least * least
    batch = least
    while trial(batch):
        fits = batch
        if fits == most:
            return
        batch = min(2 * batch, most)
    while fits and batch - fits > max(least, CLOSE * fits):
        middle = (fits + batch) // 2 // least * least
        if trial(middle):
            fits = middle
        else:
            batch = middle


def choice(trials: Sequence[Trial], headroom_percent: float) -> int | None:
    """Return the smallest batch within 3 % of the best throughput that leaves the headroom; None if none leaves it.

    Where it is not known what a rank can have, every batch that fits is taken to leave it.
    """
    fitting = [(trial, trial.memory_headroom_fraction) for trial in trials if trial.fits]
    roomy = [
        (trial.samples_per_s or 0.0, trial.batch_per_gpu)
        for trial, headroom in fitting
        if headroom is None or headroom * 100 >= headroom_percent
    ]
    best = max(roomy, default=(0.0, 0))[0]
    return min((batch for rate, batch in roomy if rate >= NEARLY_BEST * best), default=None)


# The plan before and after


def batch_range(plan: Plan) -> BatchRange:
    """Return the range of a plan whose batch is not chosen yet."""
    batch = _settings(plan).experiment.workload.batch_per_gpu
    assert isinstance(batch, BatchRange)
    return batch


def with_batch(plan: Plan, batch_per_gpu: int, results: str | None = None) -> Plan:
    """Return the plan of the same settings with this batch, and other results if they are given."""
    settings = _settings(plan).with_batch(batch_per_gpu)
    changed = settings.experiment.model_copy(update={"results": results or plan.results})
    return make_plan(Settings(changed, settings.site))


def _settings(plan: Plan) -> Settings:
    assert plan.batch_search is not None
    experiment, site = plan.batch_search["experiment"], plan.batch_search["site"]
    return Settings(Experiment.model_validate(experiment), Site.model_validate(site))


def trial_spec(plan: Plan, before: Sequence[Trial] = ()) -> RunSpec:
    """Return the run that is tried: the default variant's first one at the first scale, with few steps.

    before: earlier trials, whose step time says how many steps a few seconds have.
    """
    runs = plan.job(plan.first_scale).runs
    spec = next(run for run in runs if run.variant == REFERENCE_VARIANT)
    longest_s = max((trial.step_time_s or 0.0 for trial in before), default=0.0)
    wanted = min(MOST_STEPS, int(TRIAL_S / longest_s)) if longest_s else LEAST_STEPS
    steps = spec.warmup_steps + max(spec.min_steps, LEAST_STEPS, wanted)
    no_wrapper: dict[str, tuple[str, ...]] = {"wrapper": (), "wrapper_template": ()}
    return spec.replace(max_steps=min(steps, spec.max_steps or steps), profile_steps=0, **no_wrapper)


def fit_file(results: Path, scale: object) -> Path:
    """Return the file of the search in the job of a scale."""
    return results / "fit" / f"{scale}.json"


def search_key(plan: Plan) -> str:
    """Return a hash of what a search depends on: the run, its script, the range, the nodes that it asks for."""
    spec, wanted = trial_spec(plan), batch_range(plan)
    job = plan.job(spec.scale)
    nodes = [job.memory_mb, job.gres, *(getattr(job.slurm, key) for key in ("partition", "constraint", "nodelist"))]
    of_run = spec.model_dump(mode="json", exclude={"directory_template"})
    return canonical_sha256([of_run, script_digest(spec), wanted.model_dump(mode="json"), nodes])


def workload_key(plan: Plan) -> str:
    """Return a hash of what a trial runs, equal for all batches: the script, its arguments and its environment."""
    spec = trial_spec(plan)
    same = spec.model_dump(mode="json", include={"args_template", "env_template", "python", "modules", "setup"})
    return canonical_sha256([same, script_digest(spec)])


def script_digest(spec: RunSpec) -> str | None:
    """Return the digest of the script as it is now; None for a module (-m)."""
    script = Path(spec.script)
    return sha256(read_bytes(script)) if script.is_file() else None


def read_fit(path: Path) -> Fit:
    """Read a finished search. Raises OSError or ValueError."""
    return read_as(Fit, path)


def resolved(settings: Settings) -> Settings:
    """Return the settings with the batch that an earlier search of these and of the script has chosen, if any."""
    if isinstance(settings.experiment.workload.batch_per_gpu, int):
        return settings
    plan = make_plan(settings)
    fit = last_fit(Path(plan.results), plan)
    return settings.with_batch(fit.chosen) if fit and fit.key == search_key(plan) else settings


def planned(settings: Settings) -> Plan:
    """Return the plan of the resolved settings."""
    return make_plan(resolved(settings))


def fit_of(plan: Plan, results: Path) -> Fit | None:
    """Return the search that found the batch of a plan, for the script and arguments of now; None if there was none."""
    fit = last_fit(results, plan)
    is_same = fit and fit.workload == workload_key(plan) and fit.chosen == trial_spec(plan).batch_per_gpu
    return fit if is_same else None


def trials_file(results: Path) -> Path:
    """Return the file of the trials of a search that has not ended."""
    return results / "fit" / "trials.json"


def kept_trials(results: Path, key: str) -> list[Trial]:
    """Return the trials of a search of this key that has not ended."""
    kept = readable(Trials, trials_file(results))
    return [*kept.trials] if kept is not None and kept.key == key else []


def last_fit(results: Path, plan: Plan) -> Fit | None:
    """Return the last search, of whatever settings; None if there is none that can be read."""
    return readable(Fit, fit_file(results, plan.first_scale))


def fit_text(fit: Fit) -> Iterator[str]:
    """Yield the lines of the table, and the choice."""
    yield from text_table(HEADINGS, [trial.cells for trial in fit.trials], right=HEADINGS[:-1])
    yield f"\n{fit.rule}"


OF_NETWORK = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_")
"""Begins of variables that decide nothing of what is trained on."""
DECISIVE = {
    "script", "args_template", "directory_template", "data_dir", "python", "modules", "setup", "container",
    "wrapper_template", "device",
}  # fmt: skip
LONGEST = 2.0  # times the seconds of its steps: with its start-up
SHARE = 0.25  # of the time that its job has left, at most
SLOWER = "1.4 to 7.5 times"  # than measured ones: benchmarks/witness.py


@dataclass(frozen=True)
class WitnessRun:
    """A run that follows its batches, for variants that are alike in what can change which of them are trained on."""

    key: str
    spec: RunSpec
    variants: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"witness of {in_short(self.variants)}"


def place_of(variant: str) -> str:
    """Return where the files of a variant's witness run are, below the results."""
    return f"witness/{variant}"


def witness_key(spec: RunSpec, script: str | None, first_size: int) -> str:
    """Return the digest of what decides which batches a run trains on: equal at all scales, launchers and networks.

    script: the digest of its script; a module (-m) is known by its name. first_size: GPUs of the first scale.
    """
    is_kept = spec.mode == "weak" or spec.accumulation is not None
    batch = spec.batch_per_gpu if is_kept else spec.global_batch // first_size
    samples = None if spec.samples_per_step is None else str(Fraction(spec.samples_per_step, spec.batch_per_gpu))
    accumulated = None if spec.accumulation is None else spec.global_batch
    env = {name: value for name, value in spec.env_template.items() if not name.startswith(OF_NETWORK)}
    same = spec.model_dump(mode="json", include=DECISIVE)
    content = None if spec.script.startswith("-m ") else script
    return canonical_sha256([same, env, content, batch, samples, accumulated])


def has_witness(spec: RunSpec) -> bool:
    """Return True for a run whose batches can be followed; the figures of other programs are what they print."""
    return spec.instrument and spec.throughput_regex is None and not spec.is_link


def witness_runs(plan: Plan) -> tuple[WitnessRun, ...]:
    """Return the witness runs of a plan, for the scripts as they are now; none if measure.witness_steps is off."""
    job = plan.jobs[0] if plan.jobs else None
    if job is None or job.witness is None:
        return ()
    keys = {spec.name: witness_key(spec, script_digest(spec), job.scale.world_size) for spec in job.runs}
    alike = grouped((keys[spec.name], spec) for spec in job.runs if has_witness(spec))
    return tuple(_run_of(key, specs, job.witness, plan.results) for key, specs in alike.items())


def _run_of(key: str, specs: Sequence[RunSpec], limits: WitnessLimits, results: str) -> WitnessRun:
    """Return the witness run of these runs, that of the reference variant if it is among them."""
    first, *others = sorted(specs, key=lambda spec: spec.variant != REFERENCE_VARIANT)
    variants = dict.fromkeys(spec.variant for spec in (first, *others))
    ends = {"max_steps": limits.steps, "max_seconds": limits.seconds}
    short = first.replace(**ends, warmup_steps=0, min_steps=1, profile_steps=0, count_flops=False)
    return WitnessRun(key, filled(short, f"{results}/{place_of(first.variant)}"), tuple(variants))


def longest_s(limits: WitnessLimits, left_s: float) -> float:
    """Return the seconds after which a witness run is ended, if so many are left for its job."""
    return min(LONGEST * limits.seconds, SHARE * left_s)


def witnesses_in_words(job: ScaleJob, runs: Sequence[WitnessRun]) -> list[str]:
    """Return the lines of a plan on the witness runs that are still to be made; none without any."""
    if job.witness is None or not runs:
        return []
    at_most = duration(len(runs) * longest_s(job.witness, 60.0 * job.runtime_min))
    names = "; ".join(in_short(run.variants) for run in runs)
    return [
        f"Before the runs of {job.scale}: {count(len(runs), 'witness run')} ({names}), at most {at_most}. The script",
        f"makes up to {job.witness.steps:,} steps while each batch is followed to the parameters, {SLOWER} slower; it",
        "shows which batches are trained on, and nothing of it is timed.",
    ]
