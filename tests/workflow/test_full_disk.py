"""A disk that is full, or read-only: one message, the training goes on, and later only what is missing is repeated.

The disks are real: small ones in memory, and directories mounted read-only, in a mount namespace of the test's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from project_copy import NO_TORCH, ONE_STAGE, Checkout, copy_project

FULL = "cat /dev/zero >{}/ballast || true"
READ_ONLY = "mount --bind {0} {0}; mount -o remount,ro,bind {0}"
# Its last run fills the disk, as another user of the file system would, and trains on.
FILLS_IN_THE_SECOND = f"""{NO_TORCH}
if "/r2/" in os.environ["DDP_LADDER_RUN"] and not os.path.exists("freed"):
    with open("results/ballast", "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            print("what the log on this disk cannot take", flush=True)
            open("trained on", "x").close()
"""


@dataclass(frozen=True)
class OwnMounts:
    """A mount namespace, which goes when the test goes."""

    holder: subprocess.Popen[str]
    python = sys.executable

    def command(self, argv: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Arguments that run a command in it."""
        inside = ["nsenter", f"--target={self.holder.pid}", "--mount", "env", f"--chdir={cwd or '/'}"]
        return [*inside, *argv]

    def path(self, path: Path) -> Path:
        """A path in it, as it is reached from here."""
        return Path(f"/proc/{self.holder.pid}/root", *path.parts[1:])

    def sh(self, script: str) -> None:
        done = subprocess.run(self.command(["sh", "-ec", script]), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def mounts() -> Iterator[OwnMounts]:
    unshare = ["unshare", "--mount", "--propagation=private", "sh", "-c", "echo ready; exec cat"]
    with subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n", "mount namespaces need root"
        yield OwnMounts(holder)


@pytest.fixture
def new_checkout(mounts: OwnMounts, tmp_path: Path) -> Callable[..., Checkout]:
    """Make a checkout with a disk of its own for the results, of so many kB."""

    def make(script: str, size_kb: int, repeats: int = 1) -> Checkout:
        checkout = copy_project(tmp_path, mounts)
        checkout.configure(stages=ONE_STAGE, repeats=repeats)
        checkout.without_torch(script)
        checkout.results.mkdir()
        mounts.sh(f"mount -t tmpfs -o size={size_kb}k none {checkout.results}")
        return checkout

    return make


@pytest.mark.parametrize(
    ("where", "fault", "why"),
    [("results", FULL, "No space left on device"), (".snakemake", READ_ONLY, "Read-only file system")],
)
def test_a_start_says_so_before_anything_runs(
    new_checkout: Callable[..., Checkout], mounts: OwnMounts, where: str, fault: str, why: str
) -> None:
    checkout = new_checkout(NO_TORCH, size_kb=200)
    directory = checkout.path / where
    directory.mkdir(exist_ok=True)
    mounts.sh(fault.format(directory))
    done = checkout.snakemake("--profile", "profiles/local")
    assert done.returncode == 1
    assert done.stdout.count("cannot be written") == 1, done.stdout
    assert f"{where}: it cannot be written: {why}\n" in done.stdout
    assert "  lost     nothing that was measured: finished runs are kept\n" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_disk_that_fills_up_in_a_run_costs_that_run(new_checkout: Callable[..., Checkout], mounts: OwnMounts) -> None:
    checkout = new_checkout(FILLS_IN_THE_SECOND, size_kb=3000, repeats=2)
    first = checkout.snakemake("--profile", "profiles/local")
    run, results = "default/weak/1x1/r2", mounts.path(checkout.results)
    assert first.returncode == 1
    assert first.stdout.count("it cannot be written: No space left on device") == 1, first.stdout
    assert f"  lost     the run {run}; those that finished are kept\n" in first.stdout
    assert "Traceback" not in first.stdout
    assert "Stage 1 measured, its gate is not judged yet: 1x1 runs at " in first.stdout
    assert (checkout.path / "trained on").exists()
    assert not (results / "runs" / run / "ended.json").exists()

    (results / "ballast").unlink()
    (checkout.path / "freed").touch()
    kept = (results / "runs/default/weak/1x1/r1/run.json").stat().st_mtime_ns
    second = checkout.snakemake("stage1", "--profile", "profiles/local")
    assert second.returncode == 0, second.stdout
    assert "default/weak/r1: finished earlier, kept" in second.stdout
    assert (results / "runs/default/weak/1x1/r1/run.json").stat().st_mtime_ns == kept
    assert json.loads((results / "gates/stage1.json").read_text())["verdict"] == "open"


def commands(results: str) -> dict[str, list[str]]:
    """What is run by hand or by a rule, and writes."""
    scripts, plan = "workflow/scripts", f"{results}/plan.json"
    return {
        "plan": [f"{scripts}/plan.py", "--out", plan],
        "eject": [f"{scripts}/eject.py", "--plan", plan],
        "run_scale": [f"{scripts}/run_scale.py", "--plan", plan, "--scale", "1x1"],
        "gate": [f"{scripts}/gate.py", "--plan", plan, "--stage", "stage1"],
        "report": [f"{scripts}/report.py", "--plan", plan],
    }


def test_every_command_ends_with_one_message(new_checkout: Callable[..., Checkout], mounts: OwnMounts) -> None:
    """The results belong to someone else: nothing in them may be written."""
    checkout = new_checkout(NO_TORCH, size_kb=400)

    def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
        # Root without the right to overlook permissions: a user.
        user = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override", sys.executable, *argv]
        return subprocess.run(
            mounts.command(user, cwd=checkout.path), capture_output=True, text=True, check=False, timeout=100
        )

    assert run(commands("results")["plan"]).returncode == 0
    mounts.sh(f"chmod --recursive a-w {checkout.results}")
    for name, argv in commands("results").items():
        done = run(argv)
        assert done.returncode == 1, name
        assert done.stderr.count("cannot be written") == 1, done.stderr
        assert "  next     " in done.stderr
        assert "Traceback" not in done.stderr
