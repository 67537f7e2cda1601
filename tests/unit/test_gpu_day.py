"""benchmarks/gpu_day.py, which is for a machine with a GPU, where there is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import gpu_day
import psutil
import pytest
from gpu_day_parts import packages, parts
from gpu_day_parts.checklist import THINGS

ROOT = Path(__file__).parents[2]
GPU_DAY = ROOT / "benchmarks" / "gpu_day.py"
CALLS = re.findall("--only (.*)", gpu_day.__doc__ or "")
COLD_IMPORT_S = 20.0  # of torch, the first of a day: before the parts


def spend(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run it with a temporary directory of its own, whose path is short: loader workers make sockets below it."""
    with tempfile.TemporaryDirectory() as temporary:
        env = {**os.environ, "TMPDIR": temporary}
        done = subprocess.run(
            command, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=560
        )
        assert list(Path(temporary).glob("gpu-day-*")) == []
    return done


def day_of(out: Path) -> dict[str, Any]:
    day: dict[str, Any] = json.loads((out / "gpu_day.json").read_text())
    return day


ON_A_CPU = ("card", "two_ranks", "ladder", "imagenet")


def test_it_runs_with_everything_small_on_a_cpu_as_no_gpu_is_here(tmp_path: Path) -> None:
    """Without gpu_tests, which would skip all, and without parts that train as others do."""
    out = tmp_path / "out"
    done = spend([sys.executable, str(GPU_DAY), "--device", "cpu", "--out", str(out), "--only", *ON_A_CPU], tmp_path)
    day, text = day_of(out), (out / "gpu_day.txt").read_text()
    ended = {part["name"]: part["status"] for part in day["parts"]}
    assert ended == dict.fromkeys(["packages", *ON_A_CPU], "done"), done.stdout + text
    assert done.returncode == 0
    assert (day["schema_version"], day["device"]) == (2, "cpu")
    assert {check["met"] for part in day["parts"] for check in part["checks"]} == {None}  # targets are of a GPU
    assert "NO GPU" in text
    for name in ended:
        assert f"\n{name} " in text
        assert f"] {name}: " in done.stdout  # progress
    for thing in THINGS:
        assert thing.text[:60] in text
        assert thing.text[:60] in done.stdout
    assert {row["status"] for row in day["checklist"]} == {"not possible here"}
    figures = {part["name"]: part["figures"] for part in day["parts"]}
    assert day["machine"] == figures["card"]["machine"]
    assert figures["card"]["matrix_rate_bf16_tflop_per_s"] > 0
    assert (figures["two_ranks"]["spoilt"], figures["two_ranks"]["pause_problem"]) == ([], "")
    assert min(figures["two_ranks"]["pause_recorded_calls"]) > 0
    assert figures["ladder"]["autocast_dtype"] == "bfloat16"
    for name in ("made_up_ratio", "made_up_ours_share_of_matrix_rate"):
        assert figures["imagenet"][name] > 0
    names = ["gpu_day.json", "gpu_day.txt", "gpu_day_ladder.html", "gpu_day_log.txt"]
    assert sorted(file.name for file in out.iterdir()) == names


def test_the_two_calls_have_all_parts_and_fit_their_budget_by_the_estimates(tmp_path: Path) -> None:
    assert [name for names in CALLS for name in names.split()] == list(parts.PARTS)
    for names in CALLS:
        needed = [packages_part := parts.packages("cuda", tmp_path, tmp_path, tmp_path)]
        needed += parts.parts("cuda", tmp_path, tmp_path, names.split())
        assert packages_part.estimate_s > 0
        assert COLD_IMPORT_S + sum(part.estimate_s for part in needed) <= gpu_day.BUDGET_S < 9 * 60


def test_a_machine_without_a_gpu_is_reported_before_anything_runs(tmp_path: Path) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(GPU_DAY), "--out", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "sees no GPU here. Run this on a machine with a CUDA GPU, or try it out with --device cpu." in done.stderr
    assert list(tmp_path.iterdir()) == []


def command_with(parts: str, first: str, out: Path, *options: str) -> list[str]:
    """gpu_day.py with these parts in place of its own, each ``part(name, code, estimate_s, limit_s, needs)``.

    first: in place of the part packages.
    """
    text = f"""
        import sys
        sys.path[:0] = [{str(GPU_DAY.parent)!r}]
        import gpu_day
        from gpu_day_parts.day import Part

        FIGURES = '''
        import sys
        sys.path[:0] = [{str(GPU_DAY.parent)!r}, {str(ROOT / "workflow/scripts")!r}]
        from pathlib import Path
        from gpu_day_parts.figures import Figures
        figures = Figures(Path(sys.argv[-1]), judge=True)
        '''

        def part(name, code, estimate_s=0.0, limit_s=60.0, needs=()):
            lines = (FIGURES + code).splitlines()
            return Part(name, name, ("-c", chr(10).join(line.strip() for line in lines)), estimate_s, limit_s, needs)

        gpu_day.parts = lambda device, work, out, only: [{parts}]
        gpu_day.packages = lambda *_: {first}
        sys.exit(gpu_day.main(["--device", "cpu", "--out", {str(out)!r}, *{options!r}]))
    """
    return [sys.executable, "-c", textwrap.dedent(text)]


def test_parts_that_fail_hang_or_have_no_time_or_packages_do_not_end_the_day_and_are_reported(tmp_path: Path) -> None:
    out, pid = tmp_path / "out", tmp_path / "pid"
    hangs = f"""import subprocess, time
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path({str(pid)!r}).write_text(str(child.pid))
        figures.put(first_s=1.0)
        time.sleep(1000)"""
    checks = "figures.check('met', 1.005, 0.99, 1.01); figures.check('missed', 1.02, 0.99, 1.01)"
    parts = ", ".join(
        [
            "part('broken', 'print(1); sys.exit(\"the disk is full\")')",
            f"part('hangs', {hangs!r}, 0, 5)",
            "part('long', '', 1000)",
            "part('poor', '', needs=('nowhere',))",
            f"part('close', {checks!r})",
        ]
    )
    lacks = "part('packages', 'figures.put(python=sys.executable, missing=[\"nowhere\"])')"
    done = spend(command_with(parts, lacks, out, "--budget-s", "100"), tmp_path)
    assert done.returncode == 1, done.stdout
    day = day_of(out)
    _, broken, hung, long, poor, close = day["parts"]
    assert (broken["status"], broken["why"]) == ("failed", "exit code 1: the disk is full")
    assert "===== broken: broken\n1\nthe disk is full\n" in (out / "gpu_day_log.txt").read_text()
    assert (hung["status"], hung["figures"]) == ("out of time", {"first_s": 1.0})
    assert not psutil.pid_exists(int(pid.read_text()))
    assert (long["status"], poor["status"], poor["why"]) == ("skipped", "skipped", "needs nowhere: see --wheels")
    assert long["why"].startswith("takes about 1000 s, and ")
    assert [check["met"] for check in close["checks"]] == [True, False]
    assert "target MISSED: missed: 1.02, wanted at least 0.99 and at most 1.01" in (out / "gpu_day.txt").read_text()


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-training.txt"])
def test_the_wheels_hold_all_that_is_required_and_the_machine_lacks(file: str) -> None:
    carried = packages.REQUIREMENTS.read_text().splitlines()
    known = {*packages.PROVIDED, *packages.LEFT_OUT}
    wanted = [line for line in (ROOT / file).read_text().splitlines() if line and line[0] not in "#-"]
    assert wanted
    assert [line for line in wanted if line not in carried and re.split("[<>=]", line)[0] not in known] == []
