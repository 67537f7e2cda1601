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
BRACES = "braces that are no placeholder"
ANOTHER = "scales: [1x1], runtime: 10"
CONTAINER = "python: python3, container: {image: /images/a.sif, args: [--cleanenv]}"


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


def test_good_files() -> None:
    assert problems() == ""


@pytest.mark.parametrize(
    ("old", "new", "head", "detail"),
    [
        # the workload
        ("modes", "results: data/r\nmodes", "10: results: the results would lie in the data", "data_dir data"),
        ("train.py", "trian.py", "2: workload.script: there is no such script", "check the spelling"),
        ("train.py", '"-m a/b"', "2: workload.script: neither a file nor a module", "write -m, one space"),
        ("train.py", '"{nodes}.py"', "2: workload.script: a brace in a script's name", "rename the file"),
        ("prepare.py", "none.py", "7: workload.prepare[0]: there is no such script", "none.py"),
        ("data_dir: data", "data_dir: null", "7: workload.prepare: there is no directory", "data_dir: data/digits"),
        ("lr: 0.1", 'lr: 0.1\n  directory: "x/{run_dir}"', "6: workload.directory: a directory outside", '"{run_dir}"'),
        ("lr: 0.1", "lr: 0.1\n  throughput_regex: 'rate: [0-9]+'", "6: workload.throughput_regex: not a", "0 groups"),
        ("lr: 0.1", "lr: 0.1\n  throughput_regex: '(rate'", "6: workload.throughput_regex: not a", "missing )"),
        # placeholders
        ('"{lr}"', '"{batch_pergpu}"', f"3: workload.args[1]: {BRACES}", 'did you mean "{batch_per_gpu}"?'),
        ('"{lr}"', '"{lr"', f"3: workload.args[1]: {BRACES}", "double literal braces: '{{lr'"),
        ("env: {}", "env: {A: '{0}'}", f"8: workload.env.A: {BRACES}", "{{0}}"),
        ("default: {}", "default: {args: ['{}']}", f"16: variants.default.args[0]: {BRACES}", "{{}}"),
        ("lr: 0.1", "lr: null", "3: workload.args[1]: {lr} is used, but workload.lr is null", "set workload.lr"),
        ('[prepare.py, "{data_dir}"]', '[prepare.py, "{lr}"]', "7: workload.prepare[1]: a placeholder", "once"),
        ('"{lr}"', '"{world_size} / 2"', "3: workload.args[1]: not a whole number: 1 / 2", "(weak/1x1/r1)"),
        ('"{lr}"', '"--n={global_batch} * 8 / {seed}"', "3: workload.args[1]: not a whole number", "(weak/1x1/r3)"),
        ('"{lr}"', '"{lr} * 2"', "3: workload.args[1]: not a whole number: 0.1", "belongs into lr"),
        ("lr: 0.1", "lr: 0.1\n  samples_per_step: '{lr}'", "6: workload.samples_per_step: not a number", '"{lr}"'),
        ("lr: 0.1", "lr: 0.1\n  samples_per_step: 0", "6: workload.samples_per_step: not a number", "above 0"),
        # the ladder
        ("warmup_steps: 10", "max_steps: 39", "9: measure.max_steps: runs would end", "10 (null, with device cpu)"),
        ("warmup_steps: 10", "profile_steps: 5", "9: measure.profile_steps: the profiled steps", "max_seconds"),
        ("default: {}", "default: {launcher: python}", "16: variants.default.launcher: launcher python", "torchrun or"),
        ("default: {}", "default: {}\n  plain: {}", "17: variants.plain: this name is reserved", "any name but plain"),
        ("[1x1]", "[1x2, 1x1]", "12: stages.stage1.scales: stage 1 is one scale", "set scales: [1x1]"),
        ("[1x2]", "[1x2, 2x2]", "13: stages.stage2.scales[1]: stage 2 is one node", "move 2x2 to stages.stage3"),
        ("[2x1]", "[1x2]", "14: stages.stage3.scales[0]: stage 3 is several nodes", "move 1x2 to stages.stage2"),
        ("[2x1]", "[2x4]", "14: stages.stage3.scales[0]: the scale asks for 4 GPUs", "cluster.yaml, line 2: node.gpus"),
        ("[1x2]", "[1x2, 1x2]", "13: stages.stage2.scales[1]: a scale twice", "remove one 1x2"),
        ("[1x1]", "[1x2]", "13: stages.stage2.scales[0]: the ladder starts at 1x2", "remove 1x2"),
        ("runtime: 10", "gate: {min_efficiency: 0.5}", "12: stages.stage1.gate.min_efficiency: stage 1", "stage2"),
        # the environment and the site
        ("env: {}", "env: {RANK: 1}", "8: workload.env.RANK: a variable that ddp-ladder sets", "MASTER_PORT"),
        ("default: {}", "default: {network: {backend: nccl}}", "16: variants.default.network.backend: NCCL", "auto"),
        (ANOTHER, "slurm: {extra: [--exclusive, --qos=d]}", "12: stages.stage1.slurm.extra[1]: an option", "slurm.qos"),
    ],
)  # fmt: skip
def test_message(old: str, new: str, head: str, detail: str) -> None:
    said = problems((old, new))
    assert said.startswith(f"config/config.yaml, line {head}"), said
    assert detail in said
    assert said.rpartition("\n")[2].startswith("  next     ")


@pytest.mark.parametrize(
    ("old", "new", "head", "detail"),
    [
        ("cpus: 2", "cpus: 1", "2: node.cpus: fewer CPU cores than GPUs", "at least 2"),
        ("python: null", "python: /no/python", "3: software.python: not a program", "`which python`"),
        ("python: null", "container: {image: a.sif}", "3: software.python: the Python that runs", "python3"),
        ("python: null", CONTAINER, "3: software.container.args[0]: it clears", "apptainer exec"),
        ("backend: auto", "backend: nccl", "4: network.backend: NCCL needs GPUs", "auto or gloo"),
        ("env: {}}", "env: {DDP_LADDER_X: 1}}", "4: network.env.DDP_LADDER_X: a variable", "remove it"),
        *(
            ("site: here", f"site: here\nslurm: {{extra: [{option}]}}", "2: slurm.extra[0]: an option that is set", key)
            for option, key in (
                ("--account=x", "slurm.account"), ("--part=x", "slurm.partition"), ("--mem-per-gpu=3", "memory_mb"),
                ("--time=3", "runtime"), ("--gpus-per-node=3", "the scales"), ("--output=x", "ddp-ladder sets it"),
                ("--array=1-3", "ddp-ladder sets it"), ("--requeue", "ddp-ladder sets it"), ("--export=ALL", "env"),
            )
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
    assert "the ladder starts at 2x4" in problems(("[1x1]", "[2x4]"), *FOUR_GPUS)


def test_the_global_batch_of_the_first_scale_is_divided() -> None:
    assert problems(*FROM_1X2, STRONG, ("per_gpu: 32", "per_gpu: 4")) == ""
    assert problems(*FROM_1X2, STRONG, ("per_gpu: 32", "per_gpu: 6")) == (
        "config/config.yaml, line 4: workload.batch_per_gpu: strong mode cannot divide the global batch evenly\n"
        "  found    a global batch of 12 over 2x4 (8 GPUs)\n"
        "  allowed  a multiple of 4, which all scales divide\n"
        "  next     set batch_per_gpu: 4 or 8, or remove the scale, or strong from modes"
    )


def test_strong_mode_without_a_batch_placeholder() -> None:
    variants = 'default: {}\n  told: {args: ["{global_batch}"]}\n  env: {env: {B: "{batch_per_gpu}"}}\n  b: {}'
    said = problems(STRONG, ("{batch_per_gpu}", "32"), ("default: {}", variants))
    assert said.startswith("config/config.yaml, line 3: workload.args: strong mode changes the batch per GPU")
    assert "no batch placeholder in the arguments and the environment of default, b\n" in said


def test_problems_of_all_kinds_come_together() -> None:
    said = problems(("train.py", "x.py"), ("[2x1]", "[2x9]"), ('"{lr}"', '"{l}"'), ("cpus: 2", "cpus: 1"))
    assert len(said.split("\n\n")) == 4
