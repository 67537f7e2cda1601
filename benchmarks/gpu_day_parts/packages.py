"""Packages that a machine without network lacks: installed from a folder of wheels, beside its own."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import venv
from pathlib import Path

from gpu_day_parts.figures import Figures, Setting

REQUIREMENTS = Path(__file__).parents[1] / "gpu_day_requirements.txt"

PROVIDED = "torch torchvision numpy scipy pandas matplotlib psutil nvidia-ml-py pyyaml jinja2 pytest".split()
"""Packages that the machine must have."""

LEFT_OUT = ("packaging", "pygments", "rich", "scikit-learn")
"""Not carried: packaging and pygments come with pytest; rich is for the live view, scikit-learn for the digits."""

FILL = """\
Fill FOLDER with the wheels that such a machine lacks, on one with network, in the checkout, with any Python 3:

    python3 -m pip wheel --no-deps --wheel-dir FOLDER connection-pool
    python3 -m pip download --dest FOLDER --find-links FOLDER --only-binary=:all: --python-version 3.12 \\
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \\
        --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --requirement benchmarks/gpu_day_requirements.txt
    (cd FOLDER && rm -f numpy-* pandas-* psutil-* pyyaml-* jinja2-*)

(connection-pool is published as source only; the last line removes what is on the machine. It makes about 30 MB; the
files of the checkout are 4 MB, and .git another 7 MB.)"""


def names(requirements: Path) -> list[str]:
    """Return the packages in a requirements file, in lower case."""
    lines = (line.split("#")[0].strip() for line in requirements.read_text().splitlines())
    return [re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in lines if line]


def missing() -> list[str]:
    """Return the required packages that this Python does not have."""
    return [name for name in names(REQUIREMENTS) if not _has(name)]


def _has(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def install(wheels: Path, directory: Path) -> Path:
    """Make an environment in ``directory`` with this Python's packages and the wheels; return its Python.

    If this Python is in a virtual environment itself, the new one does not see its packages: a .pth file adds them.
    Raises CalledProcessError; pip's output is in the log.
    """
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    here = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "lib" / version / "site-packages"
    packages.joinpath("machine.pth").write_text("".join(f"import site; site.addsitedir({entry!r})\n" for entry in here))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-cache-dir"]
    options = ["--quiet", "--no-index", "--no-compile", "--find-links", str(wheels), "--requirement", str(REQUIREMENTS)]
    subprocess.run([*pip, "install", *options], check=True)
    return python


def measure(setting: Setting, figures: Figures, wheels: Path | None, environment: Path) -> None:
    """Report the Python for the other parts, and the packages that it lacks."""
    if wheels is not None:
        size_mb = sum(file.stat().st_size for file in wheels.glob("*.whl")) / 1e6
        figures.put(wheels_mb=round(size_mb, 1))
        python = install(wheels, environment)
        figures.put(python=str(python), missing=[])
        figures.headline(f"{size_mb:.0f} MB of wheels installed")
        return
    lacks = missing()
    figures.put(python=sys.executable, missing=lacks)
    figures.headline(f"missing: {', '.join(lacks)}" if lacks else "nothing is missing")
    if lacks:
        figures.note(FILL)
