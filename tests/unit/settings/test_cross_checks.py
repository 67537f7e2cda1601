from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ddp_ladder.common.messages import UserError
from ddp_ladder.common.paths import places
from ddp_ladder.settings.compared_fields import MAY_DIFFER
from ddp_ladder.settings.loading import load_settings

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
ALL_NAMES = (
    "{batch_per_gpu} {global_batch} {lr} {nodes} {gpus_per_node} {world_size} {threads_per_rank} {run_dir} {data_dir} "
    "{start_dir} {seed} {backend}"
)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "prepare.py"):
        Path(name).touch()
    Path("config").mkdir()


def problems(config: str = CONFIG, cluster: str = CLUSTER) -> str:
    for name, text in (("config", config), ("cluster", cluster)):
        Path(f"config/{name}.yaml").write_text(text, encoding="utf-8")
    try:
        load_settings(Path("config/config.yaml"), Path("config/cluster.yaml"))
    except UserError as error:
        return str(error)
    return ""


def config_with(*changes: tuple[str, str]) -> str:
    text = CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def message(where: str, what: str, found: str, allowed: str, advice: str) -> str:
    return f"config/{where}: {what}\n  found    {found}\n  allowed  {allowed}\n  next     {advice}"


def test_good_files() -> None:
    assert problems() == ""


NO_PLACEHOLDER = "braces that are no placeholder"
LITERAL = ", and {{ and }} for literal braces"
OUTSIDE = ("a directory outside of the run's own", '"{run_dir}", or a directory below it: "{run_dir}/scratch"')


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("{rundir}", (NO_PLACEHOLDER, '"{rundir}"', ALL_NAMES + LITERAL, 'did you mean "{run_dir}"?')),
        ("{run_dir}/..", (OUTSIDE[0], "{run_dir}/..", OUTSIDE[1], 'set directory: "{run_dir}"')),
        ("x/{run_dir}", (OUTSIDE[0], "x/{run_dir}", OUTSIDE[1], 'set directory: "{run_dir}"')),
        (
            "train.py/{seed}",
            (
                "there is a file at the path of the directory",
                "train.py",
                "a directory, which is made when it is missing, or null for where Snakemake was started",
                'set directory: "{run_dir}" to give each run a directory of its own',
            ),
        ),
    ],
)
def test_a_working_directory_that_cannot_be(directory: str, expected: tuple[str, str, str, str]) -> None:
    config = config_with(("  batch_per_gpu:", f'  directory: "{directory}"\n  batch_per_gpu:'))
    line = 1 + config[: config.index("directory:")].count("\n")
    assert problems(config) == message(f"config.yaml, line {line}: workload.directory", *expected)


def test_working_directories_that_can_be() -> None:
    Path("there").mkdir()
    for directory in ("{run_dir}", "{run_dir}/scratch/", "there", "missing/{seed}", "/only/on/the/nodes", "there/{lr}"):
        assert problems(config_with(("  batch_per_gpu:", f'  directory: "{directory}"\n  batch_per_gpu:'))) == ""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "scales: [1x1]",
            "scales: [1x2, 1x1]",
            (
                "config.yaml, line 12: stages.stage1.scales",
                "stage 1 is one scale, the baseline of every efficiency",
                "[1x2, 1x1]",
                "[1x1], or the smallest scale that the training fits",
                "set scales: [1x1]; one node goes into stage2, several nodes into stage3",
            ),
        ),
        (
            "[1x2]",
            "[1x1]",
            (
                "config.yaml, line 13: stages.stage2.scales[0]",
                "stage 2 is one node with several GPUs",
                "1x1",
                "1x2, 1x3, ...: one node, two or more GPUs",
                "remove 1x1: stage1 measures it",
            ),
        ),
        (
            "[1x2]",
            "[1x2, 2x2]",
            (
                "config.yaml, line 13: stages.stage2.scales[1]",
                "stage 2 is one node with several GPUs",
                "2x2",
                "1x2, 1x3, ...: one node, two or more GPUs",
                "move 2x2 to stages.stage3",
            ),
        ),
        (
            "[2x1]",
            "[1x2]",
            (
                "config.yaml, line 14: stages.stage3.scales[0]",
                "stage 3 is several nodes",
                "1x2",
                "2x2, 3x2, ...: two or more nodes",
                "move 1x2 to stages.stage2",
            ),
        ),
        (
            "[2x1]",
            "[1x1]",
            (
                "config.yaml, line 14: stages.stage3.scales[0]",
                "stage 3 is several nodes",
                "1x1",
                "2x1, 3x1, ...: two or more nodes",
                "remove 1x1: stage1 measures it",
            ),
        ),
        (
            "[2x1]",
            "[2x1, 2x4]",
            (
                "config.yaml, line 14: stages.stage3.scales[1]",
                "the scale asks for 4 GPUs per node, the site has 2",
                "2x4",
                "at most 2 per node (config/cluster.yaml, line 2: node.gpus)",
                "use at most 2 GPUs per node, or correct node.gpus if the nodes have more",
            ),
        ),
        (
            "[1x2]",
            "[1x2, 1x2]",
            (
                "config.yaml, line 13: stages.stage2.scales[1]",
                "a scale twice",
                "[1x2, 1x2]",
                "each scale once",
                "remove one 1x2; to measure it more often raise repeats",
            ),
        ),
        (
            "runtime: 10",
            "gate: {min_efficiency: 0.5}",
            (
                "config.yaml, line 12: stages.stage1.gate.min_efficiency",
                "stage 1 is the baseline of the efficiency and cannot be judged by it",
                "0.5",
                "min_samples_per_s and max_data_wait_fraction",
                "remove it here; set it in stage2 and stage3",
            ),
        ),
        (
            "modes: [weak]",
            "modes: [weak]\nfingerprint: {may_differ: [nccl, num_worker]}",
            (
                "config.yaml, line 11: fingerprint.may_differ[1]",
                "not a field that is compared between runs",
                '"num_worker"',
                ", ".join(MAY_DIFFER),
                'did you mean "num_workers"?',
            ),
        ),
        (
            "modes: [weak]",
            "modes: [weak]\nfingerprint: {may_differ: [batch_per_gpu]}",
            (
                "config.yaml, line 11: fingerprint.may_differ[0]",
                "batch_per_gpu may never differ: weak scaling keeps the work per GPU constant",
                '"batch_per_gpu"',
                ", ".join(MAY_DIFFER),
                "remove it; the note of a scale that is not comparable names the fields that differ",
            ),
        ),
        (
            "stage2: {scales: [1x2]}",
            "stage2: {scales: [1x2], gate: {certain: true}}",
            (
                "config.yaml, line 13: stages.stage2.gate.certain",
                "certain has no effect without a threshold",
                "certain: true",
                "certain together with min_efficiency, min_samples_per_s or max_data_wait_fraction",
                "set a threshold, or remove certain",
            ),
        ),
        (
            "{warmup_steps: 10}",
            "{max_steps: 39}",
            (
                "config.yaml, line 9: measure.max_steps",
                "runs would end before enough steps are measured",
                "max_steps 39, warmup_steps 10 (null, with device cpu), min_steps 30",
                "at least warmup_steps + min_steps = 40, or null",
                "set max_steps: 40 or more, or lower min_steps",
            ),
        ),
        (
            "{warmup_steps: 10}",
            "{warmup_steps: 12, max_steps: 41}",
            (
                "config.yaml, line 9: measure.max_steps",
                "runs would end before enough steps are measured",
                "max_steps 41, warmup_steps 12, min_steps 30",
                "at least warmup_steps + min_steps = 42, or null",
                "set max_steps: 42 or more, or lower min_steps",
            ),
        ),
        (
            "{warmup_steps: 10}",
            "{warmup_steps: 10, profile_steps: 5}",
            (
                "config.yaml, line 9: measure.profile_steps",
                "the profiled steps follow the measured ones, and no limit says where those end",
                "profile_steps 5, max_steps null, max_seconds null",
                "profile_steps with max_steps or max_seconds",
                "set measure.max_steps to fewer steps than the script makes, or profile_steps: 0",
            ),
        ),
        (
            "  default: {}\n",
            "  default: {}\n  plain: {}\n",
            (
                "config.yaml, line 17: variants.plain",
                "this name is reserved for the script without a launcher (measure.plain_baseline)",
                "plain",
                "any name but plain",
                "give the variant another name",
            ),
        ),
        (
            "lr: 0.1",
            "lr: null",
            (
                "config.yaml, line 3: workload.args[1]",
                "{lr} is used, but workload.lr is null",
                '"{lr}"',
                "{lr} together with a value of workload.lr",
                "set workload.lr, for example lr: 0.05, or remove the argument",
            ),
        ),
        (
            '"{lr}"',
            '"{batch_pergpu}"',
            (
                "config.yaml, line 3: workload.args[1]",
                NO_PLACEHOLDER,
                '"{batch_pergpu}"',
                ALL_NAMES + LITERAL,
                'did you mean "{batch_per_gpu}"?',
            ),
        ),
        (
            '"{lr}"',
            '\'{"lr": {lr}, "b": {}}\'',
            (
                "config.yaml, line 3: workload.args[1]",
                NO_PLACEHOLDER,
                '"{\\"lr\\": {lr}, \\"b\\": {}}"',
                ALL_NAMES + LITERAL,
                'double literal braces: \'{{"lr": {lr}, "b": {{}}}}\'',
            ),
        ),
        (
            '"{lr}"',
            '"{lr"',
            (
                "config.yaml, line 3: workload.args[1]",
                NO_PLACEHOLDER,
                '"{lr"',
                ALL_NAMES + LITERAL,
                "close the placeholder, or double literal braces: '{{lr'",
            ),
        ),
        (
            "default: {}",
            'default: {args: ["{0}"]}',
            (
                "config.yaml, line 16: variants.default.args[0]",
                NO_PLACEHOLDER,
                '"{0}"',
                ALL_NAMES + LITERAL,
                "double literal braces: '{{0}}'",
            ),
        ),
        (
            '[prepare.py, "{data_dir}"]',
            '[prepare.py, "{lr}"]',
            (
                "config.yaml, line 7: workload.prepare[1]",
                "a placeholder that has no value here",
                '"{lr}"',
                "{data_dir} {seed}",
                "write the value itself: data is prepared once, for every scale",
            ),
        ),
        (
            '"{data_dir}"',
            '"{datadir}"',
            (
                "config.yaml, line 7: workload.prepare[1]",
                NO_PLACEHOLDER,
                '"{datadir}"',
                "{data_dir} {seed}" + LITERAL,
                'did you mean "{data_dir}"?',
            ),
        ),
        (
            "data_dir: data",
            "data_dir: null",
            (
                "config.yaml, line 7: workload.prepare",
                "there is no directory for the prepared data",
                "workload.data_dir: null",
                "workload.prepare together with workload.data_dir",
                "set workload.data_dir, such as data_dir: data/digits, or set prepare: null",
            ),
        ),
        (
            "modes: [weak]",
            "results: data/results",
            (
                "config.yaml, line 10: results",
                "the results would lie in the data directory",
                "results data/results, workload.data_dir data",
                "a directory outside workload.data_dir",
                "choose another directory for results, such as results: results",
            ),
        ),
        (
            "script: train.py",
            'script: "-m a/b"',
            (
                "config.yaml, line 2: workload.script",
                "neither a file nor a module",
                '"-m a/b"',
                'a file, or "-m package.module"',
                "write -m, one space and the module's name; arguments go into workload.args",
            ),
        ),
        (
            "script: train.py",
            'script: "{nodes}.py"',
            (
                "config.yaml, line 2: workload.script",
                "a brace in a script's name: Snakemake takes it for a wildcard",
                '"{nodes}.py"',
                "a file name without braces",
                "rename the file; placeholders are for the arguments",
            ),
        ),
        (
            "default: {}",
            "default: {network: {backend: nccl}}",
            (
                "config.yaml, line 16: variants.default.network.backend",
                "NCCL needs GPUs, and the site has device: cpu",
                "nccl",
                "auto or gloo",
                "set backend: auto, or node.device: cuda in the site's file if its nodes have GPUs",
            ),
        ),
        (
            "env: {}",
            "env: {1A: x}",
            (
                "config.yaml, line 8: workload.env.1A",
                "not a name that an environment variable can have",
                '"1A"',
                "letters, digits and _, not starting with a digit",
                "correct the name in workload.env",
            ),
        ),
    ],
)
def test_message(old: str, new: str, expected: tuple[str, str, str, str, str]) -> None:
    assert problems(config_with((old, new))) == message(*expected)


FOUR_GPUS = CLUSTER.replace("gpus: 2", "gpus: 4").replace("cpus: 2", "cpus: 4")


def from_1x2(stage2: str = "[1x4]", stage3: str = "[2x2, 2x4]", *changes: tuple[str, str]) -> str:
    scales = (("[1x1]", "[1x2_]"), ("[1x2]", stage2), ("[2x1]", stage3), ("1x2_", "1x2"))
    return problems(config_with(*scales, *changes), FOUR_GPUS)


def test_a_ladder_may_start_at_any_one_scale() -> None:
    assert from_1x2() == ""
    one_stage = config_with(("  stage2: {scales: [1x2]}\n", ""), ("[2x1]", "[4x4]"))
    assert problems(one_stage.replace("[1x1]", "[2x4]"), FOUR_GPUS) == ""
    assert "stages.stage1.scales[0]: the scale asks for 8 GPUs per node" in problems(
        one_stage.replace("[1x1]", "[1x8]"), FOUR_GPUS
    )


@pytest.mark.parametrize(
    ("stage2", "stage3", "where", "found", "advice"),
    [
        ("[1x2]", "[2x2]", "13: stages.stage2.scales[0]", "1x2", "remove 1x2: stage1 measures it"),
        ("[1x4]", "[2x1]", "14: stages.stage3.scales[0]", "2x1", "remove 2x1: the ladder starts at 1x2"),
    ],
)
def test_a_ladder_climbs_from_its_first_scale(stage2: str, stage3: str, where: str, found: str, advice: str) -> None:
    assert from_1x2(stage2, stage3) == message(
        f"config.yaml, line {where}",
        "the ladder starts at 1x2 with 2 GPUs, and climbs from there",
        found,
        "scales with more than 2 GPUs (config/config.yaml, line 12: stages.stage1.scales)",
        advice,
    )


def test_a_scale_below_the_first_is_moved_to_no_other_stage() -> None:
    assert from_1x2("[1x1]").endswith("next     remove 1x1: the ladder starts at 1x2")
    assert from_1x2("[1x4]", "[1x2]").endswith("next     remove 1x2: stage1 measures it")


def test_the_global_batch_of_the_first_scale_is_divided() -> None:
    strong = ("modes: [weak]", "modes: [strong]")
    assert from_1x2("[1x4]", "[2x4]", strong, ("per_gpu: 32", "per_gpu: 4")) == ""
    assert from_1x2("[1x4]", "[2x4]", strong, ("per_gpu: 32", "per_gpu: 6")) == message(
        "config.yaml, line 4: workload.batch_per_gpu",
        "strong mode cannot divide the global batch evenly",
        "a global batch of 12 over 2x4 (8 GPUs)",
        "a multiple of 4, which all scales divide",
        "set batch_per_gpu: 4 or 8, or remove the scale, or strong from modes",
    )


def test_a_gpu_needs_more_steps_than_a_cpu() -> None:
    on_gpus = CLUSTER.replace("cpu,", "cuda,")
    text = problems(config_with(("{warmup_steps: 10}", "{max_steps: 49}")), on_gpus)
    assert "max_steps 49, warmup_steps 20 (null, with device cuda), min_steps 30" in text
    assert problems(config_with(("{warmup_steps: 10}", "{max_steps: 50}")), on_gpus) == ""
    assert problems(config_with(("{warmup_steps: 10}", "{max_steps: 40}"))) == ""


def script_message(key: str, what: str, found: str, advice: str) -> str:
    allowed = f"a file, {places()}"
    return message(f"config.yaml, {key}", what, f'"{found}"', allowed, advice)


def test_missing_scripts() -> None:
    config = config_with(("train.py", "trian.py"), ("prepare.py", "data.py"))
    advice = "check the spelling and the directory; an absolute path works too"
    assert problems(config).split("\n\n") == [
        script_message("line 2: workload.script", "there is no such script", "trian.py", advice),
        script_message("line 7: workload.prepare[0]", "there is no such script", "data.py", advice),
    ]
    assert problems(config_with(("train.py", "."))) == script_message(
        "line 2: workload.script", "not a file", ".", advice
    )


def test_arguments_behind_the_script() -> None:
    assert problems(config_with(("train.py", "train.py --lr 1"))) == script_message(
        "line 2: workload.script",
        "there is no such script",
        "train.py --lr 1",
        "keep train.py here; its arguments go into workload.args",
    )


@pytest.mark.parametrize("starter", ["python", "/opt/python3.12", "torchrun"])
def test_what_starts_the_script_is_left_out(starter: str) -> None:
    text = problems(
        config_with(("[prepare.py", f"[{starter}, prepare.py"), ("script: train.py", f"script: {starter} t.py"))
    )
    assert text.count(f"  next     leave out {starter}: software.python and launcher in cluster.yaml say what") == 2


@pytest.mark.parametrize("module", ["-m train", "-m package.train_2"])
def test_modules_are_not_looked_for(module: str) -> None:
    assert problems(config_with(("script: train.py", f'script: "{module}"'))) == ""


@pytest.mark.parametrize("name", ["a b/my train.py", "größe.py", "$(touch x).py", "; rm.py"])
def test_odd_script_names(name: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).touch()
    assert problems(config_with(("script: train.py", f'script: "{name}"'))) == ""


def test_data_dir_placeholder_without_data_dir() -> None:
    config = config_with(
        ('"{lr}"', '"{data_dir}"'),
        ("data_dir: data", "data_dir: null"),
        ('prepare: [prepare.py, "{data_dir}"]', "prepare: null"),
    )
    assert problems(config) == message(
        "config.yaml, line 3: workload.args[1]",
        "{data_dir} is used, but workload.data_dir is null",
        '"{data_dir}"',
        "{data_dir} together with a value of workload.data_dir",
        "set workload.data_dir, for example data_dir: data/digits, or remove the argument",
    )


def test_one_gpu_per_node_has_no_stage2() -> None:
    cluster = CLUSTER.replace("gpus: 2", "gpus: 1")
    assert problems(cluster=cluster) == message(
        "config.yaml, line 13: stages.stage2.scales[0]",
        "the scale asks for 2 GPUs per node, the site has 1",
        "1x2",
        "at most 1 per node (config/cluster.yaml, line 2: node.gpus)",
        "remove stages.stage2: a site with one GPU per node has none",
    )
    assert problems(config_with(("  stage2: {scales: [1x2]}\n", "")), cluster) == ""


def test_variables_of_the_shell() -> None:
    missing = problems(config_with(("script: train.py", "script: $HOME/train.py")))
    assert missing.endswith("  next     shell variables are not expanded here: write ~/train.py")
    Path("$HOME").mkdir()
    Path("$HOME/train.py").touch()
    assert problems(config_with(("script: train.py", "script: $HOME/train.py"))) == ""
    path = problems(*with_variable("workload", "PATH", '"/x:$PATH"'))
    assert "PATH: a shell variable, which is not expanded here" in path
    assert 'software.setup in cluster.yaml, which is shell: export PATH="/x:$PATH"' in path
    assert problems(*with_variable("workload", "PATH", '"/x:$PATHS"')) == ""
    in_braces = problems(config_with(('"{lr}"', '"--data=${HOME}/x"')))
    assert "write the value of a shell variable" in in_braces


def test_home_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    assert problems(config_with(("script: train.py", "script: ~/train.py"))) == ""


def test_strong_mode_that_does_not_divide() -> None:
    config = config_with(
        ("[weak]", "[weak, strong]"), ("batch_per_gpu: 32", "batch_per_gpu: 30"),
        ("[2x1]", "[2x1, 2x2, 3x1]"),
    )  # fmt: skip
    assert problems(config) == message(
        "config.yaml, line 4: workload.batch_per_gpu",
        "strong mode cannot divide the global batch evenly",
        "a global batch of 30 over 2x2 (4 GPUs)",
        "a multiple of 12, which all scales divide",
        "set batch_per_gpu: 24 or 36, or remove the scale, or strong from modes",
    )
    assert problems(config.replace("batch_per_gpu: 30", "batch_per_gpu: 36")) == ""
    assert problems(config.replace("strong", "weak").replace("[weak, weak]", "[weak]")) == ""
    assert "set batch_per_gpu: 12, or" in problems(config.replace("gpu: 30", "gpu: 3"))


def test_strong_mode_without_a_batch_placeholder() -> None:
    config = config_with(
        ("[weak]", "[strong]"), ("{batch_per_gpu}", "32"),
        ("default: {}", 'default: {}\n  told: {args: [--global, "{global_batch}"]}\n'
         '  env: {env: {BATCH: "{batch_per_gpu}"}}\n  b: {}'),
    )  # fmt: skip
    assert problems(config) == message(
        "config.yaml, line 3: workload.args",
        "strong mode changes the batch per GPU, but nothing passes it to the script",
        "no batch placeholder in the arguments and the environment of default, b",
        "{batch_per_gpu} or {global_batch} in args or env of the workload or the variant",
        'add for example --batch-size, "{batch_per_gpu}", or remove strong from modes',
    )


ENVIRONMENTS = [
    ("workload", "config.yaml, line 8: workload.env"),
    ("variant", "config.yaml, line 16: variants.default.env"),
    ("network", "cluster.yaml, line 4: network.env"),
]


def with_variable(key: str, name: str, value: str) -> tuple[str, str]:
    """config.yaml and cluster.yaml with a variable in one of the places that take them."""
    env = f"env: {{{name}: {value}}}"
    if key == "workload":
        return config_with(("env: {}", env)), CLUSTER
    if key == "variant":
        return config_with(("default: {}", f"default: {{{env}}}")), CLUSTER
    return CONFIG, CLUSTER.replace("env: {}", env)


@pytest.mark.parametrize(("key", "place"), ENVIRONMENTS)
@pytest.mark.parametrize(
    "name",
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
     "DDP_LADDER_LAUNCHED_AT"],
)  # fmt: skip
def test_variables_that_ddp_ladder_sets(key: str, place: str, name: str) -> None:
    assert problems(*with_variable(key, name, "1")) == message(
        f"{place}.{name}",
        "a variable that ddp-ladder sets for each process",
        f'"{name}"',
        "any variable but RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and "
        "DDP_LADDER_...",
        "remove it",
    )


@pytest.mark.parametrize("name", ["A=B", "A B", "", "größe", "A\\n", "$(id)"])
def test_names_of_variables(name: str) -> None:
    text = problems(config_with(("env: {}", f'env: {{"{name}": 1}}')))
    assert "not a name that an environment variable can have" in text.splitlines()[0]


def test_fewer_cores_than_gpus() -> None:
    assert problems(cluster=CLUSTER.replace("cpus: 2", "cpus: 1")) == message(
        "cluster.yaml, line 2: node.cpus",
        "fewer CPU cores than GPUs: each GPU's process needs a core",
        "cpus 1, gpus 2",
        "at least 2",
        "set node.cpus to the cores that a job gets on one node (nproc shows them)",
    )


@pytest.mark.parametrize(
    ("python", "what"),
    [("/no/python", "there is no such program"), ("train.py", "not a program that can be run"),
     (".", "not a program that can be run")],
)  # fmt: skip
def test_python_that_cannot_run(python: str, what: str) -> None:
    assert problems(cluster=CLUSTER.replace("python: null", f'python: "{python}"')) == message(
        "cluster.yaml, line 3: software.python",
        what,
        f'"{python}"',
        "a Python interpreter, or null for the one that runs the workflow",
        "write the full path, as `which python` shows it where the training runs",
    )


def test_python_that_runs() -> None:
    assert problems(cluster=CLUSTER.replace("python: null", f"python: {sys.executable}")) == ""


def test_a_python_that_modules_or_setup_bring_is_not_looked_for() -> None:
    for brought in ("modules: [PyTorch/2.8.0]", "setup: source venv/bin/activate"):
        cluster = CLUSTER.replace("python: null", f"python: python-of-the-site, {brought}")
        assert problems(cluster=cluster) == ""
        named = cluster.replace("python-of-the-site", "/no/python")
        assert "line 3: software.python: there is no such program" in problems(cluster=named)
    assert problems(cluster=CLUSTER.replace("python: null", "python: python-of-the-site")) != ""


CONTAINER = "python: python3, container: {image: /images/a.sif}"


@pytest.mark.parametrize("python", ["python3", "/opt/conda/bin/python", "python-of-the-image"])
@pytest.mark.parametrize("modules", ["", ", modules: [apptainer]"])
def test_a_python_in_a_container_is_not_looked_for(python: str, modules: str) -> None:
    assert problems(cluster=CLUSTER.replace("python: null", CONTAINER.replace("python3", python) + modules)) == ""


def test_a_container_without_a_python() -> None:
    cluster = CLUSTER.replace("python: null", "container: {image: /images/a.sif}")
    assert problems(cluster=cluster) == message(
        "cluster.yaml, line 3: software.python",
        "the Python that runs the workflow is not in the container",
        "python: null",
        "the name or path of a Python inside the image",
        "set software.python: python3, or the path that it has inside",
    )


GRES = "gpu, or gpu:type such as gpu:a100, or null"


@pytest.mark.parametrize(
    ("gres", "what", "found", "advice"),
    [
        *[
            (
                gres,
                "a number of GPUs, which the scale sets",
                found,
                f"set gres: {name}; a job on 1x2 then asks for {name}:2",
            )
            for gres, found, name in (
                ("gpu:2", "gpu:2", "gpu"), ("gpu:4", "gpu:4 (node.gpus is 2)", "gpu"),
                ("gpu:a100:4", "gpu:a100:4 (node.gpus is 2)", "gpu:a100"), ("gpu:3090:2", "gpu:3090:2", "gpu:3090"),
            )
        ],
        *[
            (
                gres,
                "not a GPU: gres names the GPUs that a job requests",
                gres,
                "set gres: gpu, or null if jobs request no GPUs",
            )
            for gres in ("a100", "shard", "lustre:1", "gpus")
        ],
        *[
            (gres, "not written as Slurm names GPUs", gres, "write what `sinfo --format=%G` shows, without its number")
            for gres in ("gpu:", "gpu:a:b", "gpu::")
        ],
    ],
)  # fmt: skip
def test_gres(gres: str, what: str, found: str, advice: str) -> None:
    cluster = CLUSTER.replace("cpus: 2}", f'cpus: 2, gres: "{gres}"}}')
    assert problems(cluster=cluster) == message("cluster.yaml, line 2: node.gres", what, found, GRES, advice)


@pytest.mark.parametrize("gres", ["gpu", "gpu:a100", "gpu:3090", "gpu:a100-sxm4_80g.1"])
def test_gres_that_is_allowed(gres: str) -> None:
    assert problems(cluster=CLUSTER.replace("cpus: 2}", f'cpus: 2, gres: "{gres}"}}')) == ""


def test_extra_options_of_the_site_and_of_a_stage() -> None:
    config = config_with(("runtime: 10", "slurm: {extra: [--exclusive, --qos=debug]}"))
    cluster = CLUSTER + "slurm: {extra: [exclusive]}\n"
    assert problems(config, cluster).split("\n\n") == [
        message(
            "config.yaml, line 12: stages.stage1.slurm.extra[1]",
            "an option that is set elsewhere",
            '"--qos=debug"',
            "options that no other key sets, such as --exclusive, --hint=nomultithread or --signal=TERM@120",
            "remove it and set slurm.qos instead",
        ),
        message(
            "cluster.yaml, line 5: slurm.extra[0]",
            "not an option",
            '"exclusive"',
            "options of sbatch, each with its own -- in front",
            "write --exclusive",
        ),
    ]


@pytest.mark.parametrize("node", ["", "node[01-04]", "a,b", "a b", "größe"])
def test_names_of_nodes_in_an_interface_map(node: str) -> None:
    cluster = CLUSTER.replace("backend: auto", f'backend: auto, interface: {{node01: eth0, "{node}": eth1}}')
    place = f".{node}" if node == "größe" else f'."{node}"'
    assert problems(cluster=cluster) == message(
        f"cluster.yaml, line 4: network.interface{place}",
        "not a name that a node can have",
        f'"{node}"',
        "one node's name, as `sinfo --Node` shows it: letters, digits and . _ -",
        "write a line for each node, such as node01: eth0",
    )


def test_nccl_on_a_site_without_gpus() -> None:
    text = problems(cluster=CLUSTER.replace("backend: auto", "backend: nccl"))
    assert text.startswith("config/cluster.yaml, line 4: network.backend: NCCL needs GPUs")
    cuda = CLUSTER.replace("backend: auto", "backend: nccl").replace("device: cpu", "device: cuda")
    assert problems(cluster=cuda) == ""


def test_problems_of_all_kinds_come_together() -> None:
    config = config_with(("train.py", "x.py"), ("[2x1]", "[2x9]"), ('"{lr}"', '"{l}"'))
    assert len(problems(config, CLUSTER.replace("cpus: 2", "cpus: 1")).split("\n\n")) == 4


@pytest.mark.parametrize("value", ["64", '"64 * 2"', '"{batch_per_gpu} * 4 // 3"', '"{global_batch}*{world_size} / 2"'])
def test_samples_per_step_may_be(value: str) -> None:
    assert problems(config_with(("batch_per_gpu: 32", f"batch_per_gpu: 64\n  samples_per_step: {value}"))) == ""


@pytest.mark.parametrize(
    "value", ["{lr}", "4 + 4", "0", "* 4", "{batch_per_gpu", "-2", "64.0", "{no}", "{seed}", "{nodes} // 2"]
)
def test_samples_per_step_may_not_be(value: str) -> None:
    text = problems(config_with(("batch_per_gpu: 32", f'batch_per_gpu: 64\n  samples_per_step: "{value}"')))
    assert "workload.samples_per_step: not a number of samples" in text
    assert f'found    "{value}"' in text


@pytest.mark.parametrize(
    "value", ["{global_batch} / 32", "--n={nodes} * {world_size}//2", "a * 3", "{seed}/{seed}", "{start_dir}//3"]
)
def test_arithmetic_that_can_be(value: str) -> None:
    assert problems(config_with(('"{lr}"', f'"{value}"'))) == ""


WHOLE = "whole numbers and placeholders that are, with * / // between; / has to divide evenly"
HALF = 'half of {nodes} is "{nodes} // 2"; a factor of {lr} belongs in workload.lr'
EVENLY = "write // in place of / to round down, or choose numbers that divide evenly in every run"


@pytest.mark.parametrize(
    ("value", "why"),
    [("{world_size} / 2", "1 / 2 is not a whole number (weak/1x1/r1)"),
     ("--b={global_batch} / 3", "32 / 3 is not a whole number (weak/1x1/r1)"),
     ("{global_batch} * 8 / {seed}", "256 / 3 is not a whole number (weak/1x1/r3)"),
     ("{lr} * 2", "0.1 is not a whole number (weak/1x1/r1)"),
     ("{nodes} * 0.5", "0.5 is not a whole number (weak/1x1/r1)"),
     ("{nodes} // 0", "1 // 0 is not a whole number (weak/1x1/r1)")],
)  # fmt: skip
def test_arithmetic_that_cannot_be(value: str, why: str) -> None:
    config = config_with(('"{lr}"', f'"{value}"'))
    place = "config.yaml, line 3: workload.args[1]"
    assert problems(config) == message(
        place, "not a whole number", f'"{value}": {why}', WHOLE, EVENLY if " / " in why else HALF
    )


def test_arithmetic_inside_the_braces() -> None:
    text = problems(config_with(('"{lr}"', '"--n={gpus_per_node * 4}"')))
    assert f"workload.args[1]: {NO_PLACEHOLDER}" in text
    assert 'put the braces around the names alone: "{gpus_per_node} * 4"' in text


@pytest.mark.parametrize(("key", "place"), ENVIRONMENTS)
def test_environments_take_placeholders(key: str, place: str) -> None:
    assert problems(*with_variable(key, "A", '"{nodes} * 2"')) == ""
    text = problems(*with_variable(key, "A", "'{\"a\": 1}'"))
    assert text.startswith(f"config/{place}.A: {NO_PLACEHOLDER}")
    assert "double literal braces: '{{\"a\": 1}}'" in text
    assert problems(*with_variable(key, "A", "'{{\"a\": 1}}'")) == ""


@pytest.mark.parametrize(
    ("value", "found"),
    [("rate: [0-9]+", "0 groups"), ("(a)(b)", "2 groups"), ("(rate", "missing ), unterminated subpattern")],
)
def test_throughput_regex_has_one_group(value: str, found: str) -> None:
    text = problems(config_with(("batch_per_gpu: 32", f"batch_per_gpu: 64\n  throughput_regex: '{value}'")))
    assert "workload.throughput_regex: not a regular expression with one group" in text
    assert found in text


@pytest.mark.parametrize("argument", ["--cleanenv", "-e", "--containall", "-C"])
def test_a_container_keeps_the_environment_of_the_run(argument: str) -> None:
    cluster = CLUSTER.replace("python: null", f"{CONTAINER[:-1]}, args: [--no-home, {argument}]}}")
    assert problems(cluster=cluster) == message(
        "cluster.yaml, line 3: software.container.args[1]",
        "it clears the run's environment: ranks would not find each other, nor their run.json",
        f'"{argument}"',
        "options of `apptainer exec` that leave the environment as it is",
        "remove it; to leave out the home directory, use --no-home",
    )
