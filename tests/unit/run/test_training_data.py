"""Training data: what is told of missing ones, and what prepares them, one process at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.messages import UserError
from ddp_ladder.run import training_data
from ddp_ladder.run.training_data import data_problem, prepare_argv, prepare_data
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.load import load_settings

CONFIG = """\
workload: {{script: train.py, args: ["{{batch_per_gpu}}"], batch_per_gpu: 8, data_dir: {data_dir}, prepare: {prepare}}}
stages: {{stage1: {{}}}}
"""
CONTAINER = "software: {python: python3, container: {image: torch.sif, binds: [/scratch]}}\n"


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "checkout"
    path.mkdir()
    monkeypatch.chdir(path)
    for script in ("train.py", "prepare.py", "torch.sif"):
        Path(script).touch()
    return path


def settings(data_dir: str, prepare: str = "null", software: str = "") -> Settings:
    Path("config.yaml").write_text(CONFIG.format(data_dir=data_dir, prepare=prepare))
    Path("cluster.yaml").write_text(f"site: here\nnode: {{gpus: 1, device: cpu, cpus: 1}}\n{software}")
    return load_settings(Path("config.yaml"), Path("cluster.yaml"))


def problem_with(data_dir: str, on_nodes: bool = False) -> tuple[str, str]:
    found = data_problem(settings(data_dir).experiment, on_nodes)
    return (found[0], str(found[1])) if found else ("", "")


def test_data_that_are_missing_and_the_advice() -> None:
    outcome, text = problem_with("data/imagenet")
    assert (outcome, text.splitlines()[0]) == ("error", "config.yaml: workload.data_dir: the training data are missing")
    assert "data/imagenet: No such file or directory; " in text
    assert "workload.prepare" in text
    assert problem_with("data/imagenet", on_nodes=True)[0] == "error", "the nodes share the checkout"
    (advice,) = [line for line in text.splitlines() if line.startswith("  next")]
    subprocess.run(advice.rpartition(": ")[2], shell=True, check=True)
    assert problem_with("data/imagenet") == ("", "")


def test_no_data_none_expected_or_prepared_ones_are_no_problem() -> None:
    assert problem_with("null") == ("", "")
    assert data_problem(settings("data/mine", "[prepare.py]").experiment, False) is None


@pytest.mark.parametrize(("kind", "outcome"), [("xfs", "warning"), ("lustre", "error")])
def test_disks_of_the_nodes_alone_are_possible_where_nothing_shared_is_above(
    kind: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind of file system is made up: there is no Lustre here."""
    monkeypatch.setattr(training_data, "filesystem", lambda path: kind)
    data_dir = "/local-scratch/imagenet"
    assert problem_with(data_dir)[0] == "error", "the training runs here"
    assert problem_with(data_dir, on_nodes=True)[0] == outcome
    assert (f"srun --nodes=1 ls {data_dir}" in problem_with(data_dir, on_nodes=True)[1]) == (outcome == "warning")


def test_prepare_runs_in_the_container_with_the_binds_of_the_training(checkout: Path) -> None:
    ladder = Ladder.of(settings("/data/mine", '[prepare.py, "{data_dir}"]', CONTAINER))
    spec = ladder.plan.runs[0].replace(directory="work")  # the training's; prepare starts where Snakemake does
    argv = prepare_argv(spec, ladder.prepare_command, Path("/data/mine"))
    assert argv[:2] == ("apptainer", "exec")
    assert argv[-4:] == ("torch.sif", "python3", "prepare.py", "/data/mine")
    assert "--pwd" not in argv
    binds = {argv[place + 1] for place, word in enumerate(argv) if word == "--bind"}
    assert {str(checkout), "/scratch", "/data/mine"} <= binds


def prepare(body: str, **software: str) -> tuple[Ladder, list[str]]:
    Path("prepare.py").write_text(body)
    ladder = Ladder.of(settings("data/mine", '[prepare.py, "{data_dir}"]', **software))
    Path("data/mine").mkdir(parents=True, exist_ok=True)
    return ladder, [
        sys.executable,
        "-c",
        """
import os, sys
from pathlib import Path
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.settings.load import load_settings
from ddp_ladder.run.training_data import prepare_data
ladder = Ladder.of(load_settings(Path("config.yaml"), Path("cluster.yaml")))
sys.exit(prepare_data(ladder.plan.runs[0], ladder.settings.site, ladder.prepare_command, Path(ladder.data_marker)))
""",
    ]


def test_of_two_starts_the_second_waits_and_has_nothing_to_do() -> None:
    """The first one is held up until the second has told that it waits."""
    _, argv = prepare("import os; os.mkfifo('go'); open('go').read(); print('prepared here', flush=True)")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starts = []
    for _ in range(2):
        starts.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        while not Path("go").exists():
            assert starts[0].poll() is None, starts[0].communicate()
    second = starts[1]
    assert second.stderr is not None
    waits = second.stderr.readline()
    assert waits.startswith("workload.data_dir data/mine: job local-")
    assert f"process {starts[0].pid} on " in waits
    assert waits.endswith("holds these data; waiting for its end\n")
    Path("go").write_text("")
    said = [start.communicate(timeout=60)[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0]
    assert said == ["prepared here\n", "data/mine has been prepared by another start\n"]
    assert json.loads(Path("data/mine/.prepared").read_text()) == {"command": ["prepare.py", "data/mine"]}


def test_a_prepare_that_fails_or_cannot_be_started_leaves_no_marker() -> None:
    ladder, _ = prepare("raise SystemExit(3)")
    spec, site, marker = ladder.plan.runs[0], ladder.settings.site, Path(ladder.data_marker)
    assert prepare_data(spec, site, ladder.prepare_command, marker) == 3
    broken = spec.replace(setup="echo no licence; false")
    with pytest.raises(UserError) as caught:
        prepare_data(broken, site, ladder.prepare_command, marker)
    assert str(caught.value).startswith(
        "cluster.yaml: software.setup: the snippet failed with exit code 1\nno licence\n"
    )
    other = Path("of_another_architecture")
    other.write_bytes(b"\x7fELF")
    other.chmod(0o755)
    with pytest.raises(UserError) as caught:
        prepare_data(spec.replace(python=f"./{other}"), site, ladder.prepare_command, marker)
    assert "software.python: ./of_another_architecture cannot be started: Exec format error" in str(caught.value)
    assert "set workload.prepare: null" in str(caught.value)
    assert not marker.exists()
