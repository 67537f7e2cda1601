"""Make valid specs and records for tests from a few figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ddp_ladder.common.files import sha256
from ddp_ladder.common.findings import Finding
from ddp_ladder.measuring.statistic import Warmup
from ddp_ladder.measuring.timing import measure
from ddp_ladder.nodes.critical_rank import LoaderSpeeds, RankSteps, step_parts
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.raw_models import Ddp, Job
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, Failure, Rank, Record, Throughput, Timing, World
from ddp_ladder.records.steps import Steps
from ddp_ladder.settings.keys import GateThresholds, Slurm
from ddp_ladder.settings.terms import Scale, batches

BATCH_PER_GPU = 64
TIMED_STEPS = 12
NO_WORKERS = LoaderSpeeds(prefetch=False, batch_s=())
JOB_ID = "local-a-host-name-20261120T185429-11831"
FINGERPRINT: Mapping[str, Any] = {
    "script_sha256": sha256(b"train"),
    "args": [],
    "parameter_dtype": "float32",
    "autocast_dtype": None,
    "optimizer": "SGD",
    "num_workers": 0,
    "torch": "2.13.0",
    "cuda": None,
    "nccl": None,
    "python": "3.11.7",
    "gpu": None,
    "cpu_model": "AMD EPYC 7763 64-Core Processor",
    "cpus": 2,
    "threads": 1,
}
CUDA_FINGERPRINT: Mapping[str, Any] = {
    **FINGERPRINT,
    "autocast_dtype": "bfloat16",
    "num_workers": 8,
    "cuda": "13.0",
    "nccl": "2.27.3",
    "gpu": "NVIDIA A100-SXM4-64GB",
    "threads": 8,
    "cpus": 32,
}


def make_spec(
    scale: str = "1x1",
    *,
    stage: str | None = None,
    variant: str = "default",
    mode: str = "weak",
    repeat: int = 1,
    device: str = "cpu",
    **changes: Any,
) -> RunSpec:
    """Return a resolved run; ``changes`` are fields of RunSpec."""
    shape = Scale.parse(scale)
    batch, global_batch = batches(BATCH_PER_GPU, mode, shape.world_size, 1)
    spec = RunSpec(
        stage=stage or stage_of(shape),
        variant=variant,
        mode=mode,
        nodes=shape.nodes,
        gpus_per_node=shape.gpus_per_node,
        repeat=repeat,
        batch_per_gpu=batch,
        global_batch=global_batch,
        lr=None,
        seed=repeat - 1,
        script="workflow/workloads/mnist.py",
        args=("--batch-size", str(batch)),
        args_template=("--batch-size", "{batch_per_gpu}"),
        directory=None,
        data_dir=None,
        env={},
        env_template={},
        python=None,
        modules=(),
        setup="",
        container=None,
        launcher="torchrun",
        device=device,
        backend="nccl" if device == "cuda" else "gloo",
        backend_wanted="auto",
        interface="auto",
        cpus_per_node=2,
        threads_per_rank=1,
        warmup_steps=10,
        min_steps=30,
        max_steps=None,
        max_seconds=None,
        samples_per_step=None,
        throughput_regex=None,
    )
    return spec.replace(**{"env_template": changes.get("env", {}), **changes})


def stage_of(scale: Scale) -> str:
    if scale.nodes > 1:
        return "stage3"
    return "stage2" if scale.gpus_per_node > 1 else "stage1"


def make_specs(
    scales: Sequence[str],
    *,
    repeats: int = 3,
    variants: Sequence[str] = ("default",),
    modes: Sequence[str] = ("weak",),
    **changes: Any,
) -> tuple[RunSpec, ...]:
    """Return runs in the order of a plan: scale, repeat, mode, variant."""
    return tuple(
        make_spec(scale, variant=variant, mode=mode, repeat=repeat, **changes)
        for scale in scales
        for repeat in range(1, repeats + 1)
        for mode in modes
        for variant in variants
    )


def make_plan_of(specs: Sequence[RunSpec], site: str = "local", min_efficiency: float | None = 0.8) -> Plan:
    """Return a plan of exactly ``specs``; every stage but the first requires ``min_efficiency``."""
    scales = dict.fromkeys(spec.scale for spec in specs)
    jobs = []
    for scale in scales:
        runs = tuple(spec for spec in specs if spec.scale == scale)
        jobs.append(ScaleJob(runs[0].stage, scale, 20, runs, cpus=2, slurm=Slurm()))
    gates = {
        job.stage: GateThresholds(min_efficiency=None if job.stage == "stage1" else min_efficiency) for job in jobs
    }
    return Plan(site, "results", tuple(jobs), gates)


def repeated(samples_per_s: float, spec: RunSpec, between: float = 0.004) -> float:
    """Return the throughput of one of three repeats; between: relative difference from one repeat to the next."""
    return samples_per_s * (1 + between * (spec.repeat - 2))


def make_record(
    spec: RunSpec,
    samples_per_s: float = 1000.0,
    *,
    spread: float = 0.01,
    blocks: int = 12,
    data_wait_fraction: float = 0.02,
    exposed_comm_fraction: float | None = None,
    startup_s: float | None = 4.2,
    hosts: Sequence[str] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> Record:
    """Return a good record whose blocks are spread evenly within +-``spread`` of ``samples_per_s``.

    fingerprint: fields that replace the usual ones.
    """
    rates = samples_per_s * np.linspace(1 - spread, 1 + spread, blocks)
    step_times = spec.global_batch / rates
    step = spec.global_batch / samples_per_s
    hosts = hosts or [f"node{k}" for k in range(spec.nodes)]
    base = CUDA_FINGERPRINT if spec.device == "cuda" else FINGERPRINT
    seen = {**base, "args": list(spec.args), "batch_per_gpu": spec.batch_per_gpu, **(fingerprint or {})}
    batch = seen["batch_per_gpu"]
    record = Record(
        status="ok",
        spec=spec,
        spec_hash=spec.hash,
        job=Job(id=JOB_ID, attempt=1, run_id=sha256(spec.name.encode())),
        world=World(
            size=spec.world_size,
            backend=spec.backend,
            nodes=tuple(hosts[k % len(hosts)] for k in range(spec.nodes)),
            hosts=tuple(hosts),
        ),
        ranks=tuple(make_rank(spec, k, step, hosts, startup_s) for k in range(spec.world_size)),
        throughput=Throughput(
            samples_per_s=samples_per_s,
            samples_per_s_low=samples_per_s * (1 - spread),
            samples_per_s_high=samples_per_s * (1 + spread),
            samples_per_s_total=samples_per_s,
            samples_per_s_end_to_end=0.9 * samples_per_s,
            blocks_samples_per_s=tuple(rates.tolist()),
            source="counted",
            statistic=MEDIAN_OF_BLOCKS,
        ),
        timing=Timing(
            warmup_steps=spec.warmup_steps,
            warmup_stable=True,
            measured_steps=120,
            step_time_s=step,
            step_time_s_p5=float(step_times.min()),
            step_time_s_p95=float(step_times.max()),
            blocks_step_time_s=tuple(step_times.tolist()),
            blocks_steps=(10,) * blocks,
            drift_fraction=0.0,
            data_wait_fraction=data_wait_fraction,
            exposed_comm_fraction=exposed_comm_fraction,
            startup_s=startup_s,
            wall_s=130 * step + 5,
        ),
        fingerprint={"global_batch": batch and batch * spec.world_size, **seen},
        checks=(Finding(kind="complete", severity="note", measured="all files", wanted="all files"),),
        failure=None,
        remarks=(),
        schema_version=3,
    )
    waits_s = [data_wait_fraction * step] * spec.world_size
    return with_ranks(record, compute_s=(), exposed_comm_s=None, data_wait_s=waits_s)


def with_ranks(
    record: Record,
    *,
    compute_s: Sequence[float],
    exposed_comm_s: Sequence[float] | None,
    data_wait_s: Sequence[float],
    step_time_s: Sequence[float] | None = None,
    overlap_s: float = 0.001,
    loaders: LoaderSpeeds = NO_WORKERS,
) -> Record:
    """Return the record with each rank's times of a step, the same in every step; None: not measured.

    step_time_s: of the record if None.
    """
    assert record.timing is not None
    steps_s = step_time_s or [record.timing.step_time_s] * len(record.ranks)

    def in_each_step(values: Sequence[float]) -> npt.NDArray[np.float64]:
        return np.tile(np.array(values)[:, None], TIMED_STEPS)

    timed = exposed_comm_s is not None
    exposed = in_each_step(exposed_comm_s) if exposed_comm_s is not None else None
    step = step_parts(
        RankSteps(
            in_each_step(steps_s),
            in_each_step(data_wait_s),
            in_each_step(compute_s) if timed else None,
            exposed + overlap_s if exposed is not None else None,
            np.full_like(exposed, overlap_s) if exposed is not None else None,
            on_gpus=record.spec.device == "cuda",
        ),
        np.full(TIMED_STEPS, max(steps_s)),
        np.ones(TIMED_STEPS, bool),
        [rank.node_rank or 0 for rank in record.ranks],
        loaders,
    )
    ranks = []
    for k, rank in enumerate(record.ranks):
        ddp = None
        if exposed_comm_s is not None:
            ddp = Ddp(samples=TIMED_STEPS, exposed_comm_s=exposed_comm_s[k])
        wait = data_wait_s[k] / steps_s[k]
        ranks.append(rank.replace(step_time_s=steps_s[k], data_wait_fraction=wait, ddp=ddp))
    return record.replace(ranks=tuple(ranks), step=step)


def with_steps(record: Record, step_time_s: npt.NDArray[np.float64]) -> Record:
    """Return the record of a run with these step times on every rank, all of them measured."""
    spec, count = record.spec, len(step_time_s)
    steps = Steps(
        np.ones(count, int), np.full(count, spec.batch_per_gpu), np.zeros(count), step_time_s, np.zeros(count)
    )
    throughput, timing = measure([steps] * spec.world_size, Warmup(0, True), [], 4.2, 60.0)
    return record.replace(throughput=throughput, timing=timing)


def rank_facts(spec: RunSpec, rank: int, hosts: Sequence[str], startup_s: Mapping[str, float | None]) -> dict[str, Any]:
    """Return what a rank's end record and the record of its run have in common."""
    node, local = divmod(rank, spec.gpus_per_node)
    cuda = spec.device == "cuda"
    return {
        "rank": rank,
        "local_rank": local,
        "node_rank": None if spec.is_plain else node,
        "host": hosts[node % len(hosts)],
        "pid": 1000 + rank,
        "device": {
            "kind": spec.device,
            "index": local if cuda else None,
            "name": CUDA_FINGERPRINT["gpu"] if cuda else FINGERPRINT["cpu_model"],
            "id": f"GPU-{rank}" if cuda else f"cpu:{1000 + rank}",
        },
        "exit_code": 0,
        "ended_by": "script",
        "startup_s": startup_s,
        "peak_memory_bytes": {"host": 412_000_000, "device": 9_800_000_000 if cuda else None},
        "memory_limit_bytes": {"host": 1_648_000_000, "device": 39_200_000_000 if cuda else None},
    }


def make_rank(
    spec: RunSpec, rank: int, step_time_s: float, hosts: Sequence[str], startup_s: float | None = 4.2
) -> Rank:
    """Return rank ``rank`` of a run of 130 steps."""
    group_s = None if spec.is_plain else 0.2
    parts = {"spawn": 0.4, "import_torch": 2.1, "process_group": group_s, "first_step": 0.3, "compile": 0.0}
    return Rank(
        **rank_facts(spec, rank, hosts, {**parts, "total": startup_s}),
        steps=130,
        samples=130 * spec.batch_per_gpu,
        padding_samples=0,
        step_time_s=step_time_s,
        data_wait_fraction=0.02,
        parameters={"count": 1_199_882, "checksum": f"sha256:{'0' * 64}"},
    )


def make_failed_record(
    spec: RunSpec,
    verdict: str = "the script raised an exception",
    why: str = "rank 1: RuntimeError: connection reset by peer",
    next_step: str = "read train.log, fix the cause, and start snakemake again",
    *,
    started: bool = True,
) -> Record:
    """Return the record of a run that failed, or (``started=False``) that was skipped."""
    return Record(
        status="failed",
        spec=spec,
        spec_hash=spec.hash,
        job=Job(id=JOB_ID, attempt=1, run_id=sha256(spec.name.encode())) if started else None,
        world=World(size=None, backend=None, nodes=(), hosts=()),
        ranks=(),
        throughput=None,
        timing=None,
        fingerprint={},
        checks=(Finding(kind="exit codes", severity="error", measured="rank 1: 1", wanted="0 on every rank and node"),),
        failure=Failure(kind=None if started else "variant stopped", verdict=verdict, why=why, next=next_step),
        remarks=(),
        schema_version=3,
    )


def records_by_name(records: Sequence[Record]) -> dict[str, Record]:
    return {record.spec.name: record for record in records}


def make_gate(
    stage: str,
    verdict: str = "open",
    *,
    judged: Sequence[Mapping[str, Any]] = (),
    variants: Mapping[str, str] | None = None,
    why: str | None = None,
    next_step: str | None = None,
) -> dict[str, Any]:
    """Return the content of a gate file."""
    return {
        "schema_version": 2,
        "stage": stage,
        "verdict": verdict,
        "judged": list(judged),
        "variants": variants or {"default": verdict},
        "why": why,
        "wanted": None,
        "next": next_step,
        "points": [],
        "records": {},
    }


def make_judged(
    scale: str,
    kind: str = "efficiency",
    *,
    ok: bool = True,
    measured: str = "efficiency 0.91 (95 % interval 0.90 to 0.92)",
    wanted: str = "at least 0.80 (stages.stage2.gate.min_efficiency)",
    variant: str = "default",
    mode: str = "weak",
    repeat: int | None = None,
    next_step: str = "",
) -> dict[str, Any]:
    """Return one judgement of a gate; ``repeat`` for a check on one run."""
    return {
        "kind": kind,
        "place": f"{variant}/{mode}/{scale}" + (f"/r{repeat}" if repeat else ""),
        "severity": "note" if ok else "error",
        "measured": measured,
        "wanted": wanted,
        "next": next_step,
    }
