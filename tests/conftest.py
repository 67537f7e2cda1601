"""Settings and collection rules for all tests."""

from __future__ import annotations

import functools
import importlib.util
import re
import signal
from pathlib import Path

import pytest

# A process that a shell starts in the background ignores SIGINT, and so would its children that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test module that imports one of these starts Slurm, Snakemake, trainings or a browser.
STARTERS = {
    "cluster",
    "faults",
    "gpu_day_parts",
    "injected_causes",
    "instrument_support",
    "machines",
    "one_run",
    "playwright",
    "project_copy",
    "rank_support",
    "scripts_support",
    "warm",
}
# An environment of the workflow alone, as a login node has it, has no torch; these modules import it or what trains.
NEED_TORCH = (
    "unit/preflight/test_collectives.py",
    "unit/preflight/test_pairs_of_nodes.py",
    "unit/settings/test_experiments.py",
    "unit/test_gpu_day.py",
)
collect_ignore = [] if importlib.util.find_spec("torch") else list(NEED_TORCH)

# These take minutes, and begin first: a long module that begins last keeps one worker busy while the others are idle.
LONGEST = (
    "slurm/test_production.py",
    "workflow/test_climb_shipped.py",
    "unit/test_gpu_day.py",
    "workflow/test_resuming_scripts.py",
    "slurm/test_job_ends.py",
    "workflow/test_runs_that_hang.py",
    "workflow/test_rehearsed_scripts.py",
    "slurm/test_faults.py",
    "workflow/test_stand_in_gpus.py",
)
# Modules on Slurm mostly wait, and the others compute: the kinds alternate. Last come those that start no programs.
KINDS = ("slurm", "workflow", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if starts_programs(item.path):
            item.add_marker("programs")
    places = places_of(list(dict.fromkeys(item.path for item in items)))
    items.sort(key=lambda item: places[item.path])


def places_of(files: list[Path]) -> dict[Path, float]:
    """Return where each module stands: LONGEST below 0, each kind spread from 0 to 1, quick ones at 1."""
    longest = [Path(__file__).parent / name for name in LONGEST]
    places = {file: longest.index(file) - len(longest) if file in longest else 1.0 for file in files}
    others = [file for file in files if starts_programs(file) and places[file] == 1]
    for kind in KINDS:
        own = [file for file in others if kind_of(file) == kind]
        places.update({file: k / len(own) for k, file in enumerate(own)})
    return places


def kind_of(file: Path) -> str:
    directory = file.relative_to(Path(__file__).parent).parts[0]
    return directory if directory in KINDS else ""


@functools.cache
def starts_programs(file: Path) -> bool:
    """Return True if a test module imports one of STARTERS, by its lines: to parse all modules takes a second."""
    imported = re.findall(r"^(?:from|import) (\w+)", file.read_text(), re.MULTILINE)
    return not STARTERS.isdisjoint(imported)
