"""The versions that requirements.lock and the site's page of versions name are those that the tests run with."""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
LOCK = runpy.run_path(str(ROOT / ".ci/lock.py"))
NEWEST = LOCK["pinned"](ROOT / "requirements.lock")
OLDEST = LOCK["pinned"](ROOT / "requirements-oldest.txt")
FILES = ("requirements.txt", "requirements-training.txt", "requirements-dev.txt")


def requirements(file: str) -> list[tuple[Requirement, bool]]:
    """Return what a file requires, and whether it stands below a reason why it has no upper bound."""
    found, has_reason = [], False
    for line in (ROOT / file).read_text().splitlines():
        has_reason |= line.startswith("# No upper bound")
        if line[0] not in "#-":
            found.append((Requirement(line), has_reason))
    return found


@pytest.mark.parametrize("file", FILES)
def test_the_lock_is_inside_the_bounds_and_a_missing_upper_bound_has_a_reason(file: str) -> None:
    for requirement, has_reason in requirements(file):
        assert requirement.specifier.contains(NEWEST[LOCK["canonical"](requirement.name)]), requirement
        assert has_reason != ("<" in str(requirement.specifier)), requirement


@pytest.mark.skipif("CI" not in os.environ, reason="only CI has to run with the versions of the table")
def test_the_tests_run_with_the_versions_of_the_table() -> None:
    wanted = {name: f"=={version}" for name, version in NEWEST.items()}
    if Path(sys.prefix).name == ".venv-oldest":
        wanted = {name: f"=={version}.*" for name, version in OLDEST.items()}  # "2.4" is any 2.4.x
    installed = {name: importlib.metadata.version(name) for name in OLDEST}
    others = {name: found for name, found in installed.items() if not SpecifierSet(wanted[name]).contains(found)}
    assert others == {}
    header = LOCK["header"]((), sys.executable) if shutil.which("slurmctld") else "# Python"
    assert header in (ROOT / "requirements.lock").read_text()


def test_the_container_and_the_catalog_name_what_there_is() -> None:
    recipe = (ROOT / "workflow/envs/ddp-ladder.def").read_text()
    copied = re.findall(r"^    (\S+) /opt/ddp-ladder/\1$", recipe, re.MULTILINE)
    assert "requirements.lock" in copied
    assert all((ROOT / file).exists() for file in copied)
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["software-stack-deployment"]["conda"] is True
    assert (ROOT / "workflow/Snakefile").exists()
