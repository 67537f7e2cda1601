"""Settings from both files, and what is said of every kind of mistake in a value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings import keys
from ddp_ladder.settings.keys import Settings, Slurm
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import Scale
from jsonschema import Draft202012Validator

REPOSITORY = Path(__file__).parents[3]

CONFIG = """\
workload:
  script: train.py
  args: [--epochs, 8]
  batch_per_gpu: 32
  env: {}
measure: {warmup_steps: 10}
modes: [weak]
repeats: 3
stages:
  stage1: {scales: [1x1], runtime: 10}
  stage2: {scales: [1x2], gate: {min_efficiency: 0.5}}
variants:
  default: {}
"""
CLUSTER = "site: here\nnode: {gpus: 2, device: cpu, cpus: 2}\n"
SMALLEST = "workload: {script: train.py, batch_per_gpu: 32}\nstages: {stage1: {}}\n"
REPEATS = "a whole number from 1 to 100, or keys at_least, at_most, until_percent"


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    Path("train.py").touch()


def load(config: str = CONFIG, cluster: str = CLUSTER, overrides: dict[str, Any] | None = None) -> Settings:
    for name, text in (("config", config), ("cluster", cluster)):
        Path(f"config/{name}.yaml").write_text(text, encoding="utf-8")
    return load_settings(Path("config/config.yaml"), Path("config/cluster.yaml"), overrides)


def message(config: str = CONFIG, cluster: str = CLUSTER, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load(config, cluster, overrides)
    return str(caught.value)


KEYS_OF_MEASURE = "warmup_steps, min_steps, max_steps, max_seconds, profile_steps, count_flops, plain_baseline"


@pytest.mark.parametrize(
    ("old", "new", "head", "found", "allowed", "advice"),
    [
        ("warmup_steps: 10", "warmup_step: 10", "6: measure.warmup_step: unknown key", '"warmup_step"',
         KEYS_OF_MEASURE, 'did you mean "warmup_steps"?'),
        ("repeats: 3", "gpus: 4", "8: gpus: unknown key", '"gpus"', "results, workload, ", "move it to node.gpus"),
        ("  batch_per_gpu: 32\n", "", "1: workload.batch_per_gpu: missing key", None,
         "a whole number from 1 to 10000000", "add batch_per_gpu: 32 under workload"),
        ("repeats: 3", 'repeats: "3"', "8: repeats: a value not allowed", '"3"', REPEATS,
         "write it without quotes: repeats: 3"),
        ("repeats: 3", "repeats: 3\nreport: {epochs: 3, steps: 5}", "9: report: epochs and steps both give its length",
         '{"epochs": 3, "steps": 5}', "keys epochs, samples", "set all but one to null"),
        ("repeats: 3", "repeats: {at_least: 5, at_most: 4}", "8: repeats: at_most is less than at_least",
         '{"at_least": 5, "at_most": 4}', REPEATS, "raise at_most, or lower at_least (now 5)"),
        ("min_efficiency: 0.5", "min_efficiency: 80", "11: stages.stage2.gate.min_efficiency: too large", "80",
         "a number above 0 and at most 1, or null", "for example min_efficiency: 0.8 (minimum throughput as"),
        ("runtime: 10", "runtime: 1:30:00", "10: stages.stage1.runtime: a value not allowed", '"1:30:00"',
         "a whole number from 1 to 43200", "for example runtime: 20 (time limit of each scale"),
        ("[--epochs, 8]", "[--lr, {lr}]", "3: workload.args[1]: a value not allowed", '{"lr": ""}',
         "text or a number or true or false", 'put placeholders in quotes: "{lr}"'),
        ("[--epochs, 8]", "--epochs 8", "3: workload.args: a value not allowed", '"--epochs 8"',
         "a list, each item text or a number or true or false", "for example args: [--epochs, 8] (arguments of the"),
        ("modes: [weak]", "modes: [week]", "7: modes[0]: not one of the allowed values", '"week"',
         "one of weak, strong", 'did you mean "weak"?'),
        ("[1x2]", "[1X2]", "11: stages.stage2.scales[0]: not in the expected format", '"1X2"',
         "nodes x GPUs per node, such as 2x4", "for example 2x4 (nodes x GPUs per node)"),
        ("  default: {}", "  gloo: {}", "12: variants: the variant that the gates judge is missing", '{"gloo": {}}',
         "keys with values", "add default: {} under variants"),
    ],
)  # fmt: skip
def test_message(old: str, new: str, head: str, found: str | None, allowed: str, advice: str) -> None:
    assert old in CONFIG
    first, *said = message(CONFIG.replace(old, new)).splitlines()
    assert first == f"config/config.yaml, line {head}"
    wanted = [("found", found), ("allowed", allowed), ("next", advice)]
    for line, (label, text) in zip(said, [pair for pair in wanted if pair[1]], strict=True):
        assert line.startswith(f"  {label:<8} {text}")


@pytest.mark.parametrize(
    ("line", "where", "allowed"),
    [
        ("slurm: {partitions: gpu}", "slurm.partitions: unknown key", 'did you mean "partition"?'),
        ("partition: gpu", "partition: unknown key", "move it to slurm.partition"),
        ("slurm: {account: 123}", "slurm.account: a value not allowed", 'if you mean the text: "123"'),
        ("slurm: {account: $(touch x)}", "slurm.account: not in the expected format", "through a shell"),
        ("slurm:\n  account: |\n    proj1", "slurm.account: not in the expected format", '"proj1\\n"'),
        ("slurm: {extra: [exclusive]}", "slurm.extra[0]: not in the expected format", "--name or --name=value"),
        ("slurm: {extra: [--signal=B:TERM@120]}", "slurm.extra[0]: not in the expected format", "batch shell (B:)"),
        ("software: {modules: [module load A]}", "software.modules[0]: not in the expected format", "PyTorch/2.8.0"),
        ("software: {container: {binds: [/data]}}", "software.container.image: missing key", "/images/pytorch.sif"),
        ("software: {container: a.sif}", "software.container: a value not allowed", "image: /images/pytorch.sif"),
        ("network: {backend: glo}", "network.backend: not one of the allowed values", 'did you mean "gloo"?'),
        ("network: {interface: {}}", "network.interface: empty", "ib0"),
        ("hours: {name: SBU}", "hours: the price of an hour is given twice, or not at all", "per_gpu_hour or per_node"),
        ("network: {interface: {a b: eth0}}", 'network.interface."a b": not in the expected format', "and . _ -"),
        ("network: {env: {1A: x}}", "network.env.1A: not in the expected format", "letters, digits and _"),
    ],
)
def test_message_on_the_site(line: str, where: str, allowed: str) -> None:
    said = message(cluster=f"{CLUSTER}{line}\n")
    assert re.match(rf"config/cluster.yaml, line [34]: {re.escape(where)}\n", said)
    assert allowed in said


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("gres", ["gpu", "gpu:a100", "gpu:3090", "gpu:a100-sxm4_80g.1"], ["gpu:2", "gpu:a100:4", "a100", "gpu:a:b"]),
        ("constraint", ["(a|b)&c*2,[d]", "[rack1|rack2]"], ["a b", "$(touch x)"]),
        ("nodelist", ["cn[01-04,7],login-1.x"], ["'n1'"]),
        ("results", ["out", "/scratch/a.b"], ["/", "my results", "a{b}", "$(touch x)", "-rf", "größe"]),
    ],
)
def test_values_that_reach_a_shell_or_snakemake(key: str, good: list[str], bad: list[str]) -> None:
    def written(value: str) -> Settings:
        if key == "results":
            return load(CONFIG.replace("repeats: 3", f'results: "{value}"'))
        in_node = CLUSTER.replace("cpus: 2}", f'cpus: 2, gres: "{value}"}}')
        return load(cluster=in_node if key == "gres" else f'{CLUSTER}slurm: {{{key}: "{value}"}}\n')

    for value in good:
        read = written(value)
        assert value in (read.experiment.results, read.site.node.gres, getattr(read.site.slurm, key, None))
    for value in bad:
        with pytest.raises(UserError, match=rf"{key}: not in the expected format"):
            written(value)


def test_problems_of_both_files_come_together_in_the_order_of_their_lines() -> None:
    config = CONFIG.replace("repeats: 3", "repeat: 3").replace("scales: [1x1]", "scales: 1x1")
    cluster = CLUSTER.replace("gpus: 2", "gpus: 0").replace("here", "a b")
    heads = [line for line in message(config, cluster).splitlines() if line.startswith("config/")]
    assert heads == [
        "config/config.yaml, line 8: repeat: unknown key",
        "config/config.yaml, line 10: stages.stage1.scales: a value not allowed",
        "config/cluster.yaml, line 1: site: not in the expected format",
        "config/cluster.yaml, line 2: node.gpus: too small",
    ]


def test_defaults() -> None:
    settings = load(SMALLEST)
    experiment, site = settings.experiment, settings.site
    workload = experiment.workload
    assert (experiment.file, site.file) == (Path("config/config.yaml"), Path("config/cluster.yaml"))
    assert (experiment.results, experiment.modes, experiment.repeats.most) == ("results", ("weak",), 3)
    assert (workload.args, workload.env, workload.prepare, workload.lr, workload.seed) == ((), {}, None, None, 1)
    (stage,) = experiment.ladder
    assert (stage.name, stage.scales, stage.runtime) == ("stage1", (Scale(1, 1),), 20)
    assert (stage.gate, stage.slurm) == (keys.GateThresholds(), Slurm())
    assert experiment.variants == {"default": keys.Variant()}
    assert (site.slurm, site.software, site.launcher) == (Slurm(), keys.Software(), "torchrun")
    assert site.node == keys.Node(gpus=2, device="cpu", cpus=2)


def test_values_that_are_converted() -> None:
    settings = load(
        """\
results: ./out//r/
workload:
  script: train.py
  args: [--a, 8, 0.10, 1e-4, "{lr}", true, "$(touch x)", ~/d]
  batch_per_gpu: 16
  lr: 1e-3
  data_dir: d/
  env: {A: 1, B: 0.50}
measure: {max_seconds: 4}
modes: [weak]
stages:
  stage3: {scales: [2x1, 2x2]}
  stage1: {slurm: {partition: debug, extra: [--hold]}}
variants:
  default:
  g: {args: [2, "{batch_per_gpu}"], env: {M: 2}}
""",
        """\
site: here
slurm: {partition: "gpu,gpu2", extra: [--exclusive, --hint=nomultithread]}
node: {gpus: 4, device: cuda, cpus: 64}
software:
  setup: |
    source x
  container: {image: a.sif, args: [--env, A=1, 2]}
network: {interface: {node01: eth0, node-02.cluster: auto}, env: {A: 0.10}}
""",
    )
    experiment, site = settings.experiment, settings.site
    workload, variant = experiment.workload, experiment.variants["g"]
    assert (experiment.results, workload.data_dir) == ("out/r", "d")
    assert workload.args == ("--a", "8", "0.10", "1e-4", "{lr}", "true", "$(touch x)", f"{Path.home()}/d")
    assert (workload.lr, workload.env, experiment.measure.max_seconds) == (0.001, {"A": "1", "B": "0.50"}, 4.0)
    first, third = experiment.ladder
    assert (third.name, third.scales) == ("stage3", (Scale(2, 1), Scale(2, 2)))
    merged = Slurm(partition="debug", extra=("--exclusive", "--hint=nomultithread", "--hold"))
    assert site.slurm.overridden(first.slurm) == merged
    assert (variant.args, variant.env) == (("2", "{batch_per_gpu}"), {"M": "2"})
    container = keys.Container(image="a.sif", engine="apptainer", args=("--env", "A=1", "2"))
    assert site.software == keys.Software(setup="source x\n", container=container)
    assert site.network == keys.Network(interface={"node01": "eth0", "node-02.cluster": "auto"}, env={"A": "0.10"})
    assert not Path("x").exists()


def test_overrides_of_a_command_line() -> None:
    """What Snakemake hands over for --config: numbers at the top level, nested values as text."""
    overrides = {
        "repeats": 1,
        "measure": {"max_steps": "50", "max_seconds": "null"},
        "stages": {"stage2": "None", "stage1": {"slurm": {"partition": "debug", "qos": "null"}}},
        "workload": {"args": ["--epochs", "8", "no", "1e-4"], "lr": "1e-3"},
        "variants": {"g": {"network": {"backend": "gloo"}}},
    }
    experiment = load(CONFIG.replace("warmup_steps: 10", "min_steps: 20"), overrides=overrides).experiment
    assert experiment.repeats.most == 1
    assert experiment.measure == keys.Measure(min_steps=20, max_steps=50)
    assert (experiment.workload.args, experiment.workload.lr) == (("--epochs", "8", "no", "1e-4"), 0.001)
    assert [stage.name for stage in experiment.ladder] == ["stage1"]
    assert experiment.ladder[0].slurm == Slurm(partition="debug")
    assert [*experiment.variants] == ["default", "g"]


SHIPPED = sorted(set((REPOSITORY / "config").rglob("*.yaml")) - {REPOSITORY / "config/laptop.yaml"})  # an overlay


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_files_name_their_schema_for_editors_and_fit_it(file: Path) -> None:
    head, _, place = file.read_text().partition("\n")[0].partition("$schema=")
    assert head == "# yaml-language-server: "
    described = json.loads((file.parent / place).read_text())
    data = yaml.safe_load(file.read_text())
    assert described["title"] == ("The site" if "site" in data else "The experiment")
    Draft202012Validator(described).validate(data)
