"""benchmarks/gpu_day.py, which is for a machine with a GPU, where there is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpu_day_parts import packages

ROOT = Path(__file__).parents[2]
GPU_DAY = ROOT / "benchmarks" / "gpu_day.py"
PARTS = ["packages", "card", "gpu_tests", "monitor", "ladder", "cifar", "imagenet", "overhead"]


def spend(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run it with a temporary directory of its own."""
    temporary = directory / "tmp"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        command, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400
    )
    assert list(temporary.glob("gpu-day-*")) == []
    return done


def day_of(out: Path) -> dict[str, Any]:
    day: dict[str, Any] = json.loads((out / "gpu_day.json").read_text())
    return day


def test_the_whole_day_runs_to_its_end_with_everything_small_on_a_cpu_as_no_gpu_is_here(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = spend([sys.executable, str(GPU_DAY), "--device", "cpu", "--out", str(out)], tmp_path)
    day, text = day_of(out), (out / "gpu_day.txt").read_text()
    ended = {part["name"]: part["status"] for part in day["parts"]}
    assert ended == {**dict.fromkeys(PARTS, "done"), "gpu_tests": "left out"}, done.stdout + text
    assert done.returncode == 0
    assert (day["schema_version"], day["device"]) == (1, "cpu")
    figures = {part["name"]: part["figures"] for part in day["parts"]}
    assert day["machine"] == figures["card"]["machine"]
    assert figures["card"]["matrix_rate_bf16_tflop_per_s"] > 0
    assert figures["ladder"]["default/weak/1x1/r1"]["autocast_dtype"] == "bfloat16"
    # Epochs of milliseconds, on a busy machine: it is the same training, on a GPU it has to be within 1 %.
    assert figures["ladder"]["step_times_over_stopwatch"] == pytest.approx(1, abs=0.2)
    for name in ("cifar_ours", "cifar_guide"):
        assert figures["cifar"][f"{name}_share_of_matrix_rate"] > 0
    for name in ("made_up_ratio", "jpeg_ratio", "made_up_ours_share_of_matrix_rate"):
        assert figures["imagenet"][name] > 0
    assert len(figures["overhead"]["step_0_5_ms"]["segments"]["clock"]) == 3
    checks = [check for part in day["parts"] for check in part["checks"]]
    assert len(checks) == 6
    assert {check["met"] for check in checks} == {None}  # targets are of a GPU
    assert "NO GPU" in text
    assert re.search(r"pytest skipped (\d+) of \1 tests", text)
    for name in PARTS:
        assert f"\n{name} " in text
        assert f"] {name}: " in done.stdout  # progress
    kept = ["gpu_day.json", "gpu_day.txt", "gpu_day_ladder.html", "gpu_day_log.txt"]
    kept += ["gpu_day_monitor.csv", "gpu_day_monitor.png"]
    assert sorted(file.name for file in out.iterdir()) == kept
    assert [line.strip() for line in done.stdout.splitlines()[-len(kept) :]] == kept


def test_a_machine_without_a_gpu_is_reported_before_anything_runs(tmp_path: Path) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(GPU_DAY), "--out", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "sees no GPU here. Run this on a machine with a CUDA GPU, or try it out with --device cpu." in done.stderr
    assert list(tmp_path.iterdir()) == []


def command_with(parts: str, out: Path, *options: str, first: str | None = None) -> list[str]:
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

        gpu_day.parts = lambda device, work, out: ({parts})
        first = {first}
        gpu_day.packages = (lambda *_: first) if first else gpu_day.packages
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
    done = spend(command_with(parts, out, "--budget-s", "100", first=lacks), tmp_path)
    assert done.returncode == 1
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


def test_wheels_are_installed_beside_the_packages_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without network, into an environment that sees the packages of the one it is made from."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "import psutil\n")
        wheel.writestr("carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        wheel.writestr("carried-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("carried-1.0.dist-info/RECORD", "carried.py,,\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("carried>=1\npsutil\n")
    monkeypatch.setattr(packages, "REQUIREMENTS", requirements)
    assert packages.missing() == ["carried"]
    python = packages.install(wheels, tmp_path / "venv")
    result = subprocess.run(
        [python, "-c", "import carried, psutil; print(carried.__file__, psutil.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [str(next((tmp_path / "venv").rglob("carried.py"))), psutil.__file__]


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-training.txt"])
def test_the_wheels_hold_all_that_is_required_and_the_machine_lacks(file: str) -> None:
    carried = packages.REQUIREMENTS.read_text().splitlines()
    known = {*packages.PROVIDED, *packages.LEFT_OUT}
    wanted = [line for line in (ROOT / file).read_text().splitlines() if line and line[0] not in "#-"]
    assert wanted
    assert [line for line in wanted if line not in carried and re.split("[<>=]", line)[0] not in known] == []
