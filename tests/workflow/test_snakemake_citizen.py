"""What people expect of any Snakemake workflow: as a module, from another directory, --report, --list, the catalog."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from make_files import write_files
from project_copy import ANY_EFFICIENCY, EXPERIMENT, NO_TORCH, ROOT, Checkout

SITE = "site: here\nnode: {gpus: 2, device: cpu, cpus: 2}\nlauncher: srun\n"
ANY_GATE = {"max_efficiency": ANY_EFFICIENCY}
OF_TWO_STAGES = {
    **EXPERIMENT,
    "stages": {name: {**EXPERIMENT["stages"][name], "gate": ANY_GATE} for name in ("stage1", "stage2")},
}
PARENT = """
rule everything:
    input: "sub/results/report/index.html"
    output: "done.txt"
    shell: "cp {{input}} {{output}}"

configfile: "config/config.yaml"

module ladder:
    snakefile: {snakefile}
    config: config["ladder"]
    prefix: "sub"

use rule * from ladder as ladder_*

use rule report from ladder as ladder_report with:
    priority: 1
"""
# In the manner of what `snakedeploy deploy-workflow` writes.
DEPLOYED = """
configfile: "config/config.yaml"

module ddp_ladder:
    snakefile: github("ddp-ladder/ddp-ladder", path="workflow/Snakefile", tag="v1")
    config: config

use rule * from ddp_ladder
"""


@pytest.fixture(scope="module")
def project(module_checkout: Callable[[], Checkout]) -> Checkout:
    """The project, which no test changes."""
    return module_checkout()


def directory_of_a_user(factory: pytest.TempPathFactory, files: Mapping[str, str]) -> Path:
    return write_files(factory.mktemp("user"), {"loop.py": NO_TORCH, "site.yaml": SITE, **files})


def snakemake(directory: Path, *arguments: str, **env: str) -> str:
    done = Checkout(directory).snakemake(*arguments, **env)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_as_a_module_of_another_workflow(project: Checkout, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = {"samples": ["of", "the", "parent"], "ladder": {"cluster": "site.yaml", **OF_TWO_STAGES}}
    parent = PARENT.format(snakefile=repr(str(project.path / "workflow/Snakefile")))
    user = directory_of_a_user(tmp_path_factory, {"Snakefile": parent, "config/config.yaml": yaml.safe_dump(config)})

    planned = snakemake(user, "--dry-run")
    assert "rule everything:" in planned  # what the other workflow shows is its own business
    assert "rule ladder_measure_stage2:" in planned
    assert "localrule ladder_plan" not in planned  # local execution: every rule is
    climbed = snakemake(user, "--cores", "all")
    assert (user / "done.txt").read_text() == (user / "sub/results/report/index.html").read_text()
    assert "gate stage2: open" in climbed
    assert not (user / "results").exists()
    assert not (user / "data").exists()

    snakemake(user, "ladder_eject")
    script = (user / "sub/results/climb.sh").read_text()
    assert f"chdir={user}\n" in script
    (command,) = re.findall(r'^exec "\$bin/python" -m snakemake (.*) --profile \S+ (.*)$', script, re.M)
    again = snakemake(user, "--dry-run", *" ".join(command).split())
    assert "At most 0.00 process hours from here" in again


def test_deployed_from_a_repository(project: Checkout, tmp_path_factory: pytest.TempPathFactory) -> None:
    """GitHub is a clone here: git is told to take it in GitHub's place."""
    git = ["git", "-C", str(project.path), "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    user = directory_of_a_user(tmp_path_factory, {"workflow/Snakefile": DEPLOYED})
    (user / "config").symlink_to(project.path / "config")
    in_its_place = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{project.path}/.git.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/ddp-ladder/ddp-ladder",
        "XDG_CACHE_HOME": str(user / "cache"),
    }
    planned = snakemake(user, "--dry-run", **in_its_place)
    assert "rule all:" in planned
    (copy,) = (user / ".snakemake/ddp-ladder").iterdir()
    assert f"{copy}/workflow/workloads/mnist.py --data digits" in planned
    assert (copy / "workflow/scripts/run_scale.py").exists()


@pytest.fixture(scope="module")
def elsewhere(project: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an experiment and a site of the user's, climbed from there."""
    files = {"mine.yaml": yaml.safe_dump(OF_TWO_STAGES)}
    user = directory_of_a_user(tmp_path_factory, files)
    climbed = snakemake(user.parent, *mine(project, user), "--directory", str(user), "--cores", "all")
    assert "Stage 2 reached" in climbed
    assert (user / "results/report/index.html").exists()
    assert not project.results.exists()
    assert not (project.path / ".snakemake").exists()
    return user


def mine(project: Checkout, user: Path) -> list[str]:
    return [
        *("--snakefile", str(project.path / "workflow/Snakefile")),
        *("--configfile", str(user / "mine.yaml"), "--config", "cluster=site.yaml"),
    ]


def test_from_another_directory_shipped_files_are_found(project: Checkout, tmp_path: Path) -> None:
    snakefile = ("--snakefile", str(project.path / "Snakefile"))
    planned = snakemake(
        tmp_path, *snakefile, "--dry-run", "stage1",
        "--config", "experiment=config/experiments/ethernet6-mlp.yaml", "cluster=config/sites/ethernet6.yaml",
    )  # fmt: skip
    assert f"    {project.path}/workflow/workloads/mlp.py " in planned


def test_snakemakes_report(elsewhere: Path, project: Checkout) -> None:
    assert "Report created" in snakemake(elsewhere, *mine(project, elsewhere), "--report", "report.html")
    page = (elsewhere / "report.html").read_text()
    assert {"measure_stage1", "measure_stage2"} <= value_in(page, "rules").keys()
    shown = value_in(page, "results")
    assert all(result["caption"].startswith("<p>") for result in shown.values())
    files = {
        category: {Path(file).name for file in files["Other"]}
        for category, files in value_in(page, "categories").items()
    }
    assert files == {
        "Report": {"index.html"},
        "Plots": {"throughput.svg", "efficiency.svg", "attribution.svg"},
        "Tables": {"scaling.csv", "scaling.md"},
        "What the runs used": {f"usage_default_weak_{scale}_r1.svg" for scale in ("1x1", "1x2")},
    }


def value_in(page: str, name: str) -> dict[str, Any]:
    """A variable of the page that Snakemake writes."""
    _, found, rest = page.partition(f"var {name} = {{")
    assert found
    value: dict[str, Any] = json.JSONDecoder().raw_decode("{" + rest)[0]
    return value


# Snakemake's own options, after the climb


def of_climb(project: Checkout, user: Path, *arguments: str) -> str:
    return snakemake(user, *mine(project, user), *arguments)


def test_a_dry_run_of_a_part_shows_snakemakes_list(elsewhere: Path, project: Checkout) -> None:
    of_one_file = of_climb(project, elsewhere, "-n", "results/report/scaling.csv")
    assert "rule scaling_report:" in of_one_file
    until = of_climb(project, elsewhere, "-n", "--until", "scaling_report")
    assert ("rule scaling_report:" in until, "rule all:" in until) == (True, False)
    for listed in (of_one_file, until):
        assert "The plan for site" not in listed


def test_a_target_that_there_is_not(elsewhere: Path, project: Checkout) -> None:
    done = Checkout(elsewhere).snakemake(*mine(project, elsewhere), "-n", "new-site")
    first, allowed, advice = done.stdout.splitlines()[-3:]
    assert (done.returncode, first) == (1, "snakemake new-site: there is no such target")
    assert {"stage3", "new_site"} <= {*allowed.removeprefix("  allowed  ").split(", ")}
    assert advice == '  next     did you mean "new_site"?'


def test_what_a_start_that_was_ended_has_begun_stops_no_report(elsewhere: Path, project: Checkout) -> None:
    """Snakemake marks a file while its rule runs, and refuses to read a marked one."""
    name = base64.b64encode(b"results/gates/stage2.json").decode()
    marker = elsewhere / ".snakemake/incomplete" / name
    marker.parent.mkdir(exist_ok=True)
    marker.write_text("{}")
    of_climb(project, elsewhere, "--summary")
    marker.unlink()


def test_every_target_is_listed_with_a_sentence(elsewhere: Path, project: Checkout) -> None:
    listed = snakemake(elsewhere, *mine(project, elsewhere), "--list")
    printed = dict(re.findall(r"(?m)^(\w+) \((.*)\)$", listed))
    assert printed.keys() >= {"all", "stage1", "stage2", "stage3", "report", "doctor", "eject", "new_site"}
    assert all(sentence.endswith(".") for sentence in printed.values())


def test_what_the_catalog_of_workflows_looks_for() -> None:
    assert (ROOT / ".snakemake-workflow-catalog.yml").exists()
    for rules in (ROOT / "workflow/rules").glob("*.smk"):
        text = rules.read_text()
        assert text.count("\n    shell:") + text.count("\n        shell:") == text.count("../envs/workflow.yaml"), rules
    assert (ROOT / "config/README.md").exists()
