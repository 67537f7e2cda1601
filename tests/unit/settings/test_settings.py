from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings.cluster_keys import ClusterKeys, Container, Network, Node, Slurm, Software
from ddp_ladder.settings.config_keys import ConfigKeys, GateThresholds, Measure
from ddp_ladder.settings.json_schema import written_out
from ddp_ladder.settings.loading import load_settings
from ddp_ladder.settings.models import Settings, Stage, Variant
from ddp_ladder.settings.placeholders import NAMES
from ddp_ladder.settings.terms import WARMUP_STEPS, Scale
from jsonschema import Draft202012Validator

REPOSITORY = Path(__file__).parents[3]
SITES = sorted((REPOSITORY / "config/sites").glob("*.yaml"))

SMALLEST = """\
workload: {script: train.py, batch_per_gpu: 32}
stages: {stage1: {}}
"""
SITE = "site: here\nnode: {gpus: 2, device: cuda, cpus: 8}\n"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return tmp_path


def load(config: str = SMALLEST, site: str = SITE, overrides: dict[str, Any] | None = None) -> Settings:
    Path("config.yaml").write_text(config, encoding="utf-8")
    Path("cluster.yaml").write_text(site, encoding="utf-8")
    return load_settings(Path("config.yaml"), Path("cluster.yaml"), overrides)


def message(config: str = SMALLEST, site: str = SITE, **overrides: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(config, site, overrides)
    return str(caught.value)


ONE_LINE = "a line end or another control character in a value"


@pytest.mark.parametrize("char", [r"\0", r"\n", r"\r", r"\e", r"\a", r"\x9b", r"\u2028", r"\ud800", r"\x7f"])
@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("script: train.py", 'script: "a?"', "config.yaml, line 1: workload.script"),
        ("batch_per_gpu: 32", 'batch_per_gpu: 32, args: [1, "a?"]', "config.yaml, line 1: workload.args[1]"),
        ("batch_per_gpu: 32", 'batch_per_gpu: 32, env: {A: "a?"}', "config.yaml, line 1: workload.env.A"),
        ("script:", 'throughput_regex: "a?", script:', "config.yaml, line 1: workload.throughput_regex"),
        ("stage1: {}}", 'stage1: {slurm: {account: "a?"}}}', "config.yaml, line 2: stages.stage1.slurm.account"),
        ("stages:", 'variants: {default: {args: ["a?"]}}\nstages:', "config.yaml, line 2: variants.default.args[0]"),
        ("site: here", 'site: "a?"', "cluster.yaml, line 1: site"),
        ("node:", 'software: {python: "a?"}\nnode:', "cluster.yaml, line 2: software.python"),
        ("node:", 'software: {modules: ["a?"]}\nnode:', "cluster.yaml, line 2: software.modules[0]"),
        ("node:", 'software: {container: {image: "a?"}}\nnode:', "cluster.yaml, line 2: software.container.image"),
        ("node:", 'slurm: {extra: ["a?"]}\nnode:', "cluster.yaml, line 2: slurm.extra[0]"),
        ("node:", 'network: {interface: {n1: "a?"}}\nnode:', "cluster.yaml, line 2: network.interface.n1"),
    ],
)  # fmt: skip
def test_no_value_holds_a_control_character(directory: Path, char: str, old: str, new: str, where: str) -> None:
    text = message(*(part.replace(old, new.replace("?", char)) for part in (SMALLEST, SITE)))
    assert text.startswith(f'{where}: {ONE_LINE}\n  found    "a\\'), text
    assert text.endswith(
        "  allowed  printable text on one line\n"
        "  next     remove the character; long data belongs in a file that the script reads"
    )
    assert text.isascii()


def test_an_override_holds_no_control_character(directory: Path) -> None:
    assert message(workload={"args": ["a\x1b[2J"]}).startswith(f"--config: workload.args[0]: {ONE_LINE}\n")


def test_tabs_are_text_and_line_ends_are_where_they_are_meant(directory: Path) -> None:
    config = SMALLEST.replace("batch_per_gpu: 32", r'batch_per_gpu: 32, args: ["a\tb"]')
    settings = load(config + r'variants: {default: {reason: "a\nb"}}', SITE + r'software: {setup: "a\n\tb\n"}')
    assert settings.experiment.workload.args == ("a\tb",)
    assert settings.site.software.setup == "a\n\tb\n"
    assert "line 3: software.setup: a control character in a value" in message(site=SITE + r'software: {setup: "a\0b"}')


def test_defaults(directory: Path) -> None:
    settings = load()
    experiment, site = settings.experiment, settings.site
    assert experiment.file == Path("config.yaml")
    assert experiment.results == "results"
    workload = experiment.workload
    assert (workload.script, workload.batch_per_gpu) == ("train.py", 32)
    assert (workload.args, workload.env, workload.prepare) == ((), {}, None)
    assert (workload.lr, workload.lr_rule, workload.seed, workload.data_dir) == (
        None, "linear", 1, None,
    )  # fmt: skip
    assert experiment.measure == Measure(min_steps=30)
    assert (experiment.modes, experiment.repeats.most) == (("weak",), 3)
    assert experiment.stages == (Stage("stage1", (Scale(1, 1),), 20, GateThresholds(), Slurm()),)
    assert experiment.variants == (Variant("default"),)
    assert site.slurm == Slurm()
    assert site.node == Node(gpus=2, device="cuda", cpus=8, gres=None, memory_mb=None)
    assert site.software == Software(python=None, modules=(), setup="", container=None)
    assert (site.name, site.launcher) == ("here", "torchrun")
    assert site.network == Network(backend="auto", interface="auto", env={})


def test_every_value_arrives(directory: Path) -> None:
    Path("p.py").touch()
    settings = load(
        """\
results: ./out//r/
workload:
  script: train.py
  args: [--a, 8, 0.10, 1e-4, "{lr}", "{batch_per_gpu}", -1, +5, "012", "true",
         "$(touch x)", "; rm -rf /", größe]
  batch_per_gpu: 16.0
  lr: 1e-3
  lr_rule: sqrt
  seed: 7
  data_dir: d/
  prepare: [p.py, "{data_dir}", 3]
  env: {A: 1, B: 0.50, C: "$(id)"}
measure: {warmup_steps: 1, min_steps: 2, max_steps: 3, max_seconds: 4, plain_baseline: false}
modes: [strong, weak]
repeats: 5
fingerprint: {may_differ: [num_workers, driver]}
stages:
  stage3: {scales: [2x1, 2x2], gate: {min_samples_per_s: 9, max_data_wait_fraction: 0}}
  stage2: {scales: [1x2], runtime: 6, gate: {min_efficiency: 1, certain: true}}
  stage1: {}
variants:
  default:
  g: {launcher: srun, network: {backend: gloo, interface: ib0}, args: [2, "{batch_per_gpu}"],
      env: {M: 2}, reason: why}
  told: {args: ["{global_batch}"]}
""",
        SITE + "software:\nnetwork: {backend: nccl, interface: ib1, env: {X: 1}}\nlauncher: srun\n",
    )
    experiment = settings.experiment
    workload = experiment.workload
    assert experiment.results == "out/r"
    assert workload.args == (
        "--a", "8", "0.10", "1e-4", "{lr}", "{batch_per_gpu}", "-1", "+5", "012", "true",
        "$(touch x)", "; rm -rf /", "größe",
    )  # fmt: skip
    assert (workload.batch_per_gpu, workload.lr, workload.lr_rule) == (16, 0.001, "sqrt")
    assert isinstance(workload.batch_per_gpu, int)
    assert (workload.seed, workload.data_dir) == (7, "d")
    assert workload.prepare == ("p.py", "{data_dir}", "3")
    assert workload.env == {"A": "1", "B": "0.50", "C": "$(id)"}
    assert experiment.measure == Measure(
        warmup_steps=1, min_steps=2, max_steps=3, max_seconds=4.0, plain_baseline=False
    )
    assert (experiment.modes, experiment.repeats.most) == (("strong", "weak"), 5)
    assert experiment.may_differ == ("num_workers", "driver")
    assert experiment.stages == (
        Stage("stage1", (Scale(1, 1),), 20, GateThresholds(), Slurm()),
        Stage("stage2", (Scale(1, 2),), 6, GateThresholds(min_efficiency=1.0, certain=True), Slurm()),
        Stage(
            "stage3",
            (Scale(2, 1), Scale(2, 2)),
            20,
            GateThresholds(min_efficiency=None, min_samples_per_s=9.0, max_data_wait_fraction=0.0),
            Slurm(),
        ),
    )
    assert experiment.variants == (
        Variant("default"),
        Variant("g", "srun", "gloo", "ib0", ("2", "{batch_per_gpu}"), {"M": "2"}, "why"),
        Variant("told", args=("{global_batch}",)),
    )
    assert settings.site.network == Network(backend="nccl", interface="ib1", env={"X": "1"})
    assert settings.site.launcher == "srun"
    assert not Path("x").exists()


def test_every_value_of_a_slurm_site_arrives(directory: Path) -> None:
    config = SMALLEST.replace("stage1: {}", "stage1: {slurm: {partition: debug, extra: [--hold]}}")
    settings = load(
        config,
        """\
site: here
slurm: {account: p_1, partition: "gpu,gpu2", qos: high, constraint: "a100&[r1|r2]", reservation: course,
        nodelist: "node[01-03],x", exclude: node07, extra: [--exclusive, --hint=nomultithread]}
node: {gpus: 4, device: cuda, cpus: 64, gres: "gpu:a100", memory_mb: 256000.0}
software:
  python: python3
  modules: [A/1.0, "B"]
  setup: |
    source x
    export A=1
  container: {image: a.sif, engine: singularity, binds: ["/data:/d", /scratch], args: [--env, A=1, 2]}
network: {interface: {node01: eth0, node-02.cluster: auto}, env: {A: 0.10}}
""",
    )
    site = settings.site
    assert settings.experiment.stages[0].slurm == Slurm(partition="debug", extra=("--hold",))
    assert site.slurm == Slurm(
        account="p_1",
        partition="gpu,gpu2",
        qos="high",
        constraint="a100&[r1|r2]",
        reservation="course",
        nodelist="node[01-03],x",
        exclude="node07",
        extra=("--exclusive", "--hint=nomultithread"),
    )
    assert site.node == Node(gpus=4, device="cuda", cpus=64, gres="gpu:a100", memory_mb=256_000)
    assert isinstance(site.node.memory_mb, int)
    container = Container(
        image="a.sif", engine="singularity", binds=("/data:/d", "/scratch"), args=("--env", "A=1", "2")
    )
    assert site.software == Software(
        python="python3", modules=("A/1.0", "B"), setup="source x\nexport A=1\n", container=container
    )
    assert site.network.interface == {"node01": "eth0", "node-02.cluster": "auto"}


def test_defaults_of_a_container_and_of_empty_lists(directory: Path) -> None:
    software = load(
        site=SITE + "software: {python: python3, modules: , container: {image: a.sif, binds: }}\n"
    ).site.software
    assert software == Software(
        python="python3",
        modules=(),
        setup="",
        container=Container(image="a.sif", engine="apptainer", binds=(), args=()),
    )


def test_slurm_values_of_a_stage_from_the_command_line(directory: Path) -> None:
    overrides = {"stages": {"stage1": {"slurm": {"partition": "debug", "qos": "null"}}}}
    assert load(overrides=overrides).experiment.stages[0].slurm == Slurm(partition="debug")


@pytest.mark.parametrize("section", ["stage2: null", "stage2:", "stage2: ~"])
def test_a_stage_that_is_null_is_absent(directory: Path, section: str) -> None:
    config = f"""\
workload: {{script: train.py, batch_per_gpu: 32}}
stages:
  {section}
  stage3: {{scales: [2x1]}}
  stage1: {{}}
"""
    assert [stage.name for stage in load(config).experiment.stages] == ["stage1", "stage3"]


def test_empty_sections_have_their_defaults(directory: Path) -> None:
    config = SMALLEST + "measure:\nvariants:\n"
    assert load(config) == load()


# What snakemake 9 hands over for --config repeats=1 'measure={max_steps: 50}' and so on:
# numbers at the top level, nested values as text.
def test_overrides(directory: Path) -> None:
    overrides = {
        "repeats": 1,
        "measure": {"max_steps": "50", "max_seconds": "null"},
        "stages": {"stage2": {"scales": ["1x2"], "gate": {"min_efficiency": "0.25"}}},
        "workload": {"args": ["--epochs", "8", "no"], "lr": "1e-3"},
        "variants": {"g": {"network": {"backend": "gloo"}}},
    }
    config = (
        SMALLEST.replace("32}", "32, args: [1e5, 2], seed: 4}") + "measure: {min_steps: 20}\nvariants: {default: {}}\n"
    )
    experiment = load(config, overrides=overrides).experiment
    assert experiment.repeats.most == 1
    assert experiment.measure == Measure(min_steps=20, max_steps=50, max_seconds=None)
    assert experiment.workload.args == ("--epochs", "8", "no")
    assert (experiment.workload.lr, experiment.workload.seed) == (0.001, 4)
    assert experiment.stages[1].scales == (Scale(1, 2),)
    assert experiment.stages[1].gate == GateThresholds(min_efficiency=0.25)
    assert experiment.variants == (Variant("default"), Variant("g", backend="gloo"))


def test_overrides_can_remove_a_stage(directory: Path) -> None:
    config = SMALLEST.replace("stage1: {}", "stage1: {}, stage2: {scales: [1x2]}")
    settings = load(config, overrides={"stages": {"stage2": "null"}})
    assert [stage.name for stage in settings.experiment.stages] == ["stage1"]


def test_problems_in_overrides_are_placed_on_the_command_line(directory: Path) -> None:
    assert message(measure={"max_step": "5"}) == (
        "--config: measure.max_step: unknown key\n"
        '  found    "max_step"\n'
        "  allowed  warmup_steps, min_steps, max_steps, max_seconds, profile_steps, plain_baseline\n"
        '  next     did you mean "max_steps"?'
    )
    assert message(repeats="no") == (
        "--config: repeats: a value of the wrong type\n"
        '  found    "no" (text)\n'
        "  allowed  a whole number from 1 to 100, or keys at_least, at_most, until_percent\n"
        "  next     for example repeats: 3"
    )
    assert message(workload={"script": "none.py"}).startswith("--config: workload.script: there is no such script\n")


def test_both_files_are_read_before_giving_up(directory: Path) -> None:
    text = message("repeats: 012\n", "a: [\n")
    assert text.startswith("config.yaml, line 1: repeats: some YAML readers take 012 for the number 10")
    assert "\n\ncluster.yaml, line 2, column 1: not YAML" in text
    with pytest.raises(UserError) as caught:
        load_settings(Path("a.yaml"), Path("b.yaml"))
    assert [problem.where for problem in caught.value.problems] == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.stem)
def test_shipped_files_load(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    overrides = {"stages": {"stage2": "null"}} if site.stem == "ethernet6" else {}  # it has one GPU per node
    settings = load_settings(Path("config/config.yaml"), site, overrides)
    assert settings.site.name == site.stem
    assert [str(scale) for stage in settings.experiment.stages for scale in stage.scales]


def test_the_shipped_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    settings = load_settings(Path("config/config.yaml"), Path("config/cluster.yaml"))
    assert {stage.name: stage.scales for stage in settings.experiment.stages} == {
        "stage1": (Scale(1, 1),),
        "stage2": (Scale(1, 2),),
        "stage3": (Scale(2, 1),),
    }
    assert settings.experiment.repeats.most == 3


SHIPPED = sorted(set((REPOSITORY / "config").rglob("*.yaml")) - {REPOSITORY / "config/laptop.yaml"})  # an overlay


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_files_name_their_schema_for_editors_and_fit_it(file: Path) -> None:
    head, _, schema = file.read_text().partition("\n")[0].partition("$schema=")
    assert head == "# yaml-language-server: "
    described = json.loads((file.parent / schema).read_text())
    data = yaml.safe_load(file.read_text())
    assert described["title"] == ("The site" if "site" in data else "The experiment")
    Draft202012Validator(described).validate(data)


def test_the_site_in_use_is_the_local_one() -> None:
    in_use = yaml.safe_load((REPOSITORY / "config/cluster.yaml").read_text())
    assert in_use == yaml.safe_load((REPOSITORY / "config/sites/local.yaml").read_text())


def keys(schema: Any) -> Iterator[str]:
    for key, part in schema.get("properties", {}).items():
        yield key
        yield from keys(part)
    for inner in ("additionalProperties", "items"):
        if isinstance(schema.get(inner), dict):
            yield from keys(schema[inner])


@pytest.mark.parametrize(
    ("model", "file"),
    [(ConfigKeys, "config.yaml"), (ClusterKeys, "cluster.yaml"), (ClusterKeys, "sites/local.yaml")],
)
def test_shipped_files_and_readme_tell_of_every_key(model: type, file: str) -> None:
    text = (REPOSITORY / "config" / file).read_text()
    readme = (REPOSITORY / "config/README.md").read_text()
    for key in keys(written_out(model)):
        assert re.search(rf"\b{key}\b", text), f"{key} is not in config/{file}"
        assert re.search(rf"\b{key}\b", readme), f"{key} is not in config/README.md"


def test_readme_tells_of_every_placeholder() -> None:
    for file in ("config.yaml", "README.md"):
        text = (REPOSITORY / "config" / file).read_text()
        assert [name for name in NAMES if f"{{{name}}}" not in text] == []


def rows_of(heading: str) -> Iterator[tuple[str, str]]:
    """The first two columns of the tables of keys below a heading of config/README.md, without their backquotes."""
    readme = (REPOSITORY / "config/README.md").read_text()
    _, _, below = readme.partition(f"\n{heading}\n")
    below = re.split(r"^##", below, flags=re.MULTILINE)[0]
    for table in re.findall(r"^\| key \|.*\n\| ---.*\n((?:\|.*\n)+)", below, re.MULTILINE):
        for row in table.splitlines():
            key, second = (cell.strip(" |`") for cell in row.split(" | ")[:2])
            yield key, second


def section(model: type, *path: str) -> dict[str, Any]:
    part: Any = written_out(model)
    for key in path:
        part = part["properties"][key]
    return part  # type: ignore[no-any-return]


def default_of(part: Any, key: str) -> str:
    """What the column ``default`` says of a key."""
    if key in part.get("required", ()):
        return "required"
    text = yaml.safe_dump(part["properties"][key]["default"], default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...")


@pytest.mark.parametrize(
    ("heading", "model", "path"),
    [
        ("### workload", ConfigKeys, ("workload",)),
        ("### measure", ConfigKeys, ("measure",)),
        ("### modes, repeats and jobs", ConfigKeys, ("repeats",)),
        ("### preflight", ConfigKeys, ("preflight",)),
        ("### container", ClusterKeys, ("software", "container")),
    ],
)
def test_readme_has_the_default_of_each_key(heading: str, model: type, path: tuple[str, ...]) -> None:
    part = section(model, *path)
    assert dict(rows_of(heading)) == {key: default_of(part, key) for key in part["properties"]}


def test_readme_has_the_default_of_each_key_of_a_site() -> None:
    rows, site = dict([*rows_of("## cluster.yaml"), *rows_of("### slurm")]), section(ClusterKeys)
    expected = {"slurm": default_of(site, "slurm")}
    for name, part in site["properties"].items():
        names = [f"{name}.{key}" for key in part.get("properties", ())]
        expected |= {each: default_of(part, each.partition(".")[2]) for each in names} or {name: default_of(site, name)}
    assert rows == expected


def test_readme_has_the_default_of_each_key_of_a_stage() -> None:
    stage, rows = section(ConfigKeys, "stages", "stage1"), dict(rows_of("### stages"))
    assert rows.pop("scales") == "stage1 `[1x1]`, else required"
    gate = stage["properties"]["gate"]
    for key in gate["properties"]:
        told = re.search(r"default `?([\w.]+)", rows.pop(key))
        assert (told[1] if told else "null") == default_of(gate, key)
    assert rows == {key: default_of(stage, key) for key in ("runtime", "gate", "slurm")}


def test_readme_has_each_key_of_a_variant() -> None:
    variant = section(ConfigKeys, "variants")["additionalProperties"]
    assert [key for key, _ in rows_of("### variants")] == list(variant["properties"])


def test_readme_has_the_defaults_of_single_keys() -> None:
    readme = (REPOSITORY / "config/README.md").read_text()
    for key in ("results", "modes", "repeats", "jobs"):
        assert f"`{key}` (default `{default_of(section(ConfigKeys), key)}`)" in readme


def test_defaults_in_comments() -> None:
    text = (REPOSITORY / "config/config.yaml").read_text()
    cuda, cpu = WARMUP_STEPS["cuda"], WARMUP_STEPS["cpu"]
    assert f"max_efficiency ({GateThresholds().max_efficiency}:" in text
    assert f"null: {cuda} if node.device in cluster.yaml is cuda, {cpu} if it is cpu" in text
    readme = (REPOSITORY / "config/README.md").read_text()
    assert f"`null` is {cuda} if `node.device` is `cuda` and {cpu} if it is `cpu`" in readme
