"""The runs that follow their batches to the parameters: which there are, and the key of what decides their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ddp_ladder.common.files import canonical_sha256
from ddp_ladder.common.formats import count, duration, grouped, in_short
from ddp_ladder.plan.fit import script_digest
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob, WitnessLimits, filled
from ddp_ladder.settings.terms import REFERENCE_VARIANT

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
    return WitnessRun(key, _followed(first, limits, results), tuple(variants))


def _followed(spec: RunSpec, limits: WitnessLimits, results: str) -> RunSpec:
    """Return what a witness run executes: nothing of it is measured."""
    ends = {"max_steps": limits.steps, "max_seconds": limits.seconds}
    short = spec.replace(**ends, warmup_steps=0, min_steps=1, profile_steps=0, count_flops=False)
    return filled(short, f"{results}/{place_of(spec.variant)}")


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
