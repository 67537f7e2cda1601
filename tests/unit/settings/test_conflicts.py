"""Settings that contradict each other, or name what is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings.load import load_settings

CONFIG = """\
workload:
  script: train.py
  args: [--lr, "{lr}", --batch-size, "{batch_per_gpu}"]
  batch_per_gpu: 32
  lr: 0.1
  data_dir: data
  prepare: [prepare.py, "{data_dir}"]
  env: {}
measure: {warmup_steps: 10}
modes: [weak]
stages:
  stage1: {scales: [1x1], runtime: 10}
  stage2: {scales: [1x2]}
  stage3: {scales: [2x1]}
variants:
  default: {}
"""
CLUSTER = """\
site: here
node: {gpus: 2, device: cpu, cpus: 2}
software: {python: null}
network: {backend: auto, env: {}}
"""
CONTAINER = "python: python3, container: {image: /images/a.sif, args: [--cleanenv]}"
EDF = "python: python3, container: {image: torch, engine: edf, binds: [/data]}"
ROCM = "python: python3, container: {image: pytorch, engine: podman-hpc, gpus: rocm}"


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "prepare.py"):
        Path(name).touch()
    Path("config").mkdir()


def problems(*changes: tuple[str, str]) -> str:
    """What is said of both files after replacing texts in them."""
    texts = {"config": CONFIG, "cluster": CLUSTER}
    for old, new in changes:
        assert any(old in text for text in texts.values()), old
        texts = {name: text.replace(old, new, 1) for name, text in texts.items()}
    for name, text in texts.items():
        Path(f"config/{name}.yaml").write_text(text, encoding="utf-8")
    try:
        load_settings(Path("config/config.yaml"), Path("config/cluster.yaml"))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("old", "new", "head", "detail"),
    [
        # the workload
        ("train.py", "trian.py", "2: workload.script: there is no such script", "check the spelling"),
        ("train.py", '"-m a/b"', "2: workload.script: there is no such script", '"-m package.module"'),
        ("prepare.py", "none.py", "7: workload.prepare[0]: there is no such script", "none.py"),
        ("data_dir: data", "data_dir: null", "7: workload.prepare: there is no directory", "data_dir: data/digits"),
        ("lr: 0.1", "lr: 0.1\n  throughput_regex: 'rate: [0-9]+'", "6: workload.throughput_regex: not a", "0 groups"),
        ("lr: 0.1", "lr: 0.1\n  throughput_regex: '(rate'", "6: workload.throughput_regex: not a", "missing )"),
        ("batch_per_gpu: 32", "batch_per_gpu: {from: 9, to: 5}", "4: workload.batch_per_gpu: `to`", "lower from"),
        ("batch_per_gpu: 32", "batch_per_gpu: all", "4: workload.batch_per_gpu: a value", "auto, or keys from"),
        # placeholders
        ('"{lr}"', '"{batch_pergpu}"', "3: workload.args[1]: unknown", 'did you mean "{batch_per_gpu}"?'),
        ('"{lr}"', '"{lr"', "3: workload.args[1]: { without its partner", "write literal braces twice"),
        ("env: {}", "env: {A: '{0}'}", "8: workload.env.A: unknown placeholder {0}", "{{ and }} for braces"),
        ("default: {}", "default: {args: ['{}']}", "16: variants.default.args[0]: unknown placeholder {}", "twice"),
        ("lr: 0.1", "lr: 0.1\n  wrapper: ['%q{RANK}']", "6: workload.wrapper[0]: unknown placeholder {RANK}", "{{ and"),
        ("lr: 0.1", "lr: null", "3: workload.args[1]: placeholder {lr} has no value", "(workload.lr,"),
        ('[prepare.py, "{data_dir}"]', '[prepare.py, "{lr}"]', "7: workload.prepare[1]: placeholder {lr}", "{seed};"),
        ('"{lr}"', '"{world_size} / 2"', "3: workload.args[1]: 1 / 2 is not a whole number (weak/1x1)", "quotients"),
        ('"{lr}"', '"{lr} * 2"', "3: workload.args[1]: 0.1 is not a whole number", "that are whole"),
        ("lr: 0.1", "lr: 0.1\n  samples_per_step: '{lr}'", "6: workload.samples_per_step: 0.1 is not", '"{lr}"'),
        ("lr: 0.1", "lr: 0.1\n  samples_per_step: 0", "6: workload.samples_per_step: no samples in a step", "whole"),
        # the ladder
        ("warmup_steps: 10", "max_steps: 39", "9: measure.max_steps: runs would end", "set max_steps: 40 or more"),
        ("warmup_steps: 10", "profile_steps: 5", "9: measure.profile_steps: the profiled steps", "max_seconds"),
        ("default: {}", "default: {launcher: python}", "16: variants.default.launcher: launcher python", "torchrun or"),
        ("default: {}", "default: {}\n  plain: {}", "17: variants.plain: this name is reserved", "any name but plain"),
        ("[1x1]", "[1x2, 1x1]", "12: stages.stage1.scales: too many", "at most 1"),
        ("[1x2]", "[1x2, 2x2]", "13: stages.stage2.scales[1]: stage2 has scales of one", "move it to stages.stage3"),
        ("[2x1]", "[1x2]", "14: stages.stage3.scales[0]: stage3 has scales of two", "move it to stages.stage2"),
        ("[2x1]", "[2x4]", "14: stages.stage3.scales[0]: the scale asks for 4 GPUs", "cluster.yaml, line 2: node.gpus"),
        ("[1x2]", "[1x2, 1x2]", "13: stages.stage2.scales: an item twice", "remove the second"),
        ("[1x1]", "[1x2]", "13: stages.stage2.scales[0]: stage2 has scales", "remove 1x2\n"),
        ("cpus: 2", "cpus: 2, gres: 'gpu:1g.10gb'", "13: stages.stage2.scales[0]: a process sees one MIG", "or name"),
        # the environment and the site
        ("env: {}", "env: {RANK: 1}", "8: workload.env.RANK: a variable that ddp-ladder sets", "MASTER_PORT"),
        ("runtime: 10", "slurm: {extra: [--exclusive, --qos=d]}", "12: stages.stage1.slurm.extra[1]: an option", ""),
    ],
)  # fmt: skip
def test_message(old: str, new: str, head: str, detail: str) -> None:
    said = problems((old, new))
    assert said.startswith(f"config/config.yaml, line {head}"), said
    assert detail in f"{said}\n"
    assert said.rpartition("\n")[2].startswith("  next     ")


@pytest.mark.parametrize(
    ("old", "new", "head", "detail"),
    [
        ("python: null", "python: /no/python", "3: software.python: not a program", "`which python`"),
        ("python: null", CONTAINER, "3: software.container.args[0]: it clears", "--no-home"),
        ("python: null", ROCM, "3: software.container.gpus: podman-hpc has no option for rocm", "--device=/dev/kfd"),
        ("python: null", EDF, "3: software.container.binds: edf takes no binds", "mounts"),
        ("site: here", "site: here\nlauncher: srun\nnuma_binding: node", "3: numa_binding: launcher srun has", "srun"),
        ("env: {}}", "env: {DDP_LADDER_X: 1}}", "4: network.env.DDP_LADDER_X: a variable", "remove it"),
        *(
            ("site: here", f"site: here\nslurm: {{extra: [{option}]}}", "2: slurm.extra[0]: an option that", option)
            for option in "--account=x --part=x --mem-per-gpu=3 --gpus-per-node=3 --requeue --gpu-bind=none".split()
        ),
    ],
)  # fmt: skip
def test_message_on_the_site(old: str, new: str, head: str, detail: str) -> None:
    said = problems((old, new))
    assert said.startswith(f"config/cluster.yaml, line {head}"), said
    assert detail in said


@pytest.mark.parametrize(
    "change",
    [
        ("train.py", '"-m package.train_2"'),
        ("lr: 0.1", 'lr: 0.1\n  directory: "{run_dir}/scratch/"'),
        ("lr: 0.1", 'lr: 0.1\n  samples_per_step: "{batch_per_gpu} * 4 // 3"'),
        ('"{lr}"', '"--n={nodes} * {world_size}//2"'),
        ('"{lr}"', '"{seed}/{seed}"'),
        ('"{lr}"', "'{{\"a\": 1}}'"),
        ("warmup_steps: 10", "max_steps: 40"),
        ("python: null", f"python: {sys.executable}"),
        ("python: null", "python: of-the-site, modules: [PyTorch/2.8.0]"),
        ("python: null", CONTAINER.replace("--cleanenv", "--no-home")),
        ("python: null", ROCM.replace("gpus: rocm", "args: [-e, A=1]")),  # of podman it sets a variable
        ("site: here", "site: here\nslurm: {extra: [--exclusive, --hint=nomultithread, --signal=TERM@120, --nice]}"),
    ],
)  # fmt: skip
def test_what_is_allowed(change: tuple[str, str]) -> None:
    assert problems(change) == ""


FOUR_GPUS = (("gpus: 2", "gpus: 4"), ("cpus: 2", "cpus: 4"))
FROM_1X2 = (("[1x2]", "[1x4]"), ("[1x1]", "[1x2]"), ("[2x1]", "[2x4]"), *FOUR_GPUS)
STRONG = ("[weak]", "[weak, strong]")


def test_a_ladder_may_start_at_any_one_scale() -> None:
    assert problems(*FROM_1X2) == ""
    assert "more GPUs than stage1's 2x4" in problems(("[1x1]", "[2x4]"), *FOUR_GPUS)


def test_the_global_batch_of_the_first_scale_is_divided() -> None:
    assert problems(*FROM_1X2, STRONG, ("per_gpu: 32", "per_gpu: 4")) == ""
    what = "strong mode cannot divide the global batch evenly among the GPUs of all scales"
    assert problems(*FROM_1X2, STRONG, ("per_gpu: 32", "per_gpu: 6")).splitlines()[:3] == [
        f"config/config.yaml, line 4: workload.batch_per_gpu: {what}", "  found    6", "  allowed  a multiple of 4",
    ]  # fmt: skip


FIXED = ('"{batch_per_gpu}"]\n  batch_per_gpu: 32', '"{accumulation}"]\n  batch_per_gpu: 32\n  global_batch: 192')
ONLY_STRONG, THREE_NODES = ("[weak]", "[strong]"), ("[2x1]", "[2x1, 3x1]")


def test_a_fixed_global_batch_contradicts_weak_mode_and_must_reach_the_script() -> None:
    said = problems(FIXED, STRONG)
    assert said.startswith("config/config.yaml, line 5: workload.global_batch: weak mode lets the global batch grow")
    assert said.endswith("  next     set modes: [strong], or remove global_batch")
    said = problems(FIXED, ONLY_STRONG, ("batch_per_gpu: 32", "batch_per_gpu: auto"))
    assert "workload.global_batch: global_batch needs a known batch per GPU" in said
    said = problems(FIXED, ONLY_STRONG, ("{accumulation}", "2"))
    assert said.startswith("config/config.yaml, line 3: workload.args: global_batch asks for accumulated batches")
    assert problems(FIXED, ONLY_STRONG, ("{accumulation}", "{global_batch}")) == ""


def test_a_batch_that_is_searched_has_to_reach_the_script_and_to_be_divided_in_strong_mode() -> None:
    auto = ("batch_per_gpu: 32", "batch_per_gpu: {from: 1, to: 64}")
    assert problems(auto) == ""
    without = problems(auto, ('"{batch_per_gpu}"', '"32"'))
    assert "3: workload.args: a search changes the batch per GPU, but nothing passes it to the script" in without
    assert "or set workload.batch_per_gpu to a number" in without
    uneven = problems(auto, STRONG)
    assert "a multiple of 2" in uneven
    assert "of a range, set `from`" in uneven
    assert problems((auto[0], "batch_per_gpu: {from: 2}"), STRONG) == ""
