"""The command lines by hand: --help everywhere, and a Makefile that says what is missing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ddp_ladder
import pytest
import yaml
from project_copy import ROOT, environment

SCRIPTS = sorted((ROOT / "workflow/scripts").glob("*.py"))
# In one process, as most of the time goes into imports: what each program prints.
ASK_FOR_HELP = """
import contextlib, io, json, os, runpy, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
said = {}
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    said[os.path.basename(script)] = printed.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def help_texts() -> dict[str, str]:
    argv = [sys.executable, "-c", ASK_FOR_HELP, *map(str, SCRIPTS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment())
    assert done.stderr == ""
    texts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return texts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help_says_what_it_is_for_with_an_example(help_texts: dict[str, str], script: Path) -> None:
    assert "xample" in help_texts[script.name]
    assert script.name in help_texts[script.name]


def test_the_version_is_one_and_every_program_of_the_ladder_tells_it(help_texts: dict[str, str]) -> None:
    without = {name for name, text in help_texts.items() if "--version" not in text}
    assert without == {"instrument.py", "preflight_probe.py", "torchrun.py"}  # they are for another program's options
    for program in ("watch.py", "predict.py"):
        argv = [sys.executable, ROOT / "workflow/scripts" / program, "--version"]
        assert subprocess.check_output(argv, text=True) == f"ddp-ladder {ddp_ladder.__version__}\n"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert (citation["version"], str(citation["date-released"])) == newest.groups()
    assert citation["version"] == ddp_ladder.__version__


@pytest.mark.parametrize("script", ["doctor.py", "predict.py"])
def test_a_python_without_packages_is_named_with_what_to_do(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", ROOT / "workflow/scripts" / script],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{sys.executable} (Python 3.")
    assert "lacks jinja2, matplotlib, numpy, packaging, pandas, psutil, pydantic, rich, snakemake, yaml" in done.stderr
    assert f"next: cd {ROOT} && make setup" in done.stderr
    assert "Traceback" not in done.stderr


def test_makefile_says_that_python_is_missing(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.txt", "requirements-training.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, tmp_path)
    argv = ["make", "run", "PYTHON=no-such-python"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "no-such-python is missing: install Python 3.11 or newer" in done.stderr


@pytest.mark.parametrize("mark", ["", ".workflow-ready", ".workflow-ready-locked"])
def test_the_view_installs_nothing_where_anything_is_set_up(mark: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    if mark:
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / mark).touch()
    (tmp_path / "requirements.txt").touch()  # newer than the mark
    argv = ["make", "--dry-run", "watch"]
    printed = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True).stdout
    assert ("pip" in printed) == (not mark)
    assert "workflow/scripts/watch.py" in printed
