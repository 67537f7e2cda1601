"""The tests that are marked gpu."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from gpu_day_parts.figures import Figures, Setting

ROOT = Path(__file__).parents[2]


def measure(setting: Setting, figures: Figures) -> None:
    """Run them; raise SystemExit with the names of failed tests."""
    report = setting.work / "tests.xml"
    pytest = [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, f"--basetemp={setting.work / 'tmp'}", f"--junitxml={report}"], cwd=ROOT, check=False
    )
    if not report.exists():
        raise SystemExit(f"pytest ended with exit code {done.returncode} and left no report")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [_name(case) for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(failed) - len(skipped)
    figures.put(tests=len(cases), passed=passed, failed=failed, skipped=skipped)
    figures.headline(f"{passed} of {len(cases)} tests passed")
    if failed or done.returncode:
        raise SystemExit(f"{len(failed)} of {len(cases)} tests failed: {', '.join(failed) or 'see the log'}")
    if skipped and setting.on_gpu:
        raise SystemExit(f"{len(skipped)} of {len(cases)} tests were skipped: {', '.join(skipped)}")
    if skipped:
        figures.left_out(f"no CUDA GPU: pytest skipped {len(skipped)} of {len(cases)} tests")


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
