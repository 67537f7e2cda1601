"""The tests that are marked gpu."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from gpu_day_parts.figures import Figures, Setting

ROOT = Path(__file__).parents[2]
MAY_SKIP = {
    "test_failures_gpu::test_the_older_backend_of_nccl_names_the_same_rank": "torch before 2.15 has that backend alone"
}
"""Tests that may be skipped, with any parameters, and why. Any other one that is skipped has not passed."""
SHOWS = {
    1: "test_monitor_gpu::test_the_gpus_are_those_that_torch_sees",
    2: "",
    4: "test_failures_gpu::test_the_older_backend_of_nccl_names_the_same_rank",
    5: "test_failures_gpu::",
}
"""Things of the checklist, and how the names of the tests that show them begin."""
LONGEST = "tests/gpu/test_failures_gpu.py"  # mostly waits


def measure(setting: Setting, figures: Figures) -> None:
    """Run them, those of failures beside the others; raise SystemExit if they did not end."""
    reports = []
    for number, where in enumerate((["tests/gpu", f"--ignore={LONGEST}"], [LONGEST])):
        report = setting.work / f"tests{number}.xml"
        pytest = [sys.executable, "-m", "pytest", *where, "-m", "gpu", "-p", "no:cacheprovider"]
        options = [f"--basetemp={setting.work / f'tmp{number}'}", f"--junitxml={report}"]
        reports.append((report, subprocess.Popen([*pytest, *options], cwd=ROOT)))
    codes = [process.wait() for _, process in reports]
    if not all(report.exists() for report, _ in reports):
        raise SystemExit(f"pytest left no report; its exit codes are {codes}")
    cases = [case for report, _ in reports for case in ElementTree.parse(report).getroot().iter("testcase")]
    bad = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [_name(case) for case in cases if case.find("skipped") is not None]
    if len(skipped) == len(cases) and not setting.on_gpu:
        figures.left_out(f"no CUDA GPU: pytest skipped {len(skipped)} of {len(cases)} tests")
        return
    wanted = [name for name in map(_name, cases) if name not in skipped or name.partition("[")[0] not in MAY_SKIP]
    bad += [name for name in wanted if name in skipped]
    figures.put(tests=len(cases), not_passed=bad, skipped=skipped)
    figures.headline(f"{len(wanted) - len(bad)} of {len(wanted)} tests passed{'; not ' * bool(bad)}{', '.join(bad)}")
    for thing, begin in SHOWS.items():
        run = [name for name in wanted if name.startswith(begin)]
        if not run and begin in MAY_SKIP:
            figures.impossible(thing, MAY_SKIP[begin])
        else:
            passed = sum(name not in bad for name in run)
            figures.check(f"passed of the tests {begin or 'marked gpu'}", passed, max(1, len(run)), shows=thing)


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
