"""Write requirements.lock, the newest tested versions. The site's page of versions shows the oldest ones, too.

`make lock` calls it with the Python of .venv, where everything is installed: python .ci/lock.py
tests/unit/test_versions.py compares it with what the tests run with.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
IN_NEWER = (sys.executable, str(ROOT / "tests/slurm/newer_debian.py"))  # runs a command in the newer Debian


def canonical(name: str) -> str:
    """Return the name of a package as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file: Path) -> dict[str, str]:
    """Return the versions that a file sets with ==, by name."""
    found = re.findall(r"^([\w.-]+)==([\w.]+)", file.read_text(), re.MULTILINE)
    return {canonical(name): version.rstrip(".") for name, version in found}


def header(prefix: Sequence[str], python: str) -> str:
    """Return the line with the versions of a system in which commands run with this prefix."""
    asked = (python, "--version"), ("slurmctld", "-V")
    outputs = [subprocess.run([*prefix, *words], capture_output=True, text=True, check=True).stdout for words in asked]
    of_python, of_slurm = (output.split()[-1] for output in outputs)
    return f"# Python {of_python.rpartition('.')[0]}, Slurm {of_slurm}"


def lock() -> str:
    """Return the content of requirements.lock: the packages of this Python, without torch's choice of CUDA."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "freeze"]
    packages = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    return (
        "# The versions that CI tests, as constraints for pip: make setup LOCKED=1, and so for run and test.\n"
        "# Written by `make lock` under Linux. A newer Python takes them as far as they are published for it.\n"
        f"{header((), sys.executable)}\n{header(IN_NEWER, 'python')}\n"
        + re.sub(r"\+\w+$", "", packages, flags=re.MULTILINE)
    )


def table(locked: str) -> str:
    """Return the page with the versions of a lock file, and those of requirements-oldest.txt."""
    pythons, slurms = zip(*re.findall(r"^# Python (\S+), Slurm (\S+)$", locked, re.MULTILINE), strict=True)
    newest, oldest = pinned(LOCK), pinned(ROOT / "requirements-oldest.txt")
    rows = [f"| {name} | {oldest[name]} | {newest[name]} |" for name in sorted(oldest)]
    return "\n".join(
        [
            "# Tested versions",
            "",
            "| | all tests | quick tests of what uses packages, and on Slurm a ladder, refusals and ends of jobs |",
            "| --- | --- | --- |",
            f"| Python | {' | '.join(pythons)} |",
            f"| Slurm | {' | '.join(slurms)} |",
            "",
            "Both run with the newest packages below, which `make setup LOCKED=1` installs. Under the first Python,",
            "the quick tests of what uses packages and a climb run with the oldest ones, too.",
            "",
            "| | oldest | newest |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    temporary = LOCK.with_suffix(".new")
    temporary.write_text(lock())
    os.replace(temporary, LOCK)
    print(f"written: {LOCK.name}")
