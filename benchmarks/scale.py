"""What the ladder itself costs at 64 to 4,096 ranks: assembling, believing, looking at a hang, signs of life, files.

    python benchmarks/scale.py --out benchmarks/results/scale.json      # about ten minutes, 8 GB of disk
    python benchmarks/scale.py --ranks 64,256 --steps 500               # one minute

The raw files are those of a real run of two ranks on this machine, multiplied (4 ranks a node): other ranks, processes,
devices, hosts and samples, the same steps, as they are and repeated. Each size is measured in a process of its own: CPU
seconds without imports, peak memory with them. The parts of assembling are measured each by itself: what grows with the
square of the nodes hides in their sum. Beside it, in the same process, the same files are read as they are (json.loads
of what is JSON) and looked at (stat): what any reader pays. The exponent is that of the growth from one size to the
next: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from ddp_ladder.assembly import assemble  # noqa: E402
from ddp_ladder.assembly.run_records import RunRecords  # noqa: E402
from ddp_ladder.common.files import RunDirectory, read_json, sha256, write_json  # noqa: E402
from ddp_ladder.measuring import node_usage  # noqa: E402
from ddp_ladder.plan.plan import RunSpec  # noqa: E402
from ddp_ladder.records.raw_files import read_raw_run  # noqa: E402
from ddp_ladder.records.raw_models import AgentStall, RankStall, read_run_file  # noqa: E402
from ddp_ladder.records.record import Record, write_record  # noqa: E402
from ddp_ladder.records.steps import matrix_of  # noqa: E402
from ddp_ladder.run.hangs import Stalls  # noqa: E402
from ddp_ladder.run.signs import SignsOfLife  # noqa: E402
from ddp_ladder.settings.keys import Hang  # noqa: E402
from ddp_ladder_instrument.contract import HEADER  # noqa: E402
from one_run import Here  # noqa: E402
from opened_files import opened  # noqa: E402

A_NODE = 4  # ranks
STEPS = (500, 20_000)
PARTS = {
    "without_waits": assemble,
    "_warmup": assemble,
    "_figures": assemble,
    "diagnoses": assemble,
    "parts_of_run": assemble,
    "usage_of": assemble,
    "findings": node_usage,  # of usage_of
    "owners_of": assemble,
    "_fingerprint": assemble,
    "_remarks": assemble,
}
"""Functions in which assembling takes its time, and the modules that call them."""
OLD = 1_700_000_000  # unix time: files that are settled
SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(8_000, 64), torch.randint(10, (8_000,)))
sampler = DistributedSampler(data)
model = DDP(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)), torch.nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 16, sampler=sampler):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


def genuine_run(below: Path) -> RunDirectory:
    """Make a run of two ranks on this machine; return its directory."""
    os.chdir(ROOT)
    here = Here(below)
    record = here.run(SCRIPT, "1x2")
    assert record.failure is None, record.failure
    return here.directory(record.spec)


def multiply(genuine: RunDirectory, results: Path, ranks: int, steps: int) -> RunDirectory:
    """Write the packed files of a run of so many ranks and steps."""
    run, nodes = read_run_file(genuine), ranks // A_NODE
    batch = run.spec.batch_per_gpu * ranks
    spec = run.spec.replace(stage="stage3", nodes=nodes, gpus_per_node=A_NODE, global_batch=batch)
    directory = RunDirectory(results / "runs" / spec.name)
    names = [f"node{k:04}" for k in range(nodes)]
    write_json(
        directory.run, {**read_json(genuine.run), "spec": spec.model_dump(), "spec_hash": spec.hash, "nodes": names}
    )
    write_json(directory.ended, {**read_json(genuine.ended), "spec_hash": spec.hash})
    with ZipFile(genuine.packed(run.all_agents[0])) as archive:
        content = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}
    agent_end = read_json(genuine.agent_end(run.all_agents[0]))
    of_ranks = [(json.loads(content[f"rank{k}.json"]), _longer(content[f"rank{k}.steps"], steps)) for k in (0, 1)]
    about = {**json.loads(content["node0.monitor.json"]), "spec_hash": spec.hash}
    directory.nodes.mkdir()
    for k, agent in enumerate(read_run_file(directory).all_agents):
        own = {"node_rank": k, "node": names[k], "host": names[k], "spec_hash": spec.hash}
        with ZipFile(directory.packed(agent), "w") as archive:
            for local in range(A_NODE):
                rank = k * A_NODE + local
                end, matrix = of_ranks[min(rank, 1)]
                place = {"rank": rank, "local_rank": local, "node_rank": k, "host": names[k], "pid": 1000 + local}
                of_rank = {
                    **end,
                    **place,
                    "spec_hash": spec.hash,
                    "world_size": ranks,
                    "device": {**end["device"], "id": f"cpu:{rank}"},
                    "first_samples": [f"{rank:08x}{n:08x}" for n in range(len(end["first_samples"] or []))],
                    "steps": {**end["steps"], "count": steps, "sha256": sha256(matrix)},
                }
                archive.writestr(f"ranks/rank{rank}.json", json.dumps(of_rank))
                archive.writestr(f"ranks/rank{rank}.steps", matrix)
                archive.writestr(f"ranks/rank{rank}.log", content[f"rank{min(rank, 1)}.log"])
            archive.writestr(f"nodes/node{k}.monitor.json", json.dumps({**about, **own}))
            archive.writestr(f"nodes/node{k}.csv", content["node0.csv"])
        packed = sha256(directory.packed(agent).read_bytes())
        write_json(directory.agent_end(agent), {**agent_end, **own, "packed": packed})
    for file in directory.path.rglob("*.*"):
        os.utime(file, (OLD, OLD))
    return directory


def _longer(content: bytes, steps: int) -> bytes:
    """Return a rank's steps, repeated up to so many; their ends follow each other."""
    matrix = matrix_of(content)
    rows = matrix[:, np.arange(steps) % matrix.shape[1]]
    ended_at, took = HEADER.index("ended_at_s"), HEADER.index("step_time_s")
    rows[HEADER.index("step")] = np.arange(1, steps + 1)
    rows[ended_at] = matrix[ended_at, 0] + np.cumsum(rows[took]) - rows[took, 0]
    return rows.astype("<f8").tobytes()


# --- One size, in a process of its own.


def opens_below(path: Path, act: Callable[[], object]) -> int:
    """Return how many files below a path an action opens."""
    with opened() as events:
        act()
    return sum(event == "open" and name.startswith(str(path)) for event, name in events)


def cpu_s(act: Callable[[], object]) -> float:
    """Return the CPU seconds of an action."""
    begun_s = time.process_time()
    act()
    return time.process_time() - begun_s


def measure(directory: RunDirectory, steps: int) -> dict[str, float]:
    """Return what one run costs."""
    run = read_run_file(directory)
    spec = run.spec
    files = [path for path in directory.path.rglob("*") if path.is_file()]
    costs: dict[str, float] = {"ranks": spec.world_size, "nodes": spec.nodes, "steps": steps, "files": len(files) + 1}
    record: list[Record] = []
    parts_s: dict[str, float] = {}

    def assembled() -> None:
        begun_s = time.process_time()
        raw = read_raw_run(directory)
        parts_s["read_raw_run"] = time.process_time() - begun_s
        with ExitStack() as stack:
            for name, module in PARTS.items():
                stack.enter_context(mock.patch.object(module, name, _timed(getattr(module, name), parts_s, name)))
            record.append(assemble.record_of(raw))

    begun_s = time.process_time()
    costs["assemble_opens"] = opens_below(directory.path, assembled)
    costs["assemble_s"] = time.process_time() - begun_s
    costs |= {f"{name.strip('_')}_s": seconds for name, seconds in parts_s.items()}
    costs["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    costs["stat_s"] = cpu_s(lambda: [path.stat() for path in files])
    costs["read_s"] = cpu_s(lambda: [_read(path) for path in files])
    assert record[0].throughput is not None, record[0].failure
    write_record(directory.record, record[0])
    results = directory.path.parents[4]
    costs["first_believe_s"] = cpu_s(lambda: RunRecords(results).believed(spec))
    costs["believe_s"] = cpu_s(lambda: RunRecords(results).believed(spec))
    costs["believe_opens"] = opens_below(directory.path, lambda: RunRecords(results).believed(spec))
    return {**costs, **_at_a_hang(directory, spec)}


def _timed(function: Callable[..., Any], parts_s: dict[str, float], name: str) -> Callable[..., Any]:
    """Return a function that adds its CPU seconds to its part; what it yields comes as a tuple."""

    def timed(*values: Any, **named: Any) -> Any:
        begun_s = time.process_time()
        found = function(*values, **named)
        found = tuple(found) if isinstance(found, Iterator) else found
        parts_s[name] = parts_s.get(name, 0.0) + time.process_time() - begun_s
        return found

    return timed


def _read(path: Path) -> None:
    content = path.read_bytes()
    if path.suffix == ".json":
        json.loads(content)
    if path.suffix == ".zip":
        with ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    json.loads(archive.read(name))


def _at_a_hang(directory: RunDirectory, spec: RunSpec) -> dict[str, float]:
    """Return what the job's look costs in which every agent reports that its ranks hang, and the look after it."""
    run = read_run_file(directory).replace(hang=Hang())
    facts: dict[str, Any] = {"stuck": True, "process": "alive", "pid": 7, "phase": "training", "steps": 10}
    facts |= {"step_s": 0.1, "silent_s": 400.0, "sequence": 10, "stack": "x" * 1_000}
    for agent in run.all_agents:
        report = AgentStall(
            schema_version=1,
            spec_hash=spec.hash,
            job=run.job,
            node_rank=agent.node_rank,
            local_rank=agent.local_rank,
            node=f"node{agent.node_rank:04}",
            host=f"node{agent.node_rank:04}",
            found_at_s=OLD,
            bounds=Hang(),
            ranks=tuple(RankStall(rank=rank, **facts) for rank in run.ranks_of(agent)),
        )
        directory.hang(agent).write_text(json.dumps(report.model_dump()))
        directory.sign(agent.node_rank).write_text("10.0.0.1")
        directory.agent_end(agent).unlink()
    signs, stalls = SignsOfLife(directory, run), Stalls(directory, run)
    looks: list[bool] = []

    def look() -> None:
        signs._next_s = 0.0
        signs.look()
        looks.append(stalls.is_hang(signs.files))

    first_s = cpu_s(look)
    opens = opens_below(directory.path, look)
    assert looks == [True, True]
    return {"first_look_s": first_s, "next_look_s": cpu_s(look), "next_look_opens": opens}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures, and write them to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,256,1024,4096", help="numbers of ranks")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="numbers of steps of each rank")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.one:
        print(json.dumps(measure(RunDirectory(arguments.one), *arguments.steps)))
        return 0
    rows: list[dict[str, float]] = []
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "load_1min_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        genuine = genuine_run(Path(folder))
        for steps, ranks in product(arguments.steps, map(int, arguments.ranks.split(","))):
            directory = multiply(genuine, Path(folder) / "results", ranks, steps)
            command = [sys.executable, __file__, "--one", str(directory.path), "--steps", str(steps)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout))
            print(_in_words(rows), flush=True)
            shutil.rmtree(directory.path)
    if arguments.out:
        machine |= {"load_1min_after": os.getloadavg()[0]}
        arguments.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
        print(f"written: {arguments.out}")
    return 0


def _in_words(rows: Sequence[dict[str, float]]) -> str:
    """Return the last row, each figure with the exponent of its growth since the row before."""
    last = rows[-1]
    before = rows[-2] if len(rows) > 1 and rows[-2]["steps"] == last["steps"] else {}
    parts = []
    for name, value in last.items():
        grown = (
            f" (^{_exponent(before, last, name):.2f})"
            if before.get(name) and value and name not in ("ranks", "steps")
            else ""
        )
        parts.append(f"{name} {value:,.3g}{grown}")
    return "  ".join(parts)


def _exponent(before: dict[str, float], now: dict[str, float], name: str) -> float:
    return math.log(now[name] / before[name]) / math.log(now["ranks"] / before["ranks"])


if __name__ == "__main__":
    sys.exit(main())
