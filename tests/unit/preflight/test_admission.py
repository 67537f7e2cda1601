"""Slurm's own words on the jobs of a plan: what Slurm 22.05.8 printed on the test cluster, from a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_ladder.common.messages import UserError
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.preflight.admission import Admission, check_jobs, read_partitions
from ddp_ladder.settings.load import load_settings
from make_files import put_on_path
from slurm_captured import PARTITIONS, shows

STARTS = "sbatch: Job 25 to start at 2026-11-23T22:35:30 using 2 processors on nodes node2 in partition gpu"


def asked(
    directory: Path,
    runtime: int = 20,
    stage: dict[str, Any] | None = None,
    stages: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    **slurm: Any,
) -> Admission:
    (directory / "train.py").touch()
    stages = {"stage1": {"scales": ["1x1"], "runtime": runtime, "slurm": stage or {}}, **(stages or {})}
    config = {"workload": {"script": str(directory / "train.py"), "batch_per_gpu": 64}, "stages": stages}
    node = {"gpus": 4, "device": "cuda", "cpus": 8, "gres": "gpu:a100", "memory_mb": 8000, **(node or {})}
    site = {"site": "test", "slurm": {"partition": "gpu", **slurm}, "node": node}
    for name, data in (("config", config), ("cluster", site)):
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(data))
    settings = load_settings(directory / "config.yaml", directory / "cluster.yaml")
    return check_jobs(make_plan(settings).jobs, settings, PARTITIONS)


SITE, STAGE, FAILURE = "cluster.yaml", "config.yaml: stages.stage1", "allocation failure:"
# Slurm's words, what is set in `slurm` of the site, and the key that is named.
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    (
        f"sbatch: error: invalid partition specified: gpus\n{FAILURE} Invalid partition name specified",
        {"partition": "gpus"}, f"{SITE}: slurm.partition",
    ),
    (
        f"{FAILURE} Invalid account or account/partition combination specified",
        {"account": "projekt"}, f"{SITE}: slurm.account",
    ),
    (f"{FAILURE} Invalid qos specification", {"qos": "smal"}, f"{SITE}: slurm.qos"),
    (
        f"{FAILURE} Invalid qos specification",
        {"qos": "normal", "stage": {"qos": "smal"}}, f"{STAGE}.slurm.qos",
    ),
    (f"{FAILURE} Invalid qos specification", {"partition": "picky"}, f"{SITE}: slurm.qos"),  # it wants one
    (f"{FAILURE} Invalid feature specification", {"constraint": "x"}, f"{SITE}: slurm.constraint"),
    (f"{FAILURE} Requested reservation is invalid", {"reservation": "x"}, f"{SITE}: slurm.reservation"),
    (f"{FAILURE} Invalid node name specified", {"exclude": "nodex"}, f"{SITE}: slurm.nodelist"),
    ("sbatch: error: invalid number of nodes (-N 2-1)", {"nodelist": "node[1-2]"}, f"{SITE}: slurm.nodelist"),
    (
        f"{FAILURE} Required partition not available (inactive or drain)",
        {"partition": "idle"}, f"{SITE}: slurm.partition",
    ),
    (f"{FAILURE} Invalid Trackable RESource (TRES) specification", {}, f"{SITE}: node.gres"),
    (f"{FAILURE} Requested node configuration is not available", {}, f"{STAGE}.scales"),
    (
        "sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information",
        {"extra": ["--foo"]}, f"{SITE}: slurm.extra",
    ),
    ("sbatch: error: a submit plugin's own words", {}, f"{SITE}: slurm"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "slurm", "key"), REFUSALS)
def test_a_refusal_is_shown_in_slurms_words_with_the_request_and_the_key(
    words: str, slurm: dict[str, Any], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch, tmp_path, sbatch=f"cat >&2 <<'END'\n{words}\nEND\nexit 1", sinfo="")
    (problem,) = asked(tmp_path, **slurm).refused
    assert problem.where == f"{tmp_path}/{key}"
    assert problem.what.startswith("Slurm refuses the job of 1x1: ")
    assert words.splitlines()[0].rpartition(": ")[2] in problem.what
    assert problem.found
    assert "--nodes=1 --ntasks-per-node=1 --gres=gpu:a100:1 --cpus-per-task=2 --mem=2000M --time=20" in problem.found
    if "partition" in problem.where:
        assert problem.allowed == "closed, debug, denying, gpu, idle, picky, rooted"
    if "qos" in problem.where:
        assert problem.allowed == ("normal" if slurm.get("partition") == "picky" else None)
    for name, value in (slurm.get("stage") or slurm).items():
        assert (value[0] if name == "extra" else f"--{name}={value}") in problem.found
    assert problem.next


def test_jobs_of_several_stages_that_are_refused_for_one_key_are_one_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch, tmp_path, sbatch=f"echo '{FAILURE} Invalid account or account/partition' >&2; exit 1")
    several = {f"stage{number}": {"scales": [scale], "runtime": 20} for number, scale in ((2, "1x2"), (3, "2x1"))}
    (problem,) = asked(tmp_path, stages=several, account="projekt").refused
    assert problem.what.startswith("Slurm refuses the jobs of 1x1, 1x2, 2x1: ")
    assert "sacctmgr show associations" in (problem.next or "")
    own = {**several, "stage2": {**several["stage2"], "slurm": {"account": "other"}}}
    assert len(asked(tmp_path, stages=own, account="projekt").refused) == 2


@pytest.mark.parametrize(
    ("node", "advice"),
    [
        ({"gpus": 8}, True),
        ({"cpus": 64}, True),
        ({"memory_mb": 256_000}, True),
        ({"gres": "gpu:h100"}, True),
        ({"gres": "gpu"}, False),  # such a node is there, so it is something else
    ],
)
def test_nodes_that_are_smaller_than_described_are_one_problem_with_their_shape_and_the_keys(
    node: dict[str, Any], advice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = f"echo '{FAILURE} Requested node configuration is not available' >&2; exit 1"
    put_on_path(monkeypatch, tmp_path, sbatch=refuses, sinfo="", scontrol=shows())
    scales = {"stage2": {"scales": ["1x2"], "runtime": 20, "slurm": {"partition": "debug"}}}
    refused = asked(tmp_path, node=node, stages=scales).refused
    assert len(refused) == (1 if advice else 2)
    if advice:
        (problem,) = refused
        assert problem.where == f"{tmp_path}/cluster.yaml: node"
        assert "Slurm refuses the jobs of 1x1, 1x2: " in problem.what
        assert [f"node.{key}: {value}" in (problem.found or "") for key, value in node.items()] == [True]
        of_debug = "debug: 2 nodes with 4 GPUs (gpu:a100), 8 CPUs and 16000 MB"
        assert problem.allowed == f"gpu: 6 nodes with 4 GPUs (gpu:a100), 8 CPUs and 16000 MB; {of_debug}"
        keys = "node.gpus: 4, node.gres: gpu:a100, node.cpus: 8 or less, node.memory_mb: 16000 or less"
        assert (problem.next or "").startswith(f"set {keys}, or change slurm.partition; ")


@pytest.mark.parametrize(
    ("scale", "slurm", "waits", "text"),
    [  # gpu has 6 nodes, of which 3 are up; debug has 2, both up
        ("6x1", {}, True, "Slurm cannot start 6x1 now; the job waits for nodes to come back"),
        ("7x1", {}, False, "up to 6 such nodes (gpu: 6 nodes with 4 GPUs"),
        ("4x1", {"partition": "debug"}, False, "up to 2 such nodes (debug: 2 nodes with 4 GPUs"),
        ("3x1", {}, False, "Slurm refuses the job of 3x1: Requested node configuration is not available"),
        ("3x1", {"constraint": "ib"}, True, "compare slurm.constraint with `sinfo --Node --long`"),
    ],
)
def test_a_job_waits_for_nodes_only_if_its_partition_has_as_many(
    scale: str, slurm: dict[str, str], waits: bool, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = f"{FAILURE} Requested node configuration is not available"
    sbatch = f"case \"$*\" in *--nodes={scale[0]}*) echo '{refused}' >&2; exit 1;; esac\necho '{STARTS}' >&2"
    put_on_path(monkeypatch, tmp_path, sbatch=sbatch, scontrol=shows())
    admission = asked(tmp_path, stages={"stage3": {"scales": [scale], "runtime": 20, "slurm": slurm}})
    (problem,) = admission.waits if waits else admission.refused
    assert text in str(problem)
    assert len(admission.waits) + len(admission.refused) == 1
    assert (
        "not up: node3 (IDLE+MAINTENANCE+RESERVED), node5 (IDLE+DRAIN), node6 (DOWN+NOT_RESPONDING)" in str(problem)
    ) == waits
    assert admission.starts_in_words == "1x1 at 2026-11-23 22:35:30"


@pytest.mark.parametrize(
    ("partition", "runtime", "refused"),
    [("debug", 30, False), ("debug", 31, True), ("debug,gpu", 31, False), ("closed", 10_000, False)],
)
def test_the_time_limit_of_the_partition(
    partition: str, runtime: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sbatch --test-only`` takes a job that is too long for its partition, and Slurm would never start it."""
    put_on_path(monkeypatch, tmp_path, sbatch=f"echo '{STARTS}' >&2")
    admission = asked(tmp_path, runtime, partition=partition)
    assert bool(admission.refused) == refused
    for problem in admission.refused:
        assert problem.where == f"{tmp_path}/config.yaml: stages.stage1.runtime"
        assert problem.allowed == "up to 30 min"
    assert [problem.found for problem in admission.waits] == (["state DOWN"] if partition == "closed" else [])
    assert bool(admission.starts) == (not admission.refused and not admission.waits)  # what is doubted passes nowhere


@pytest.mark.parametrize("script", ["echo 'slurm_load_partitions: Unable to contact' >&2; exit 1", "echo Maintenance"])
def test_a_slurm_that_does_not_answer(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(monkeypatch, tmp_path, scontrol=script)
    with pytest.raises(UserError, match="the controller does not answer"):
        read_partitions()
    put_on_path(monkeypatch, tmp_path, sbatch="echo 'Unable to contact slurm controller' >&2; exit 1")
    admission = asked(tmp_path)
    assert admission.refused == ()
    assert "it is submitted without this check" in str(admission.waits[0])
