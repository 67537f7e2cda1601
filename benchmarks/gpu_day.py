"""Everything that needs a CUDA GPU, on one machine with one GPU, which may be without network, in two calls:

    python3 benchmarks/gpu_day.py --wheels FOLDER --only card two_ranks loops gpu_tests overhead monitor
    python3 benchmarks/gpu_day.py --wheels FOLDER --only ladder cifar imagenet

Each takes less than nine minutes. card: the machine and its matrix rates. two_ranks: measure.max_steps with the host
ahead of the device, flight record. loops: CUDA graphs, streams, torch.compile, FSDP2 and loaders, with the instrument
and without. gpu_tests: the tests marked gpu. overhead, monitor: what instrument and monitor cost. ladder: stage 1 of a
climb with NCCL. cifar, imagenet: against guides' code and the card's matrix rate. These estimates and the code for CUDA
in two_ranks and loops were never tried on a GPU.

Each part is a process with its own time limit. A part that fails does not end the day. A part for which no time is left
is skipped, and reported as skipped. --out then contains

    gpu_day.json          every figure, with the parts that failed or were skipped, and the checklist
    gpu_day.txt           the same as text; it begins with the checklist of what a first day on a GPU must show
    gpu_day_log.txt       what the parts of the last call printed
    gpu_day_ladder.html   the ladder's report
    gpu_day_monitor.csv   the monitor's samples

A call keeps the results that gpu_day.json in --out has of other parts of the same commit: the second one completes the
checklist of the first. Each machine needs an --out of its own.

The exit code is 0 if every part of the call ended well and met its targets, 1 otherwise, and 2 if it could not begin.

The machine must have Python 3.11 or newer with torch, torchvision, numpy, scipy, pandas, matplotlib, psutil,
nvidia-ml-py, PyYAML, Jinja2 and pytest. All other packages come as wheels from a folder, and are installed into a
temporary virtual environment; without them gpu_tests, monitor and ladder are skipped.

Without a GPU, --device cpu runs the same code with small sizes, to test that it runs.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))

from ddp_ladder.common.files import read_json, write_atomically, write_json  # noqa: E402
from ddp_ladder.common.process import adopt_orphans  # noqa: E402
from gpu_day_parts.checklist import checklist  # noqa: E402
from gpu_day_parts.day import Day, Outcome, Part  # noqa: E402
from gpu_day_parts.packages import FILL  # noqa: E402
from gpu_day_parts.page import page, seen  # noqa: E402
from gpu_day_parts.parts import PARTS, packages, parts  # noqa: E402

SCHEMA_VERSION = 2
BUDGET_S = 535.0
SEES_A_GPU = """
import sys, torch
complaint = f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU here"
sys.exit(None if torch.cuda.is_available() else complaint)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the day; return the exit code."""
    options = arguments(argv)
    day = Day(options.budget_s, options.out / "gpu_day_log.txt", lambda line: print(line, flush=True))
    if options.device == "cuda" and (complaint := no_gpu()):
        print(f"{complaint}. Run this on a machine with a CUDA GPU, or try it out with --device cpu.", file=sys.stderr)
        return 2
    if options.wheels is not None and not any(options.wheels.glob("*.whl")):
        print(f"--wheels: there is no wheel in {options.wheels}.\n\n{FILL}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, interrupt)
    adopt_orphans()
    options.out.mkdir(parents=True, exist_ok=True)
    day.log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-day-", ignore_cleanup_errors=True) as work:
        return spend(options, day, Path(work))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=FILL, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels of missing packages; see below")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts (default: all)", metavar="PART"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="FOLDER", help="default: %(default)s"
    )
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds for all parts (default: %(default)g)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: small (default: %(default)s)")
    return parser.parse_args(argv)


def no_gpu() -> str:
    """Return why torch cannot use a GPU here; empty if it can."""
    done = subprocess.run([sys.executable, "-c", SEES_A_GPU], capture_output=True, text=True, check=False)
    last = (done.stderr.strip() or f"torch did not start: exit code {done.returncode}").splitlines()[-1]
    return "" if done.returncode == 0 else last


def interrupt(signum: int, frame: FrameType | None) -> None:
    """End as with Ctrl-C, so that the results so far are written."""
    raise KeyboardInterrupt


def spend(options: argparse.Namespace, day: Day, work: Path) -> int:
    """Run the parts, and write the results after each; return the exit code."""
    first = packages(options.device, work, options.out, options.wheels)
    waiting = [first, *parts(options.device, work, options.out, options.only)]
    needed_s = sum(part.estimate_s for part in waiting)
    print(f"{len(waiting)} parts, about {needed_s:.0f} s: {', '.join(part.name for part in waiting)}")
    if needed_s > day.left_s:
        print(f"{day.left_s:.0f} s are left: some will be skipped. Give fewer with --only, or a larger --budget-s.")
    earlier = earlier_parts(options, [part.name for part in waiting])
    outcomes: list[Outcome] = []
    python, missing = sys.executable, list(first_needs(waiting))
    try:
        while waiting:
            part = waiting[0]
            outcome = day.run(part, python, work / f"{part.name}.json", missing)
            if part is first and outcome.status == "done":
                python, missing = outcome.figures["python"], outcome.figures["missing"]
            outcomes.append(outcome)
            waiting.pop(0)
            write(options, day, outcomes, earlier)
    except KeyboardInterrupt:
        outcomes += day.interrupted(waiting)
    result = write(options, day, outcomes, earlier)
    print(
        "",
        *seen(result["checklist"]),
        "",
        f"{result['verdict']}, after {day.wall_s:.0f} s. In {options.out}:",
        sep="\n",
    )
    for file in sorted(options.out.glob("gpu_day*.*")):
        print(f"  {file.name}")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def first_needs(waiting: Sequence[Part]) -> list[str]:
    """Return the packages that count as missing until the part ``packages`` has ended well."""
    return sorted({name for part in waiting for name in part.needs})


def earlier_parts(options: argparse.Namespace, now: Sequence[str]) -> list[dict[str, Any]]:
    """Return the other parts' results in gpu_day.json, if it is of this commit and --device."""
    file = options.out / "gpu_day.json"
    found = read_json(file) if file.exists() else {}
    of_now = {"schema_version": SCHEMA_VERSION, "commit": commit(), "device": options.device}
    if {key: found.get(key) for key in of_now} != of_now:
        return []
    return [part for part in found["parts"] if part["name"] not in now]


def write(
    options: argparse.Namespace, day: Day, outcomes: Sequence[Outcome], earlier: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Write gpu_day.json and gpu_day.txt with the results so far. earlier: those of other calls."""
    every = [*earlier, *(outcome.as_json() for outcome in outcomes)]
    card = next((part["figures"] for part in every if part["name"] == "card"), {})
    result = {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": commit(),
        "command": shlex.join(["python3", "benchmarks/gpu_day.py", *sys.argv[1:]]),
        "device": options.device,
        "machine": card.get("machine", {}),
        "budget_s": options.budget_s,
        "wall_s": round(day.wall_s, 1),
        "verdict": verdict(outcomes),
        "checklist": list(checklist(every, options.device == "cuda")),
        "parts": every,
    }
    write_json(options.out / "gpu_day.json", result)
    write_atomically(options.out / "gpu_day.txt", page(result))
    return result


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Return a summary: how many parts are done, which are not, and how many targets were missed."""
    done = sum(outcome.status == "done" for outcome in outcomes)
    rest = [f"{outcome.name} {outcome.status}" for outcome in outcomes if outcome.status != "done"]
    missed = sum(outcome.missed for outcome in outcomes)
    words = [f"{done} of {len(outcomes)} parts done", *rest, *([f"{missed} targets missed"] if missed else [])]
    return ", ".join(words)


def commit() -> str | None:
    """Return the checkout's commit; None in a copy without Git."""
    try:
        git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
