"""CONTRIBUTING lists the packages and what is changed of Snakemake, the instrument lists its modules."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import ddp_ladder_instrument
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "workflow/scripts"
UNIT = ROOT / "tests/unit"


def modules(directory: Path) -> list[str]:
    files = [file.relative_to(directory) for file in directory.rglob("*.py")]
    return sorted(str(file.with_suffix("")) for file in files if file.stem != "__init__")


def packages() -> dict[str, Path]:
    return {file.parent.name: file.parent for file in (SCRIPTS / "ddp_ladder").glob("*/__init__.py")}


def test_the_packages_in_contributing_are_those_on_disk() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _, _, tree = text.partition("    workflow/scripts/ddp_ladder/\n")
    tree, _, _ = tree.partition("\n\n")
    listed = re.split(r"^      (\w+)/", tree, flags=re.MULTILINE)[1:]
    documented = dict(zip(listed[::2], listed[1::2], strict=True))
    assert set(documented) == set(packages())
    assert all(sentence.split() for sentence in documented.values())


@pytest.mark.parametrize("package", ["ddp_ladder", "ddp_ladder_instrument", "ddp_ladder_probe"])
def test_no_module_defines_a_name_twice(package: str) -> None:
    """The second constant of a name takes the place of the first without a word; ruff sees only functions."""
    for file in (SCRIPTS / package).rglob("*.py"):
        names = Counter[str]()
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names[node.name] += 1
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        assert [name for name, times in names.items() if times > 1] == [], file


def test_the_changes_of_snakemake_in_contributing_are_those_in_the_code() -> None:
    _, _, page = (ROOT / "CONTRIBUTING.md").read_text().partition("## What is changed of Snakemake\n")
    rows = [line.split(" | ") for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    files = (*(SCRIPTS / "ddp_ladder/climb").glob("*.py"), *(ROOT / "workflow/rules").glob("*.smk"))
    code = "\n".join(file.read_text() for file in files)
    words = {word for row in rows for word in re.findall(r"`([\w-]+)`", row[2])}
    assert {word for word in words if word not in code} == set()
    assert set(re.findall(r"\bworkflow(?:\.\w+)*\.(_\w+)", code)) <= words
    tests = [ROOT / test for row in rows for test in re.findall(r"`(tests/\S+)`", row[3])]
    assert len(tests) >= len(rows) > 10
    assert [test for test in tests if not test.exists()] == []


def test_what_the_table_of_contributing_names_is_there() -> None:
    """A word in a row is a file, a directory, or a name in one of the row's files."""
    places = [ROOT, SCRIPTS / "ddp_ladder", SCRIPTS / "ddp_ladder_instrument"]
    _, _, table = (ROOT / "CONTRIBUTING.md").read_text().partition("| to change | go to |\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    assert {"| a launcher", "| a container engine", "| an accelerator"} <= {row.rpartition(" | ")[0] for row in rows}
    for row in rows:
        words = [word for word in re.findall("`(.+?)`", row) if not word.startswith("make ")]
        found = {word: [path for place in places for path in place.glob(f"{word}*")] for word in words}
        files = [file for paths in found.values() for path in paths for file in (path, *path.rglob("*.py"))]
        text = "".join(file.read_text() for file in files if file.is_file())
        assert [word for word, paths in found.items() if not paths and word not in text] == [], row


def test_the_instrument_lists_its_modules() -> None:
    listed = re.findall(r"^    (\w+) ", ddp_ladder_instrument.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == modules(SCRIPTS / "ddp_ladder_instrument")


def test_unit_tests_mirror_the_packages() -> None:
    directories = {file.parent.name for file in UNIT.glob("*/test_*.py")}
    assert directories == {*packages(), "instrument"}


def printed_by(program: str) -> list[str]:
    """Return the words that a program prints that finds the modules of the scripts."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def loaded_by(*modules: str) -> list[str]:
    """Return the modules that are loaded in a process that imports these."""
    return printed_by(f"import sys\nimport {', '.join(modules)}\nprint(*sys.modules)")


def test_reading_the_snakefile_loads_only_what_it_uses() -> None:
    """Snakemake itself loads numpy and pandas, through the Slurm plugin, before it reads the Snakefile."""
    texts = [file.read_text() for file in (ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk"))]
    names = {name for text in texts for name in re.findall(r"^ *from (ddp_ladder\S*) import", text, re.MULTILINE)}
    assert "ddp_ladder.climb.ladder" in names
    loaded = loaded_by(*names, "ddp_ladder.climb.snakemake")
    assert "ddp_ladder.plan.plan" in loaded
    unused = "ddp_ladder.report ddp_ladder.live matplotlib jinja2 jsonschema torch"
    assert {*unused.split()}.isdisjoint(loaded)


def test_an_agent_and_the_live_view_load_only_what_they_use() -> None:
    """An agent starts on each node, or for each GPU."""
    assert {"numpy", "torch", "snakemake"}.isdisjoint(loaded_by("ddp_ladder.run.agent"))
    assert {"torch", "snakemake"}.isdisjoint(loaded_by("ddp_ladder.live.screen"))


@pytest.mark.parametrize("script", ["gate", "report", "compare", "plan", "run_scale"])
def test_what_the_rules_start_loads_little_before_its_work_and_starts_no_thread(script: str) -> None:
    """A climb starts Python about 20 times, on a login node with many cores."""
    *loaded, threads, changed = printed_by(f"""
import atexit, os, runpy, sys
atexit.register(lambda: print("loaded:", *sys.modules, len(os.listdir("/proc/self/task")), dict(os.environ) != before))
before = dict(os.environ)
sys.argv[1:] = ["--help"]
runpy.run_path("{SCRIPTS}/{script}.py", run_name="__main__")
""")
    assert "ddp_ladder.plan.plan" in loaded
    assert {"torch", "matplotlib", "pandas", "snakemake"}.isdisjoint(loaded)
    # A hop between two stages waits for a gate. pydantic loads importlib.metadata when it builds the first model.
    assert script != "gate" or {"ddp_ladder.diagnosis", "importlib.metadata"}.isdisjoint(loaded)
    assert (threads, changed) == ("1", "False")  # what it starts may want threads


def test_conda_installs_what_the_programs_of_the_rules_need() -> None:
    """Snakemake itself, its report and the live view run in the environment of the start."""
    of_the_start = {"snakemake", "snakemake-executor-plugin-slurm", "pygments", "rich"}
    other_names = {"matplotlib": "matplotlib-base"}
    pip = re.findall(r"^([\w-]+)(>=.*)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    conda = yaml.safe_load((ROOT / "workflow/envs/workflow.yaml").read_text())["dependencies"]
    wanted = {f"{other_names.get(name, name)} {versions}" for name, versions in pip if name not in of_the_start}
    assert len(wanted) > 5
    assert wanted <= {*conda}


def test_the_oldest_environment_has_the_lowest_versions_that_are_allowed() -> None:
    def versions(name: str, relation: str) -> dict[str, str]:
        return dict(re.findall(rf"^([\w-]+){relation}([\d.]+)", (ROOT / name).read_text(), re.MULTILINE))

    lowest = versions("requirements.txt", ">=") | versions("requirements-training.txt", ">=")
    oldest = versions("requirements-oldest.txt", "==")
    assert {name: oldest[name].removesuffix(".") for name in lowest} == lowest
    assert f'min_version("{lowest["snakemake"]}")' in (ROOT / "Snakefile").read_text()
