from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings import strict_yaml
from ddp_ladder.settings.cluster_keys import ClusterKeys
from ddp_ladder.settings.config_keys import ConfigKeys
from ddp_ladder.settings.json_schema import Part, written_out
from ddp_ladder.settings.strict_yaml import Document
from ddp_ladder.settings.validation import typed_override, validated
from jsonschema import Draft202012Validator

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
CLUSTER = "site: here\nnode: {gpus: 2, device: cpu, cpus: 2}\nnetwork: {backend: auto}\n"
SITE = CLUSTER.replace("network: {backend: auto}\n", "")
REPEATS = "a whole number from 1 to 100, or keys at_least, at_most, until_percent"
PATH_WORDS = "a path of letters, digits and . _ - / (it becomes part of Snakemake's file patterns)"

CONFIG_KEYS = (
    "results, workload, measure, hang, modes, repeats, jobs, stages, fingerprint, logs, monitor, report, variants, "
    "preflight"
)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()


def check(config: str = CONFIG, cluster: str = CLUSTER) -> str:
    checked = []
    for name, text, model in (("config", config, ConfigKeys), ("cluster", cluster, ClusterKeys)):
        file = Path(f"config/{name}.yaml")
        file.write_text(text, encoding="utf-8")
        checked.append((strict_yaml.read(file), model))
    try:
        validated(checked)
    except UserError as error:
        return str(error)
    return ""


def changed(old: str, new: str) -> str:
    assert old in CONFIG
    return check(CONFIG.replace(old, new))


def text(where: str, what: str, found: str | None, allowed: str, advice: str) -> str:
    lines = [f"config/{where}: {what}", f"  allowed  {allowed}", f"  next     {advice}"]
    if found is not None:
        lines.insert(1, f"  found    {found}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("old", "place", "new", "advice"),
    [
        ("[--epochs, 8]", "{}", """'--epochs 1 --lr {lr} --name "a b" --flag no'""",
         "write a list: args: <[--epochs, 1, --lr, '{lr}', --name, a b, --flag, 'no']>"),
        ("[--epochs, 8]", "{}", "it's", 'write a list: args: <["it\'s"]>'),
        ("[1x2]", "[{}]", "2", "write <1x2>: 1 node with 2 GPUs"),
        ("[1x2]", "[{}]", "1X2", "write <1x2>: 1 node with 2 GPUs"),
        ("[1x2]", "{}", "4", "write a list: scales: <[1x4]>"),
        ("[1x2]", "{}", '"1x2, 1x4"', "write a list: scales: <[1x2, 1x4]>"),
        ("stage2: {scales: [1x2]", "stage3: {{scales: [{}]", "2", "write <2x1>: 2 nodes with 1 GPU each"),
        ("[weak]", "{}", "weak, strong", "write a list: modes: <[weak, strong]>"),
        ("runtime: 10", "{}", 'runtime: "01:00:00"', "write minutes: <runtime: 60>"),
        ("runtime: 10", "{}", "runtime: 01:00:00", "write minutes: <runtime: 60>"),
        ("runtime: 10", "{}", 'runtime: "1:30"',
         "write minutes: <runtime: 2> (sbatch reads 1:30 as minutes and seconds)"),
        ("runtime: 10", "{}", "runtime: 1-12", "write minutes: <runtime: 2160>"),
        ("runtime: 10", "{}", "runtime: 2h", "write minutes: <runtime: 120>"),
        ("cpus: 2}", "cpus: 2, {}}}", "memory_mb: 440G", "write MB: <memory_mb: 450560>"),
        ("cpus: 2}", "cpus: 2, {}}}", "memory_mb: 1.5 TB", "write MB: <memory_mb: 1572864>"),
        ("repeats: 3", "results: {}", "$HERE/r", "write </scratch/me/r>"),
        (
            *("repeats: 3", "results: {}", "$NOWHERE/r"),
            "write its value; if it differs between jobs, link a fixed path to it in software.setup: "
            'ln -sfn "$NOWHERE/r" /tmp/r',
        ),
    ],
)  # fmt: skip
def test_what_was_meant_can_be_pasted(
    old: str, place: str, new: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "/scratch/me")
    assert old in CONFIG + CLUSTER

    def with_value(value: str) -> str:
        return check(*(text.replace(old, place.format(value)) for text in (CONFIG, CLUSTER)))

    assert with_value(new).endswith(f"  next     {advice.replace('<', '').replace('>', '')}")
    for pasted in re.findall("<(.*)>", advice):
        assert with_value(pasted) == ""


def test_home_is_written_with_a_tilde() -> None:
    assert "next     write ~/r" in changed("repeats: 3", "results: ${HOME}/r")
    workload = {"script": "~/t.py", "args": ["~/d", "a~/b", "~", 3], "env": {"A": "~/c"}, "batch_per_gpu": 1}
    data = {"results": "~/r", "workload": workload, "stages": {"stage1": {}}}
    (keys,) = validated([(Document(Path("c.yaml"), data), ConfigKeys)])
    home = str(Path.home())
    assert (keys.results, keys.workload.script) == (f"{home}/r", f"{home}/t.py")
    assert keys.workload.args == (f"{home}/d", "a~/b", "~", "3")
    assert keys.workload.env == {"A": f"{home}/c"}


def test_good_files() -> None:
    assert check() == ""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "warmup_steps: 10",
            "warmup_step: 10",
            (
                "config.yaml, line 6: measure.warmup_step",
                "unknown key",
                '"warmup_step"',
                "warmup_steps, min_steps, max_steps, max_seconds, profile_steps, plain_baseline",
                'did you mean "warmup_steps"?',
            ),
        ),
        (
            "repeats: 3",
            "max_steps: 3",
            (
                "config.yaml, line 8: max_steps",
                "unknown key",
                '"max_steps"',
                CONFIG_KEYS,
                "move it to where it belongs: config/config.yaml: measure.max_steps",
            ),
        ),
        (
            "repeats: 3",
            "node: {}",
            (
                "config.yaml, line 8: node",
                "unknown key",
                '"node"',
                CONFIG_KEYS,
                'did you mean "modes"?',
            ),
        ),
        (
            "repeats: 3",
            "gpus: 4",
            (
                "config.yaml, line 8: gpus",
                "unknown key",
                '"gpus"',
                CONFIG_KEYS,
                "move it to where it belongs: config/cluster.yaml: node.gpus",
            ),
        ),
        (
            "repeats: 3",
            '"$(touch x)\\e": 1',
            (
                'config.yaml, line 8: "$(touch x)\\u001b"',
                "unknown key",
                '"$(touch x)\\u001b"',
                CONFIG_KEYS,
                "remove it; see config/README.md for all keys",
            ),
        ),
        (
            "  batch_per_gpu: 32\n",
            "",
            (
                "config.yaml, line 1: workload.batch_per_gpu",
                "missing key",
                None,
                "a whole number from 1 to 10000000",
                "add batch_per_gpu: 32 under workload",
            ),
        ),
        (
            "  stage1: {scales: [1x1], runtime: 10}\n",
            "",
            (
                "config.yaml, line 9: stages.stage1",
                "missing key",
                None,
                "keys scales, runtime, gate, slurm",
                "add stage1: {scales: [1x1], runtime: 10} under stages",
            ),
        ),
        (
            "  default: {}",
            "  gloo: {}",
            (
                "config.yaml, line 12: variants.default",
                "missing key",
                None,
                "keys launcher, network, args, env, reason, or null",
                "add default: {} under variants",
            ),
        ),
        (
            "scales: [1x2], ",
            "",
            (
                "config.yaml, line 11: stages.stage2.scales",
                "missing key",
                None,
                "a list, each item nodes x GPUs per node, such as 2x4, at least one",
                "add scales: [1x2, 1x4] under stages.stage2",
            ),
        ),
        (
            "repeats: 3",
            "repeats: {at_least: 5, at_most: 4}",
            (
                "config.yaml, line 8: repeats",
                "at_most is less than at_least",
                '{"at_least": 5, "at_most": 4}',
                "at_least or more",
                "raise at_most, or lower at_least (now 5)",
            ),
        ),
        (
            "repeats: 3",
            "repeats: ten",
            (
                "config.yaml, line 8: repeats",
                "a value of the wrong type",
                '"ten" (text)',
                REPEATS,
                "for example repeats: 3",
            ),
        ),
        (
            "repeats: 3",
            'repeats: "3"',
            (
                "config.yaml, line 8: repeats",
                "a value of the wrong type",
                '"3" (text)',
                REPEATS,
                "write it without quotes: repeats: 3",
            ),
        ),
        (
            "repeats: 3",
            "repeats: 2.5",
            (
                "config.yaml, line 8: repeats",
                "a value of the wrong type",
                "2.5 (a number)",
                REPEATS,
                "for example repeats: 3",
            ),
        ),
        (
            "repeats: 3",
            "repeats:",
            (
                "config.yaml, line 8: repeats",
                "a value of the wrong type",
                "null",
                REPEATS,
                "remove the line for the default (3), or give a value",
            ),
        ),
        (
            "repeats: 3",
            "repeats: 0",
            (
                "config.yaml, line 8: repeats",
                "too small",
                "0",
                REPEATS,
                "for example repeats: 3",
            ),
        ),
        (
            "min_efficiency: 0.5",
            "min_efficiency: 80",
            (
                "config.yaml, line 11: stages.stage2.gate.min_efficiency",
                "too large",
                "80",
                "a number above 0 and at most 1, or null",
                "for example min_efficiency: 0.8",
            ),
        ),
        (
            "min_efficiency: 0.5",
            "min_efficiency: 0",
            (
                "config.yaml, line 11: stages.stage2.gate.min_efficiency",
                "too small",
                "0",
                "a number above 0 and at most 1, or null",
                "for example min_efficiency: 0.8",
            ),
        ),
        (
            "[--epochs, 8]",
            "[--lr, {lr}]",
            (
                "config.yaml, line 3: workload.args[1]",
                "a value of the wrong type",
                '{"lr": null} (a mapping)',
                "text or a number",
                'put placeholders in quotes: "{lr}"',
            ),
        ),
        (
            "[--epochs, 8]",
            "[--epochs, true]",
            (
                "config.yaml, line 3: workload.args[1]",
                "a value of the wrong type",
                "true (a truth value)",
                "text or a number",
                'put it in quotes if you mean the text: "true"',
            ),
        ),
        (
            "[--epochs, 8]",
            "[--epochs, null]",
            (
                "config.yaml, line 3: workload.args[1]",
                "a value of the wrong type",
                "null",
                "text or a number",
                'put it in quotes if you mean the text: "null"',
            ),
        ),
        (
            "[--epochs, 8]",
            "--epochs 8",
            (
                "config.yaml, line 3: workload.args",
                "a value of the wrong type",
                '"--epochs 8" (text)',
                "a list, each item text or a number, or null",
                "write a list: args: [--epochs, 8]",
            ),
        ),
        (
            "env: {}",
            "env: {A: false}",
            (
                "config.yaml, line 5: workload.env.A",
                "a value of the wrong type",
                "false (a truth value)",
                "text or a number",
                'put it in quotes if you mean the text: "false"',
            ),
        ),
        (
            "modes: [weak]",
            "modes: weak",
            (
                "config.yaml, line 7: modes",
                "a value of the wrong type",
                '"weak" (text)',
                "a list, each item one of weak, strong, at least one",
                "write a list: modes: [weak]",
            ),
        ),
        (
            "modes: [weak]",
            "modes: [week]",
            (
                "config.yaml, line 7: modes[0]",
                "not one of the allowed values",
                '"week"',
                "one of weak, strong",
                'did you mean "weak"?',
            ),
        ),
        (
            "modes: [weak]",
            "modes: [both]",
            (
                "config.yaml, line 7: modes[0]",
                "not one of the allowed values",
                '"both"',
                "one of weak, strong",
                "for example weak",
            ),
        ),
        (
            "modes: [weak]",
            "modes: []",
            (
                "config.yaml, line 7: modes",
                "an empty list",
                "[]",
                "a list, each item one of weak, strong, at least one",
                "for example modes: [weak]",
            ),
        ),
        (
            "modes: [weak]",
            "modes: [weak, weak]",
            (
                "config.yaml, line 7: modes",
                "an item twice",
                '["weak", "weak"]',
                "a list, each item one of weak, strong, at least one",
                "remove the second of the two",
            ),
        ),
        (
            "[1x2]",
            "[1X2]",
            (
                "config.yaml, line 11: stages.stage2.scales[0]",
                "not in the expected format",
                '"1X2"',
                "nodes x GPUs per node, such as 2x4",
                "write 1x2: 1 node with 2 GPUs",
            ),
        ),
        (
            "  default: {}",
            "  default: {}\n  ../a b: {}",
            (
                'config.yaml, line 14: variants."../a b"',
                "a name that cannot be used",
                '"../a b"',
                "letters, digits and . _ - with a letter or digit first "
                "(a variant's name becomes a directory)",
                "rename it, for example to a-b",
            ),
        ),
        (
            "  default: {}",
            "  default: {network: {backend: glo}}",
            (
                "config.yaml, line 13: variants.default.network.backend",
                "not one of the allowed values",
                '"glo"',
                "one of auto, nccl, gloo, or null",
                'did you mean "gloo"?',
            ),
        ),
        (
            "script: train.py",
            'script: ""',
            (
                "config.yaml, line 2: workload.script",
                "empty",
                '""',
                "text",
                "for example script: train.py",
            ),
        ),
        (
            "script: train.py",
            f"script: {'x' * 1001}",
            (
                "config.yaml, line 2: workload.script",
                "too many characters",
                '"' + "x" * 96 + "...",
                "at most 1000",
                "shorten it",
            ),
        ),
        *[
            (
                "repeats: 3",
                f"results: '{path}'",
                (
                    "config.yaml, line 8: results",
                    "not in the expected format",
                    f'"{path}"',
                    PATH_WORDS,
                    "for example results: results",
                ),
            )
            for path in (
                "", "/", "//", ".", "./", "my results", "a{b}", "$(touch x)", "a;rm", "-rf",
                "größe", "a*", "a|b",
            )
        ],
    ],
)  # fmt: skip
def test_message(old: str, new: str, message: tuple[str, str, str | None, str, str]) -> None:
    assert changed(old, new) == text(*message)


THROUGH_A_SHELL = "(it reaches sbatch through a shell)"
ONE_NAME = f"a name of letters, digits and . _ @ + - {THROUGH_A_SHELL}, or null"
NAMES = f"names of letters, digits and . _ + - with commas between them {THROUGH_A_SHELL}, or null"
NODES = f"node names such as node01,node[03-05], of letters, digits and . _ - , [ ] {THROUGH_A_SHELL}, or null"
FEATURES = f"features of letters, digits and . _ + - = : joined by & | , * ( ) [ ] {THROUGH_A_SHELL}, or null"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *[
            (
                f"slurm: {{{key}: '{value}'}}",
                (f"slurm.{key}", "not in the expected format", f'"{value}"', allowed, f"for example {key}: {example}"),
            )
            for key, allowed, example in (
                ("account", ONE_NAME, "my-project"), ("partition", NAMES, "gpu"), ("qos", NAMES, "debug"),
                ("constraint", FEATURES, "a100"), ("reservation", NAMES, "course"),
                ("nodelist", NODES, "node[01-04]"), ("exclude", NODES, "node07"),
            )
            for value in ("", "a b", "-x", "--x", "$(touch x)", "`id`", "a;id", "a>x", "~", "a!", "größe")
        ],
        (
            "slurm: {partitions: gpu}",
            (
                "slurm.partitions",
                "unknown key",
                '"partitions"',
                "account, partition, qos, constraint, reservation, nodelist, exclude, extra",
                'did you mean "partition"?',
            ),
        ),
        (
            "partition: gpu",
            (
                "partition",
                "unknown key",
                '"partition"',
                "site, slurm, node, software, network, launcher",
                "move it to where it belongs: config/cluster.yaml: slurm.partition or config/config.yaml: "
                "stages.stage1.slurm.partition or config/config.yaml: stages.stage2.slurm.partition",
            ),
        ),
        (
            "slurm: {account: 123}",
            (
                "slurm.account",
                "a value of the wrong type",
                "123 (a whole number)",
                ONE_NAME,
                'put it in quotes if you mean the text: "123"',
            ),
        ),
        (
            "slurm: {extra: --exclusive}",
            (
                "slurm.extra",
                "a value of the wrong type",
                '"--exclusive" (text)',
                "a list, each item text, or null",
                "write a list: extra: [--exclusive]",
            ),
        ),
        (
            "software: {modules: [module load A]}",
            (
                "software.modules[0]",
                "not in the expected format",
                '"module load A"',
                "a module's name, such as PyTorch/2.8.0",
                "for example PyTorch/2.8.0",
            ),
        ),
        (
            'software: {container: {image: ""}}',
            ("software.container.image", "empty", '""', "text", "for example image: /images/pytorch.sif"),
        ),
        (
            "software: {container: {binds: [/data]}}",
            (
                "software.container.image",
                "missing key",
                None,
                "text",
                "add image: /images/pytorch.sif under software.container",
            ),
        ),
        (
            "software: {container: a.sif}",
            (
                "software.container",
                "a value of the wrong type",
                '"a.sif" (text)',
                "keys image, engine, binds, args, or null",
                "for example container: {image: /images/pytorch.sif}",
            ),
        ),
        (
            "software: {container: {image: a.sif, engine: docker}}",
            (
                "software.container.engine",
                "not one of the allowed values",
                '"docker"',
                "one of apptainer, singularity",
                "for example engine: apptainer",
            ),
        ),
        (
            "network: {interface: {node01: ''}}",
            (
                "network.interface.node01",
                "not in the expected format",
                '""',
                "an interface's name such as eth0 or ib0, or auto",
                "for example node01: eth0",
            ),
        ),
        (
            "network: {interface: {}}",
            (
                "network.interface",
                "empty",
                "{}",
                "an interface's name such as eth0 or ib0, auto, or a map from node names to these",
                "for example interface: ib0",
            ),
        ),
    ],
)  # fmt: skip
def test_message_on_the_site(line: str, message: tuple[str, str, str | None, str, str]) -> None:
    where, *rest = message
    assert check(cluster=SITE + line + "\n") == text(f"cluster.yaml, line 3: {where}", *rest)


@pytest.mark.parametrize(
    ("key", "value"),
    [("account", "p200_x-1.y@z+"), ("partition", "gpu,boost_usr-prod"), ("qos", "a,b"), ("constraint", "(a|b)&c*2,[d]"),
     ("constraint", "[rack1|rack2]"), ("reservation", "tra26.1"), ("nodelist", "cn[01-04,7],login-1.x"),
     ("exclude", "n1")],
)  # fmt: skip
def test_slurm_values_that_are_allowed(key: str, value: str) -> None:
    assert check(cluster=SITE + f'slurm: {{{key}: "{value}"}}\n') == ""
    assert changed("scales: [1x1],", f'slurm: {{{key}: "{value}"}},') == ""


def test_slurm_values_of_a_stage_are_checked_alike() -> None:
    assert changed("scales: [1x1],", "slurm: {partition: a b},") == text(
        "config.yaml, line 10: stages.stage1.slurm.partition",
        "not in the expected format",
        '"a b"',
        NAMES,
        "for example partition: gpu",
    )


@pytest.mark.parametrize("path", ["results", "../r", "/scratch/me/r.1", "a//b/", "./a"])
def test_paths_that_are_allowed(path: str) -> None:
    assert changed("repeats: 3", f"results: {path}") == ""


@pytest.mark.parametrize("value", ["$(touch x)", "; rm -rf /", "größe 数字", "`id`", "| cat", "' \" \\"])
def test_hostile_text_is_plain_data_in_arguments_and_environment(value: str) -> None:
    quoted = "'" + value.replace("'", "''") + "'"
    assert changed("[--epochs, 8]", f"[{quoted}]") == ""
    assert changed("env: {}", f"env: {{A: {quoted}}}") == ""


def test_problems_of_both_files_come_together_in_the_order_of_their_lines() -> None:
    config = CONFIG.replace("repeats: 3", "repeat: 3").replace("scales: [1x1]", "scales: 1x1")
    cluster = CLUSTER.replace("gpus: 2", "gpus: 0").replace("here", "a b")
    lines = [line for line in check(config, cluster).splitlines() if line.startswith("config/")]
    assert lines == [
        "config/config.yaml, line 8: repeat: unknown key",
        "config/config.yaml, line 10: stages.stage1.scales: a value of the wrong type",
        "config/cluster.yaml, line 1: site: not in the expected format",
        "config/cluster.yaml, line 2: node.gpus: too small",
    ]


def test_several_missing_and_unknown_keys_are_named_once_each() -> None:
    problems = check(cluster="a: 1\nb: 2\n")
    heads = [line for line in problems.splitlines() if line.startswith("config/")]
    assert heads == [
        "config/cluster.yaml: site: missing key",
        "config/cluster.yaml: node: missing key",
        "config/cluster.yaml, line 1: a: unknown key",
        "config/cluster.yaml, line 2: b: unknown key",
    ]


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a schema, itself included."""
    yield schema
    for key in ("properties",):
        for part in schema.get(key, {}).values():
            yield from parts(part)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key])


@pytest.mark.parametrize("model", [ConfigKeys, ClusterKeys])
def test_schemas_are_strict_and_described(model: type) -> None:
    schema = written_out(model)
    Draft202012Validator.check_schema(schema)
    for part in parts(schema):
        assert "$ref" not in part
        if "properties" in part:
            assert part["additionalProperties"] is False
        for key, inner in part.get("properties", {}).items():
            assert inner.get("description"), key
        types = part["type"] if isinstance(part["type"], list) else [part["type"]]
        if "integer" in types:
            assert {"minimum", "maximum"} <= set(part)
        if "number" in types and "string" not in types:
            assert {"minimum", "exclusiveMinimum"} & set(part)
        if "pattern" in part:
            assert part["patternErrorMessage"]


@pytest.mark.parametrize("model", [ConfigKeys, ClusterKeys])
def test_examples_and_defaults_obey_their_schema(model: type) -> None:
    for part in parts(written_out(model)):
        values = [*part.get("examples", []), *([part["default"]] if "default" in part else [])]
        for value in values:
            Draft202012Validator(part).validate(value)


SCHEMA: Part = {
    "properties": {
        "n": {"type": "integer", "default": 3},
        "x": {"type": ["number", "null"], "default": None},
        "s": {"type": ["string", "null"]},
        "part": {
            "type": ["object", "null"],
            "default": {},
            "properties": {"list": {"type": "array", "default": [1], "items": {"type": "integer"}}},
        },
        "named": {
            "type": "object",
            "additionalProperties": {
                "type": ["object", "null"],
                "default": {},
                "properties": {"k": {"default": 7}},
            },
        },
    }
}


SMALLEST = "workload: {script: t.py, batch_per_gpu: 1}\nstages: {stage1: {}}\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1}", "1, args: , env: , lr: , prepare: }"),
        ("{}", "{gate: , slurm: }"),
        ("{}", "{gate: {min_efficiency: }, slurm: {extra: , qos: }}"),
        ("stages", "measure:\nstages"),
        ("stages", "measure: {max_steps: }\nstages"),
        ("stages", "fingerprint:\nstages"),
        ("stages", "fingerprint: {may_differ: }\nstages"),
        ("stages", "variants:\nstages"),
        ("stages", "variants: {default: }\nstages"),
        ("stages", "variants: {default: {network: , args: , env: , launcher: }}\nstages"),
    ],
)
def test_what_is_left_empty_has_its_default(old: str, new: str) -> None:
    plain, empty = Path("plain.yaml"), Path("empty.yaml")
    plain.write_text(SMALLEST)
    empty.write_text(SMALLEST.replace(old, new))
    one, other = validated([(strict_yaml.read(file), ConfigKeys) for file in (plain, empty)])
    assert one == other


def test_overrides_get_the_type_that_the_schema_wants() -> None:
    given = {
        "n": "4", "x": "null", "s": "5", "part": {"list": ["1", "two", "1:30"]}, 7: "x",
    }  # fmt: skip
    assert typed_override(given, SCHEMA) == {
        "n": 4, "x": None, "s": "5", "part": {"list": [1, "two", "1:30"]}, "7": "x",
    }  # fmt: skip
    assert typed_override({"n": "16.0"}, SCHEMA) == typed_override({"n": 16.0}, SCHEMA) == {"n": 16}
    assert isinstance(typed_override({"n": 16.0}, SCHEMA)["n"], int)
    assert typed_override({"x": "1e-3", "s": "null", "n": "no"}, SCHEMA) == {
        "x": 0.001, "s": None, "n": "no",
    }  # fmt: skip
