"""One row of accounting.csv: what a job asked for, held and used. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.accounting.job_file import JobFile, Kind
from ddp_ladder.accounting.parts import Parts
from ddp_ladder.accounting.sampled import total
from ddp_ladder.accounting.slurm_job import SlurmJob, energy_j, memory_bytes_per_node
from ddp_ladder.common.model import Model

MB = 1024**2  # Slurm's
HOUR_S = 3600.0
J_PER_KWH = 3.6e6

Source = Literal["sacct", "scontrol", "none"]
UseSource = Literal["sacct", "sstat", "monitor"]
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class JobRow(Model):
    """One job in results/accounting.csv. A field is empty if nothing measured it."""

    job_id: str = Field(description="Slurm's; with .2, .3, ... for later starts in one allocation.")
    kind: Kind
    stage: str
    scale: str
    source: Source = Field(description="Who reports times, state and resources; none: the job itself.")
    state: str = Field(description="Slurm's; without Slurm ENDED.")
    exit_code: str | None = Field(default=None, description="Exit code and signal, 0:0.")
    submitted_at: str | None = Field(default=None, description="UTC, as are the next two.")
    started_at: str | None = None
    ended_at: str
    queue_wait_s: Amount | None = None
    elapsed_s: Amount
    limit_s: Amount | None = None
    nodes: Count
    node_list: str | None = None
    gpus: Count = Field(description="Allocated; if Slurm does not count them, those of the scale.")
    cpus: Count = Field(description="Allocated.")
    runs_planned: Count = Field(description="This one and the next two count no plain baseline.")
    runs_measured: Count = Field(description="By this job, without those that were kept from an earlier one.")
    runs_ok: Count
    preflight_s: Amount
    startup_s: Amount = Field(description="Of its runs, from launch to the end of the first step.")
    training_s: Amount = Field(description="Of its runs, from there to the end of the script.")
    run_other_s: Amount = Field(description="Rest of its runs: their ends, and runs whose ranks left no times.")
    idle_s: Amount = Field(description="Rest of the job: its begin, between runs, waiting.")
    gpu_hours_asked: Amount | None = Field(default=None, description="Time limit x GPUs.")
    gpu_hours_held: Amount = Field(description="elapsed_s x GPUs.")
    gpu_hours_training: Amount = Field(description="training_s x GPUs of the scale.")
    gpu_hours_busy: Amount | None = Field(default=None, description="The same, weighted by NVML's busy fraction.")
    cpu_s: Amount | None = Field(default=None, description="CPU time of all processes; by sstat a lower bound.")
    cpu_source: UseSource | None = None
    cpu_efficiency: Amount | None = Field(default=None, description="cpu_s / (elapsed_s x cpus).")
    cpu_cores_most_per_node: Amount | None = Field(
        default=None, description="Cores that the training used on a node at most."
    )
    memory_asked_mb_per_node: Count | None = Field(default=None, description="In Slurm's MB, 1024 to the GB.")
    memory_used_mb_per_node: Count | None = None
    memory_source: UseSource | None = None
    memory_efficiency: Amount | None = Field(default=None, description="Used / asked.")
    samples: Count = Field(description="Trained by its runs.")
    energy_nvml_j: Amount | None = Field(
        default=None, description="Of the GPUs, in the runs: NVML's counter or integral of power."
    )
    energy_sacct_j: Amount | None = Field(
        default=None, description="Of the nodes, in the job steps: Slurm's ConsumedEnergy."
    )
    energy_rapl_j: Amount | None = Field(default=None, description="Of the processors, in the runs: RAPL.")
    joules_per_sample_nvml: Amount | None = Field(
        default=None, description="In the measured training, without warm-up and validation."
    )
    joules_per_sample_sacct: Amount | None = Field(default=None, description="With start-up and preflight.")
    joules_per_sample_rapl: Amount | None = Field(
        default=None, description="In the measured training, without warm-up and validation."
    )
    kwh_per_run_nvml: Amount | None = None
    kwh_per_run_sacct: Amount | None = None
    kwh_per_run_rapl: Amount | None = None
    runs_at_most: Count = Field(default=0, description="runs_planned with all further repeats.")
    specs: str = Field(default="", description="Digest of the planned runs: rows of the same runs can be compared.")


def row_of(name: str, stage: str, scale: str, file: JobFile | None, slurm: SlurmJob | None, parts: Parts) -> JobRow:
    """Return the row of a job that is over.

    name: of its file. file: None if it never started. slurm: None if Slurm is not asked or does not know it; the file
    then has an end.
    """
    begin_s, end_s = _times(file, slurm)
    elapsed_s = max(0.0, end_s - begin_s)
    gpus = slurm.gpus if slurm and slurm.gpus is not None else file.gpus if file else 0
    cpus = slurm.cpus if slurm else file.cpus_per_node * file.nodes if file else 0
    limit_s = slurm.limit_s if slurm else 60.0 * file.runtime_min if file else None
    known = {
        "job_id": name,
        "kind": file.kind if file else "measure",
        "stage": stage,
        "scale": scale,
        "source": slurm.source if slurm else "none",
        "state": slurm.state if slurm else "ENDED",
        "exit_code": slurm.exit_code if slurm else None,
        "submitted_at": _utc(slurm.submit_s) if slurm else None,
        "started_at": None if slurm and not slurm.node_list else _utc(begin_s),  # cancelled while it waited
        "ended_at": _utc(end_s),
        "queue_wait_s": max(0.0, begin_s - slurm.submit_s) if slurm and slurm.submit_s is not None else None,
        "elapsed_s": elapsed_s,
        "limit_s": limit_s,
        "nodes": slurm.nodes if slurm else file.nodes if file else 0,
        "node_list": slurm.node_list or None if slurm else None,
        "gpus": gpus,
        "cpus": cpus,
        "gpu_hours_asked": None if limit_s is None else limit_s * gpus / HOUR_S,
        "gpu_hours_held": elapsed_s * gpus / HOUR_S,
        "specs": file.specs if file else "",
    }
    of_runs = _runs(file, parts)
    return JobRow.model_validate(
        {
            **known,
            **_phases(elapsed_s, parts),
            **of_runs,
            **_processors(file, slurm, parts, elapsed_s * cpus),
            **_memory(file, slurm, parts),
            **_energy(slurm, parts),
        }
    )


def _times(file: JobFile | None, slurm: SlurmJob | None) -> tuple[float, float]:
    if slurm is not None and slurm.end_s is not None:
        return slurm.end_s - slurm.elapsed_s, slurm.end_s
    if file is None or file.ended_at_s is None:
        raise ValueError("a row needs the end of its job")
    return file.begun_at_s, file.ended_at_s


def _phases(elapsed_s: float, parts: Parts) -> dict[str, float]:
    """Return the parts of the elapsed time, which they add up to: Slurm rounds it to seconds."""
    left_s = elapsed_s
    found = {}
    other_s = parts.runs_s - parts.startup_s - parts.training_s
    for name, value_s in (
        ("training_s", parts.training_s),
        ("startup_s", parts.startup_s),
        ("preflight_s", parts.preflight_s),
        ("run_other_s", other_s),
    ):
        found[name] = min(max(0.0, value_s), left_s)
        left_s -= found[name]
    return {**found, "idle_s": left_s}


def _runs(file: JobFile | None, parts: Parts) -> dict[str, int | float | None]:
    judged = [run for run in parts.runs if not run.is_plain]
    busy = [run.sums.busy_gpu_s for run in parts.runs if run.training_s]
    return {
        "runs_planned": file.runs_planned if file else 0,
        "runs_at_most": file.runs_at_most if file else 0,
        "runs_measured": sum(run.is_whole for run in judged),
        "runs_ok": sum(run.is_ok for run in judged),
        "gpu_hours_training": parts.training_s * (file.gpus if file else 0) / HOUR_S,
        "gpu_hours_busy": None if (busy_s := total(busy)) is None else busy_s / HOUR_S,
        "samples": sum(run.samples for run in parts.runs),
    }


def _processors(file: JobFile | None, slurm: SlurmJob | None, parts: Parts, held_s: float) -> dict[str, object]:
    most = [cores for run in parts.runs if (cores := run.sums.cpu_cores_most) is not None]
    cpu_s, source = (slurm.cpu_s, "sacct") if slurm and slurm.cpu_s is not None else (None, None)
    if cpu_s is None and (sampled := total([run.sums.cpu_s for run in parts.runs])) is not None:
        cpu_s, source = sampled, "monitor"
    known = [step.cpu_s for step in file.steps if step.cpu_s is not None] if file else []
    if cpu_s is None and known:
        cpu_s, source = sum(known), "sstat"
    return {
        "cpu_s": cpu_s,
        "cpu_source": source,
        "cpu_efficiency": cpu_s / held_s if cpu_s is not None and held_s else None,
        "cpu_cores_most_per_node": max(most) if most else None,
    }


def _memory(file: JobFile | None, slurm: SlurmJob | None, parts: Parts) -> dict[str, object]:
    nodes = slurm.nodes if slurm else file.nodes if file else 1
    asked = slurm.memory_bytes // max(1, nodes) if slurm and slurm.memory_bytes else None
    used, source = (memory_bytes_per_node(slurm.steps, nodes), "sacct") if slurm else (None, None)
    if used is None and file is not None:
        used, source = memory_bytes_per_node(file.steps, nodes), "sstat"
    if used is None:
        # 0: no sample met a process of a short run.
        sampled = [memory for run in parts.runs if (memory := run.sums.memory_bytes_most)]
        used, source = (round(max(sampled)), "monitor") if sampled else (None, None)
    return {
        "memory_asked_mb_per_node": asked // MB if asked else None,
        "memory_used_mb_per_node": None if used is None else -(-used // MB),
        "memory_source": source,
        "memory_efficiency": used / asked if used is not None and asked else None,
    }


def _energy(slurm: SlurmJob | None, parts: Parts) -> dict[str, float | None]:
    """Return energies, each source for itself: they measure other parts of the nodes, over other times."""
    runs, measured = parts.runs, [run for run in parts.runs if run.measured_samples]
    samples = sum(run.samples for run in runs)
    whole = {
        "nvml": total([run.sums.nvml_j for run in runs]),
        "sacct": energy_j(slurm.steps) if slurm else None,
        "rapl": total([run.sums.rapl_j for run in runs]),
    }
    measured_samples = sum(run.measured_samples for run in measured)
    per_sample = {
        "nvml": (total([run.sums.nvml_measured_j for run in measured]), measured_samples),
        "sacct": (whole["sacct"], samples),
        "rapl": (total([run.sums.rapl_measured_j for run in measured]), measured_samples),
    }
    found: dict[str, float | None] = {}
    for source, value_j in whole.items():
        joules, of = per_sample[source]
        found[f"energy_{source}_j"] = value_j
        found[f"joules_per_sample_{source}"] = None if joules is None or not of else joules / of
        found[f"kwh_per_run_{source}"] = None if value_j is None or not runs else value_j / J_PER_KWH / len(runs)
    return found


def _utc(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
