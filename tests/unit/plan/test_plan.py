from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from ddp_ladder.plan.plan import Plan, RunSpec, make_plan
from ddp_ladder.plan.text import plan_text
from ddp_ladder.settings.keys import Experiment, Network, Node, Settings, Site, Slurm, Software
from ddp_ladder.settings.terms import Scale

STAGES: dict[str, Any] = {
    "stage1": {"scales": ["1x1"], "runtime": 10},
    "stage2": {"scales": ["1x2", "1x4"], "runtime": 20, "gate": {"min_efficiency": 0.8}},
    "stage3": {"scales": ["2x4"], "runtime": 30, "gate": {"min_samples_per_s": 5.0}},
}
ARGUMENTS = ["--batch", "{batch_per_gpu}", "--lr", "{lr}"]
NODE = {"gpus": 4, "device": "cuda", "cpus": 32}


def settings(
    *, workload: Mapping[str, Any] | None = None, site: Mapping[str, Any] | None = None, **keys: Any
) -> Settings:
    """Settings of a 4-GPU site with stages 1x1, 1x2 and 1x4, 2x4; keywords replace keys."""
    work = {"script": "train.py", "args": ARGUMENTS, "batch_per_gpu": 64, "lr": 0.1, "seed": 7, **(workload or {})}
    experiment = {"measure": {"warmup_steps": 10}, "repeats": 1, "stages": STAGES, **keys, "workload": work}
    place = {"site": "here", "node": NODE, **(site or {})}
    return Settings(Experiment.model_validate(experiment), Site.model_validate(place))


def run_of(plan: Plan, name: str) -> RunSpec:
    return next(run for run in plan.runs if run.name == name)


def test_stages_and_jobs() -> None:
    plan = make_plan(settings())
    assert plan.stages == ("stage1", "stage2", "stage3")
    assert [(job.stage, str(job.scale), job.runtime_min) for job in plan.jobs] == [
        ("stage1", "1x1", 10), ("stage2", "1x2", 20), ("stage2", "1x4", 20), ("stage3", "2x4", 30),
    ]  # fmt: skip
    assert [plan.stage_before(stage) for stage in plan.stages] == [None, "stage1", "stage2"]
    assert plan.gates["stage3"].min_samples_per_s == 5.0
    with pytest.raises(KeyError, match="3x3"):
        plan.job(Scale(3, 3))


def from_1x2(**changes: Any) -> Settings:
    """Return settings of a training that does not fit one GPU: 1x2, 1x4, 2x4."""
    scales = {"stage1": {"scales": ["1x2"]}, "stage2": {"scales": ["1x4"]}}
    return settings(stages={**STAGES, **scales}, **changes)


def test_a_ladder_that_starts_at_two_gpus() -> None:
    """batch_per_gpu and lr are those of 1x2; the plain baseline is one GPU, so there is none."""
    plan = make_plan(from_1x2(modes=("weak", "strong")))
    assert plan.first_scale == Scale(1, 2)
    assert [f"{job.stage} {job.scale}" for job in plan.jobs] == ["stage1 1x2", "stage2 1x4", "stage3 2x4"]
    assert {run.variant for run in plan.runs} == {"default"}
    runs = [run_of(plan, f"default/{name}/r1") for name in ("strong/1x2", "strong/2x4", "weak/2x4")]
    assert [(run.batch_per_gpu, run.global_batch) for run in runs] == [(64, 128), (16, 128), (64, 512)]
    assert [run.lr for run in runs] == pytest.approx([0.1, 0.1, 0.4])
    assert "plain" in {run.variant for run in make_plan(settings()).runs}


@pytest.mark.parametrize(("rule", "growth"), [("linear", 8), ("sqrt", math.sqrt(8)), ("none", 1)])
def test_learning_rate_follows_the_global_batch(rule: str, growth: float) -> None:
    plan = make_plan(settings(workload={"lr_rule": rule}, modes=("weak", "strong")))
    weak, strong = (run_of(plan, f"default/{mode}/2x4/r1") for mode in ("weak", "strong"))
    assert [weak.lr, float(weak.args[3]), strong.lr] == pytest.approx([0.1 * growth, 0.1 * growth, 0.1])
    assert (weak.args[:2], strong.args[:2]) == (("--batch", "64"), ("--batch", "8"))


def test_a_fixed_global_batch_is_accumulated_in_fewer_batches_on_more_gpus() -> None:
    work = {"global_batch": 1024, "args": ["--accumulate", "{accumulation}"]}
    plan = make_plan(settings(workload=work, modes=("strong",)))
    runs = {str(run.scale): run for run in plan.runs if not run.is_plain}
    assert {scale: run.args[1] for scale, run in runs.items()} == {"1x1": "16", "1x2": "8", "1x4": "4", "2x4": "2"}
    assert {(run.batch_per_gpu, run.global_batch, run.lr) for run in plan.runs} == {(64, 1024, 0.1)}
    assert {run.accumulation for run in make_plan(settings()).runs} == {None}
    assert "batch 64 per GPU, 1024 in all (2 accumulated)" in plan_text(plan, ["stage3"], {})


def test_every_placeholder() -> None:
    names = (
        "batch_per_gpu global_batch accumulation lr nodes gpus_per_node world_size threads_per_rank run_dir data_dir "
        "start_dir seed backend".split()
    )
    arguments = tuple(f"--{name}={{{name}}}" for name in names)
    variables = {"MEMORY": "{data_dir}:{lr}", "N": "{global_batch} // {nodes}"}
    plan = make_plan(settings(workload={"args": arguments, "data_dir": "d", "env": variables}, repeats=2))
    run = run_of(plan, "default/weak/2x4/r2")
    assert run.args == (
        "--batch_per_gpu=64", "--global_batch=512", "--accumulation=1", "--lr=0.8", "--nodes=2", "--gpus_per_node=4",
        "--world_size=8", "--threads_per_rank=8", "--run_dir=results/runs/default/weak/2x4/r2", "--data_dir=d",
        "--start_dir=.", "--seed=8", "--backend=nccl",
    )  # fmt: skip
    assert run.args_template == arguments
    assert run.env == {"MEMORY": "d:0.8", "N": "256"}
    assert run.env_template == variables


def test_the_order_of_a_repeat_is_mirrored_by_the_next_and_then_rotated() -> None:
    plan = make_plan(settings(repeats=3, modes=("weak", "strong"), variants={"default": {}, "gloo": {}}))
    assert [run.name for run in plan.job(Scale(1, 2)).runs] == [
        "default/weak/1x2/r1", "gloo/weak/1x2/r1", "default/strong/1x2/r1", "gloo/strong/1x2/r1",
        "gloo/strong/1x2/r2", "default/strong/1x2/r2", "gloo/weak/1x2/r2", "default/weak/1x2/r2",
        "gloo/weak/1x2/r3", "default/strong/1x2/r3", "gloo/strong/1x2/r3", "default/weak/1x2/r3",
    ]  # fmt: skip
    first = [run.name.replace("/1x1", "") for run in plan.job(Scale(1, 1)).runs]
    assert first[4:8] == ["plain/weak/r1", "plain/strong/r1", "plain/strong/r2", "plain/weak/r2"]


def test_a_variant_overrides_the_site_and_adds_to_the_workload() -> None:
    ring = {
        "launcher": "srun", "network": {"backend": "gloo", "interface": "ib1"}, "args": ["--amp", "{backend}"],
        "env": {"A": "variant", "C": "variant"},
    }  # fmt: skip
    network = Network(backend="nccl", interface="ib0", env={"A": "site", "B": "site", "D": "site"})
    site = {"network": network, "software": Software(python="/opt/python")}
    workload = {"env": {"A": "workload", "B": "workload"}, "args": ("-x",)}
    plan = make_plan(settings(variants={"default": {}, "ring": ring}, workload=workload, site=site))
    run, base = (run_of(plan, f"{name}/weak/1x2/r1") for name in ("ring", "default"))
    assert (run.launcher, run.backend, run.backend_wanted) == ("srun", "gloo", "gloo")
    assert (run.interface, run.args) == ("ib1", ("-x", "--amp", "gloo"))
    assert run.env == {"A": "variant", "B": "workload", "C": "variant", "D": "site"}
    assert (base.launcher, base.backend, base.interface) == ("torchrun", "nccl", "ib0")
    assert base.env == {"A": "workload", "B": "workload", "D": "site"}
    assert base.python == "/opt/python"


@pytest.mark.parametrize(
    ("device", "cpus", "chosen", "backend", "steps", "threads"),
    [("cuda", 32, None, "nccl", 20, 8), ("cpu", 3, None, "gloo", 10, 1), ("cuda", 6, 0, "nccl", 0, 1)],
)
def test_what_follows_from_the_node(
    device: str, cpus: int, chosen: int | None, backend: str, steps: int, threads: int
) -> None:
    given = settings(measure={"warmup_steps": chosen}, site={"node": {"gpus": 4, "device": device, "cpus": cpus}})
    plan = make_plan(given)
    runs = {(run.backend, run.backend_wanted, run.warmup_steps, run.threads_per_rank) for run in plan.runs}
    assert runs == {(backend, "auto", steps, threads)}
    assert (plan.jobs[0].cpus, plan.jobs[0].memory_mb, plan.jobs[0].gres) == (max(1, cpus // 4), None, None)


GLOO = {"backend": "gloo", "interface": "ib0", "env": {"A": "1"}}
# Keys with another value, by section, each of which changes what is measured.
CHANGES: dict[str, dict[str, Any]] = {
    "workload": {
        "script": "other.py", "samples_per_step": "8", "throughput_regex": "([0-9]+)", "args": ["--amp"], "lr": 0.2,
        "batch_per_gpu": 32, "seed": 8, "env": {"A": "1"}, "directory": "{run_dir}", "data_dir": "data",
        "wrapper": ["env"],
    },
    "measure": {"warmup_steps": 11, "min_steps": 31, "max_steps": 99, "max_seconds": 99.0, "profile_steps": 5},
    "site": {"launcher": "srun", "software": {"python": "p"}, "node": {**NODE, "device": "cpu"}, "network": GLOO},
}  # fmt: skip
NO_CHANGES: dict[str, dict[str, Any]] = {
    "workload": {"prepare": ["prepare.py"]},
    "site": {
        "site": "there", "network": {"transport": "ib"}, "slurm": {"partition": "gpu", "extra": ["--exclusive"]},
        "node": {**NODE, "gres": "gpu:a100", "memory_mb": 256_000},
    },
    "preflight": {"timeout_s": 9},
    "fingerprint": {"may_differ": ["num_workers"]},
    "stages": {
        "stage2": {**STAGES["stage2"], "runtime": 99, "gate": {"min_efficiency": 0.1}, "slurm": {"partition": "debug"}}
    },
}  # fmt: skip


def hashes(table: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The hash of 1x4 with each of these values alone."""
    beside = {"measure": {"warmup_steps": 10}, "stages": STAGES}  # as without a change
    given = [
        settings(**{section: {**beside.get(section, {}), key: value}})
        for section, values in table.items()
        for key, value in values.items()
    ]
    return [run_of(make_plan(changed), "default/weak/1x4/r1").hash for changed in given]


def test_the_hash_changes_with_all_that_is_measured_and_nothing_else() -> None:
    others, same = hashes(CHANGES), hashes(NO_CHANGES)
    assert len({*others, *same}) == len(others) + 1
    unlike = (settings(repeats=5), settings(results="elsewhere"), settings(variants={"default": {}, "b": {}}))
    assert {run_of(make_plan(given), "default/weak/1x4/r1").hash for given in unlike} == {*same}


@pytest.mark.parametrize(
    ("scale", "cpus", "memory_mb", "gres"),
    [("1x1", 8, 64_000, "gpu:a100:1"), ("1x2", 16, 128_000, "gpu:a100:2"),
     ("1x4", 32, 256_000, "gpu:a100:4"), ("2x4", 32, 256_000, "gpu:a100:4")],
)  # fmt: skip
def test_a_job_gets_the_share_of_its_gpus(scale: str, cpus: int, memory_mb: int, gres: str) -> None:
    node = Node(gpus=4, device="cuda", cpus=32, gres="gpu:a100", memory_mb=256_000)
    job = make_plan(settings(site={"node": node})).job(Scale.parse(scale))
    assert (job.cpus, job.memory_mb, job.gres) == (cpus, memory_mb, gres)


def test_a_stage_has_its_own_slurm_values_over_the_site_s() -> None:
    debug = {**STAGES["stage2"], "slurm": {"partition": "debug"}}
    site = Slurm(account="me", partition="gpu")
    plan = make_plan(settings(stages={**STAGES, "stage2": debug}, site={"slurm": site}))
    assert plan.job(Scale(1, 1)).slurm == plan.job(Scale(2, 4)).slurm == site
    assert plan.job(Scale(1, 2)).slurm == plan.job(Scale(1, 4)).slurm == Slurm(account="me", partition="debug")


def test_stage_1_has_the_plain_baseline_beside_the_others() -> None:
    variants = {"default": {"env": {"A": "1"}}, "b": {"launcher": "srun", "args": ["--fast"]}}
    plan = make_plan(settings(repeats=2, variants=variants))
    plain = [run for run in plan.runs if run.is_plain]
    assert [run.name for run in plain] == ["plain/weak/1x1/r1", "plain/weak/1x1/r2"]
    assert [run.variant for run in plan.jobs[0].runs] == ["default", "b", "plain", "plain", "b", "default"]
    default = plan.runs[0]
    assert plain[0].replace(variant="default", launcher=default.launcher, args=default.args) == default
    assert (plain[0].launcher, plain[0].env) == ("python", {"A": "1"})
    without = make_plan(settings(measure={"warmup_steps": 10, "min_steps": 30, "plain_baseline": False}))
    assert not any(run.is_plain for run in without.runs)
