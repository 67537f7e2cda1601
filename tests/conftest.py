"""Settings and collection rules for all tests."""

from __future__ import annotations

import ast
import functools
import importlib.util
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
    "unit/analysis/test_torchrun_or_srun.py",
    "unit/preflight/test_collectives.py",
    "unit/preflight/test_pairs_of_nodes.py",
    "unit/settings/test_experiments.py",
    "unit/test_gpu_day.py",
)
collect_ignore = [] if importlib.util.find_spec("torch") else list(NEED_TORCH)

# These run first: a long module that begins last keeps one worker busy while the others are idle. Modules of the two
# alternate: tests on Slurm mostly wait, and those of the other directory mostly compute.
LONGEST = ("slurm", "workflow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if starts_programs(item.path):
            item.add_marker("programs")
    places = places_of_longest(list(dict.fromkeys(item.path for item in items)))
    items.sort(key=lambda item: (places.get(item.path, 1.0), not starts_programs(item.path)))


def places_of_longest(files: list[Path]) -> dict[Path, float]:
    """Return where the modules of each of the LONGEST directories stand: spread evenly from 0 to below 1."""
    places = {}
    for directory in LONGEST:
        own = [file for file in files if file.is_relative_to(Path(__file__).parent / directory)]
        places.update({file: k / len(own) for k, file in enumerate(own)})
    return places


@functools.cache
def starts_programs(file: Path) -> bool:
    """Return True if a test module imports one of STARTERS."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [[alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module] for node in nodes]
    return not STARTERS.isdisjoint((name or "").partition(".")[0] for each in names for name in each)
