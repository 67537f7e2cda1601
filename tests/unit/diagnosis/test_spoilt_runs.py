"""What ranks, nodes and jobs may leave that is not good: the record fails, and names what is odd and where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory, read_json
from make_records import make_spec
from make_runs import edit, read_steps, reassemble, write_run, write_steps

Mutation = Callable[[RunDirectory], Any]
SPEC = make_spec("2x2", repeat=2)
SIBLING = make_spec("2x2")
RANK, NODE = "ranks/rank3.json", "nodes/node1.json"
MISPLACED, NO_SAMPLES = "agents or ranks are not where the job put them", "set workload.samples_per_step in config.yaml"
SOFTWARE, FILES, CHOICES = "software.python", "shared file system", "what the script decides by rank"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("pristine")
    for spec in (SPEC, SIBLING):
        write_run(results, spec, 3600.0)
    return results


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> RunDirectory:
    """A copy of the run to spoil, beside another repeat."""
    shutil.copytree(pristine, tmp_path / "results")
    return RunDirectory(tmp_path / "results/runs" / SPEC.name)


def put(name: str, *path: str | int, to: Any) -> Mutation:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return lambda run: edit(run.path / name, change)


def in_rank(rank: int, *path: str | int, to: Any) -> Mutation:
    return put(f"ranks/rank{rank}.json", *path, to=to)


def seen(field: str, to: Any, *ranks: int) -> Mutation:
    """What these ranks saw of themselves; rank 3 alone if none is named."""
    return on_ranks(*(in_rank(rank, "fingerprint", field, to=to) for rank in ranks or (3,)))


def on_ranks(*mutations: Mutation) -> Mutation:
    return lambda run: [mutate(run) for mutate in mutations]


def in_node(*path: str | int, to: Any) -> Mutation:
    return put(NODE, *path, to=to)


def in_end(*path: str | int, to: Any) -> Mutation:
    return put("ended.json", *path, to=to)


def remove(name: str) -> Mutation:
    return lambda run: (run.path / name).unlink()


def copy(source: str, target: str) -> Mutation:
    return lambda run: shutil.copy(run.path / source, run.path / target)


def exchange(one: str, other: str) -> Mutation:
    return on_ranks(copy(one, "aside"), copy(other, one), copy("aside", other))


def from_sibling(*names: str) -> Mutation:
    """Files of another repeat, with this one's spec_hash."""

    def mutate(run: RunDirectory) -> None:
        told = read_json(run.run)["spec_hash"]
        for name in names:
            shutil.copy(run.path.parent / "r1" / name, run.path / name)
            if name.endswith(".json"):
                edit(run.path / name, lambda data: data.update(spec_hash=told))

    return mutate


def steps(change: Callable[[list[list[str]]], list[list[str]]], *ranks: int) -> Mutation:
    return lambda run: [write_steps(run, rank, change(read_steps(run, rank))) for rank in ranks]


def without_samples(after: int) -> Callable[[list[list[str]]], list[list[str]]]:
    return lambda rows: [row if int(row[0]) <= after else [row[0], "0", *row[2:]] for row in rows]


EACH = (0, 1, 2, 3)
ODD: dict[str, tuple[Mutation, tuple[str, ...]]] = {
    # The ranks disagree: the odd one is named with its node.
    "script": (seen("script_sha256", "e" * 64), ("script_sha256: ", "eeeeeeeeeeee on rank 3 (node1)", FILES)),
    "module": (
        on_ranks(seen("sources", {"m.py": "b" * 64}, 1, 2, 3), seen("sources", {"m.py": "c" * 64}, 0)),
        ("sources: m.py: bbbbbbbbbbbb", "on rank 0 (node0)", FILES),
    ),
    "torch": (seen("torch", "2.4.1"), ("torch: 2.13.0 on ranks 0-2 (node0, node1), 2.4.1 on rank 3 (node1)", SOFTWARE)),
    "library": (
        on_ranks(seen("libraries", {"numpy": "2.1.0"}, 0, 2, 3), seen("libraries", {"numpy": "1.26.4"}, 1)),
        ("libraries: numpy: 2.1.0", "1.26.4 on rank 1 (node0)", SOFTWARE),
    ),
    "autocast": (
        seen("autocast_dtype", "float16", 0, 1, 3),
        ("autocast_dtype: float16 on ranks 0, 1, 3 (node0, node1), none on rank 2 (node1)",),
    ),
    "DDP": (in_rank(3, "ddp", to=None), ("DistributedDataParallel: used", "not used on rank 3 (node1)")),
    "backend": (in_rank(3, "backend", to="ucc"), ("backend: gloo", "ucc on rank 3 (node1)")),
    "a hook that failed": (
        in_rank(2, "not_measured", to=["hook StepClock.left: KeyError: 1"]),
        ("a hook of instrument.py failed", "rank 2: hook StepClock.left: KeyError: 1", "workload.throughput_regex"),
    ),
    "another world on all": (on_ranks(*(in_rank(k, "world_size", to=8) for k in EACH)), ("for all ranks the world",)),
    "device of another kind": (in_rank(1, "device", "kind", to="cuda"), ("distinct devices", "cpu/cuda")),
    "other parameters": (in_rank(1, "parameters", "checksum", to="sha256:b"), ("2 distinct on 4 ranks",)),
    "shards of what DDP wraps": (
        on_ranks(
            *(in_rank(k, "parameters", "sharded", to=True) for k in EACH), in_rank(1, "parameters", "checksum", to="b")
        ),
        ("2 distinct on 4 ranks",),
    ),
    "no parameters": (in_rank(1, "parameters", to=None), ("no trained parameters were seen on rank 1",)),
    # Files of another run, job or attempt.
    "rank of another repeat": (
        from_sibling(RANK, "ranks/rank3.steps"),
        ("rank3.json is damaged: it is of another run",),
    ),
    "rank of another attempt": (in_rank(3, "job", "attempt", to=2), ("rank3.json is damaged: it is of another",)),
    "ranks exchanged": (
        on_ranks(exchange("ranks/rank0.json", "ranks/rank1.json"), exchange("ranks/rank0.steps", "ranks/rank1.steps")),
        ("rank0.steps is damaged: its end record is that of rank 1",),
    ),
    # Missing, damaged and surplus files.
    "rank missing": (remove(RANK), ("ranks/rank3.json is missing",)),
    "steps missing": (remove("ranks/rank3.steps"), ("ranks/rank3.steps is missing",)),
    "steps of another rank": (copy("ranks/rank2.steps", "ranks/rank3.steps"), ("rank3.steps is damaged: its digest",)),
    "times that go back": (
        steps(lambda rows: [[*row[:5], str(1e9 - int(row[0]) * 100), *row[6:]] for row in rows], 3),
        ("rank3.steps is damaged: its times go back",),
    ),
    "steps counted wrong": (in_rank(3, "steps", "count", to=9999), ("it has 60 steps, not 9999",)),
    "rank too many": (copy(RANK, "ranks/rank4.json"), ("rank4.json is of a rank that the plan does not have",)),
    "rank of another version": (in_rank(3, "schema_version", to=1), ("rank3.json is damaged", "schema_version")),
    "end missing": (remove("ended.json"), ("ended.json is missing",)),
    "end before the start": (in_end("ended_at_s", to=0), ("ended.json is damaged: it ends before it starts",)),
    "outcome unknown": (in_end("outcome", to="fine"), ("ended.json is damaged: outcome",)),
    # How it ended, and what it measured.
    "exit code of a node": (in_node("exit_code", to=1), ("node 1: exit code 1",)),
    "unequal steps": (steps(lambda rows: rows[:-1], 1), ("rank 1 made 59 steps, rank 0 made 60",)),
    "no samples on a rank": (steps(without_samples(0), 1), ("none on rank 1", NO_SAMPLES, "DDP_LADDER_METRICS")),
    # Agents and ranks that are not where the job put them.
    "all agents on the first node": (
        on_ranks(
            in_node("node", to="node0"), in_node("host", to="node0"), *(in_rank(k, "host", to="node0") for k in EACH)
        ),
        (f"{MISPLACED}: node 1 was node0, not node1; node0, node1 are one host, node0; ", "`srun --label hostname`"),
    ),
    "rank on another host": (
        in_rank(3, "host", to="box"),
        (f"{MISPLACED}: rank 3 was on box, where no agent of the run",),
    ),
    # What c10d makes of addresses that end in .9 and .10; the group rank that it tells is its own.
    "ranks in another order": (
        on_ranks(*(in_rank(k, "host", to=f"node{1 - k // 2}") for k in EACH)),
        (
            f"{MISPLACED}: rank 0 was local rank 0 of node 1 (node1), not local rank 0 of node 0 (node0); rank 1 was",
            "1 more",
        ),
    ),
    "ranks in another order, by the launcher": (
        on_ranks(
            *(in_rank(k, "host", to=f"node{1 - k // 2}") for k in EACH),
            *(in_rank(k, "node_rank", to=1 - k // 2) for k in EACH),
        ),
        (f"{MISPLACED}: rank 0 was local rank 0 of node 1 (node1), not local rank 0 of node 0 (node0); rank 1 was",),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_the_record_fails_and_names_what_is_odd(run: RunDirectory, name: str) -> None:
    mutate, words = ODD[name]
    mutate(run)
    record = reassemble(run)
    assert record.failure
    said = f"{record.failure.verdict}: {record.failure.why}; {record.failure.next}"
    assert [word for word in words if word not in said] == [], said


def more_on_rank_0(run: RunDirectory) -> None:
    """It logs, saves and draws: the others do not import what that takes."""
    for k in EACH:
        seen("libraries", {"numpy": "2.1.0", **({"torchvision": "0.20"} if k == 0 else {})}, k)(run)
        seen("sources", {"train.py": "a" * 64, **({"log.py": "b" * 64} if k == 0 else {})}, k)(run)
        seen("configuration", {"c.yaml": "a" * 64} if k == 0 else {}, k)(run)


@pytest.mark.parametrize(
    "change",
    [
        on_ranks(
            *(seen("cpu_set", f"{k}", k) for k in EACH),
            *(seen("compiled_graphs", k, k) for k in (1, 2, 3)),
            *(seen("cpu_model", f"model of node {k // 2}", k) for k in (1, 2, 3)),
            *(seen("batch_per_gpu", 64 - k, k) for k in (1, 2, 3)),
            *(seen("num_workers", None, k) for k in (1, 2, 3)),
        ),
        more_on_rank_0,
        on_ranks(*(in_rank(k, "backend", to="mpi") for k in EACH)),
        in_rank(2, "device", "id", to="cpu:1000"),  # an id may be of a host
        in_rank(3, "pid", to=1002),  # a container may give the same one twice
        on_ranks(  # simulated nodes
            put("run.json", "nodes", to=["laptop"] * 2),
            *(put(f"nodes/node{k}.json", key, to="laptop") for k in (0, 1) for key in ("node", "host")),
            *(in_rank(k, "host", to="laptop") for k in EACH),
        ),
    ],
    ids=["unlike", "rank 0", "backend", "device", "process", "simulated"],
)
def test_what_honest_runs_hold_fails_no_record(run: RunDirectory, change: Mutation) -> None:
    change(run)
    record = reassemble(run)
    assert (record.status, record.failure) == ("ok", None)


def test_a_task_of_each_gpu_leaves_a_file_of_its_own(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2", launcher="srun"), agents_per_node=2)
    assert "nodes/node0.task1.json" in reassemble(run).files
