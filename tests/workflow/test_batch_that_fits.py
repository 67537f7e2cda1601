"""The batch per GPU is searched in the first scale's job, under a real limit of memory, and only once."""

from __future__ import annotations

import contextlib
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from project_copy import HUNGRY, HUNGRY_SAMPLES, NO_TORCH, Checkout

RANGE = {"from": 8, "to": 512}
GROUP_LIMIT_MB = 600  # of a whole job: the ladder's own processes need less than half
# 4 MB of real memory per sample, under no limit of its own.
GREEDY = f"""
import sys
held = b"x" * (int(sys.argv[1]) * 4 * 1000**2)
{NO_TORCH}"""


def configure(checkout: Checkout) -> None:
    workload = {"script": "loop.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": RANGE}
    checkout.configure(workload=workload)
    checkout.without_torch(HUNGRY)


def test_a_climb_searches_the_batch_in_its_first_job_and_keeps_it(checkout: Checkout) -> None:
    configure(checkout)
    done = checkout.climb("stage1", "stage2")
    assert done.returncode == 0, done.stdout
    assert "stage1 1x1: batch 128 per GPU: out of memory: " in done.stdout
    assert done.stdout.count("searching the batch per GPU from 8 to 512") == 1
    chosen = checkout.record("default/weak/1x1/r1")["spec"]["batch_per_gpu"]
    assert 64 <= chosen < HUNGRY_SAMPLES
    assert f"Chosen: {chosen} per GPU, the smallest batch within 3 % of the best throughput" in done.stdout
    record = checkout.record("default/weak/1x2/r1")
    assert (record["status"], record["spec"]["batch_per_gpu"]) == ("ok", chosen)
    # The second start finds the choice, and plans the same runs.
    before, found = checkout.run_times(), (checkout.results / "fit/1x1.json").stat().st_mtime_ns
    done = checkout.climb("stage1", "stage2")
    assert done.returncode == 0, done.stdout
    assert "searching" not in done.stdout
    assert checkout.run_times() == before
    assert (checkout.results / "fit/1x1.json").stat().st_mtime_ns == found


@dataclass(frozen=True)
class MemoryGroup:
    """A control group of the kernel with a limit of memory, as Slurm makes one of a job. Commands start in it."""

    path: Path
    events: str
    python = sys.executable

    def command(self, argv: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.path / "cgroup.procs"), *argv]

    @property
    def kills(self) -> int:
        return int(re.findall(r"^oom_kill (\d+)", (self.path / self.events).read_text(), re.MULTILINE)[0])


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    lines = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    root = next((Path(f"/sys/fs/cgroup/memory/{path}") for names, path in lines if "memory" in names.split(",")), None)
    limit, events = ("memory.limit_in_bytes", "memory.oom_control") if root else ("memory.max", "memory.events")
    root = root or next((Path(f"/sys/fs/cgroup/{path}") for names, path in lines if not names), Path("/no/group"))
    path = root / f"ddp-ladder-{uuid.uuid4()}"
    try:
        path.mkdir()
        (path / limit).write_text(str(GROUP_LIMIT_MB * 1024**2))
    except OSError as error:
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    else:
        yield MemoryGroup(path, events)
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()


def test_a_trial_that_the_kernel_kills_for_memory_ends_no_search(checkout: Checkout, memory_group: MemoryGroup) -> None:
    """The limit is of all processes of the job, and the kernel kills the largest one with SIGKILL."""
    configure(checkout)
    checkout.without_torch(GREEDY)
    done = replace(checkout, cluster=memory_group).climb("stage1")
    assert done.returncode == 0, done.stdout
    assert memory_group.kills
    killed = re.findall(r"batch (\d+) per GPU: out of memory: .*, as by the kernel's out-of-memory killer", done.stdout)
    assert len(killed) == memory_group.kills, done.stdout
    record = checkout.record("default/weak/1x1/r1")
    chosen = record["spec"]["batch_per_gpu"]
    assert record["status"] == "ok"
    assert record["ranks"][0]["memory_limit_bytes"]["host"] == GROUP_LIMIT_MB * 1024**2
    assert record["ranks"][0]["peak_memory_bytes"]["host"] <= 0.9 * GROUP_LIMIT_MB * 1024**2
    # The largest batch that fits is known to a tenth, and none that leaves the headroom is left out.
    assert 32 <= chosen < min(map(int, killed)) <= 2 * chosen
