from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.messages import MOST_COLUMNS, Problem
from ddp_ladder.live import doctor as checks
from ddp_ladder.live.doctor import OUTCOMES, examine, failed, judge_python, listing, mistake, site_python
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.settings.keys import Settings, Software
from ddp_ladder.settings.load import CLUSTER, CONFIG, Sources, load_settings
from make_files import put_on_path, write_programs
from slurm_captured import shows

SHIPPED = load_settings(CONFIG, CLUSTER)


def on_a_cluster(**site: Any) -> Settings:
    return replace(SHIPPED, site=SHIPPED.site.replace(site="test", **site))


def software(python: str | None = None, **values: Any) -> list[Finding]:
    settings = on_a_cluster(software=Software(python=python, **values))
    return list(site_python(Ladder.of(settings).plan.runs[0], settings.site, os.environ))


def outcome(finding: Finding) -> str:
    return OUTCOMES[finding.severity]


def only(findings: list[Finding], topic: str) -> Finding:
    (wanted,) = [finding for finding in findings if finding.kind == topic]
    return wanted


# The list


def test_the_list_is_aligned_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    problem = Problem("config/cluster.yaml: slurm.partition", "there is no such partition", "gup", "gpu, debug", "gpu?")
    sections = [
        ("Versions", [checks.passed("Python", "3.11.2")]),
        ("Slurm", [mistake(problem, "jobs"), checks.not_passed("unknown", "controller", "none here", "look there")]),
    ]
    assert listing(sections).splitlines() == [
        "Versions",
        "  pass         Python      3.11.2",
        "",
        "Slurm",
        "  FAIL         jobs        config/cluster.yaml: slurm.partition: there is no such partition",
        "                           (found gup; allowed gpu, debug)",
        "                           next: gpu?",
        "  not checked  controller  none here",
        "                           next: look there",
        "",
        "1 failed, 1 passed, 1 not checked",
    ]
    assert failed(sections)
    assert not failed(sections[:1])


def test_every_finding_that_is_no_pass_of_the_shipped_ladder_says_what_is_next() -> None:
    pytest.importorskip("torch")
    sections = examine(Sources(CONFIG, CLUSTER, {}))
    findings = [finding for _, of_section in sections for finding in of_section]
    assert [finding for finding in findings if outcome(finding) == "FAIL"] == []
    assert {finding.kind for finding in findings} >= {"Python", "snakemake", "results", "training Python", "torch"}
    assert all(finding.next for finding in findings if outcome(finding) != "pass")
    assert all(len(line) <= MOST_COLUMNS for line in listing(sections).splitlines())


def test_wrong_settings_are_failures_of_the_list(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("repeat: 3\n")
    sections = examine(Sources(config, CLUSTER, {}))
    assert failed(sections)
    assert 'did you mean "repeats"?' in listing(sections)
    assert "all else" in listing(sections)


# Training software


def test_a_python_that_is_not_there_or_does_not_start(tmp_path: Path) -> None:
    assert "there is no nowhere/python" in only(software("nowhere/python"), "training Python").measured
    write_programs(tmp_path, python="echo libpython: cannot open shared object >&2; exit 127")
    finding = only(software(str(tmp_path / "python")), "training Python")
    assert (outcome(finding), "libpython: cannot open shared object" in finding.measured) == ("FAIL", True)


def judged(report: dict[str, Any], device: str) -> list[Finding]:
    return list(judge_python(report, "python3", "config/cluster.yaml: software.python", ACCELERATORS[device]))


@pytest.mark.parametrize(
    ("report", "device", "topic", "wanted"),
    [
        ({"python": [3, 9, 0], "torch": "2.4.0", "built_for": "12.1"}, "cuda", "torch", "pass"),
        ({"python": [3, 8, 9], "torch": "2.4.0", "built_for": "12.1"}, "cuda", "training Python", "FAIL"),
        ({"python": [3, 9, 0], "torch": "2.3.1+cu118", "built_for": "11.8"}, "cuda", "torch", "FAIL"),
        ({"python": [3, 9, 0], "torch": "2.4.0", "built_for": None}, "cuda", "torch", "FAIL"),
        ({"python": [3, 9, 0], "torch": "2.4.0", "built_for": None}, "cpu", "torch", "pass"),
    ],
)
def test_what_a_python_must_have(report: dict[str, Any], device: str, topic: str, wanted: str) -> None:
    assert outcome(only(judged({"executable": "/p", **report}, device), topic)) == wanted


def test_a_torch_that_is_not_installed_and_one_that_fails() -> None:
    def advice(error: str) -> str:
        return only(judged({"executable": "/p", "python": [3, 11, 0], "error": error}, "cpu"), "torch").next

    missing = advice("ModuleNotFoundError: No module named 'torch'")
    assert missing.startswith("install torch for it, or name in software")
    assert "a variable of workload.env" in advice("ModuleNotFoundError: No module named 'torch._C'")
    assert "a variable of workload.env" in advice("ValueError: Invalid log settings: x")


def test_torch_is_imported_under_the_variables_of_a_run(tmp_path: Path) -> None:
    """A message that begins with an empty line, as torch's for TORCH_LOGS."""
    (tmp_path / "torch.py").write_text("raise ValueError('\\nInvalid log settings: x,\\n  must be' + 300 * ' y')")
    settings = on_a_cluster(software=Software(python=sys.executable))
    spec = Ladder.of(settings).plan.runs[0].replace(env={"PYTHONPATH": str(tmp_path)})
    torch = only(list(site_python(spec, settings.site, os.environ)), "torch").measured
    assert "cannot import torch: ValueError: Invalid log settings: x, must be y y" in torch
    assert len(torch) < 500


# Slurm, on captured output (tests/unit/slurm_output)


def test_jobs_against_a_captured_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    takes = "echo 'sbatch: Job 1 to start at 2026-11-23T22:35:30 using 2 processors' >&2"
    refuses = "echo 'allocation failure: Invalid partition name specified' >&2; exit 1"
    ladder = Ladder.of(on_a_cluster(slurm=SHIPPED.site.slurm.replace(partition="gpu")))
    for answer, outcomes in ((takes, ["pass", "pass", "pass", "pass"]), (refuses, ["pass", "pass", "FAIL"])):
        put_on_path(monkeypatch, tmp_path, scontrol=shows(), sbatch=answer)
        findings = list(checks.slurm(ladder, on_a_cluster=True))
        assert capsys.readouterr().err == "asking Slurm about 3 jobs\n"  # while it is silent
        results = [outcome(finding) for finding in findings if finding.kind != "architecture"]
        assert results[: len(outcomes)] == outcomes
        nodes = only(findings, "nodes").measured
        assert nodes.startswith("gpu: 6 nodes with 4 GPUs (gpu:a100), 8 CPUs and 16000 MB (")
        assert nodes.endswith("node.gpus: 2, node.gres: null, node.cpus: 2, node.memory_mb: null)")
    for slurm, node in (({"partition": "gpus"}, {}), ({"partition": "gpu"}, {"gpus": 8, "gres": "gpu"})):
        described = on_a_cluster(slurm=SHIPPED.site.slurm.replace(**slurm), node=SHIPPED.site.node.replace(**node))
        of_nodes = only(list(checks.slurm(Ladder.of(described), on_a_cluster=True)), "nodes")
        assert (outcome(of_nodes), of_nodes.next[:34]) == ("warn", "correct node or slurm.partition in")
