"""Runs spoilt as mistakes, copies and mixed-up files spoil them, each with the record that its files add up to.

Every line says what is done and what the closed gate must name. The digests fit, so that nothing but a careful reader
finds out; fraud that is consistent everywhere is none of them (docs/measuring.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory, read_json, sha256
from ddp_ladder.gates.gate import judge
from ddp_ladder.plan.plan import Plan
from make_records import make_plan_of, make_spec
from make_runs import Rows, edit, read_steps, reassemble, write_ladder, write_run, write_steps

RUN, BASELINE = "default/weak/2x2/r2", "default/weak/1x1/r2"
SIBLING = "default/weak/2x2/r1"
SMALLER = "default/weak/1x2/r2"
STAGE = "stage3"
SCALES = ("1x1", "1x2", "2x2")
RATES = {"1x1": 1024.0, "1x2": 1900.0, "2x2": 3600.0}
START_S = 1_800_000_000.0

Mutation = Callable[[RunDirectory], Any]
Case = tuple[Mutation, tuple[str, ...]]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    results = tmp_path_factory.mktemp("pristine")
    return results, write_ladder(results, scales=SCALES, repeats=2, rates=RATES)


@pytest.fixture(scope="module")
def plan(pristine: tuple[Path, Plan]) -> Plan:
    """Of the run to spoil and its baseline alone."""
    return make_plan_of([run for run in pristine[1].runs if run.name in (BASELINE, RUN)])


@pytest.fixture
def results(pristine: tuple[Path, Plan], tmp_path: Path) -> Path:
    """The ladder, with a copy of the run to spoil."""
    good, results = pristine[0] / "runs", tmp_path / "results"
    for spec in pristine[1].runs:
        (results / "runs" / spec.name).parent.mkdir(parents=True, exist_ok=True)
        if spec.name != RUN:
            (results / "runs" / spec.name).symlink_to(good / spec.name)
    shutil.copytree(good / RUN, results / "runs" / RUN)
    return results


# ---- How a run is spoilt. ----


def put(data: Any, path: tuple[str | int, ...], value: Any) -> None:
    *parents, last = path
    for key in parents:
        data = data[key]
    data[last] = value


def in_rank(rank: int, *path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.ranks / f"rank{rank}.json", lambda end: put(end, path, to))


def seen(field: str, to: Any, rank: int = 3) -> Mutation:
    """What one rank saw of itself."""
    return in_rank(rank, "fingerprint", field, to=to)


def on_ranks(*mutations: Mutation) -> Mutation:
    return lambda run: [mutate(run) for mutate in mutations]


def in_node(node: int, *path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.agent_end(Agent(node)), lambda end: put(end, path, to))


def in_end(*path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.ended, lambda end: put(end, path, to))


def in_run(*path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.run, lambda told: put(told, path, to))


def argv(node: int, change: Callable[[list[str]], list[str]]) -> Mutation:
    return lambda run: edit(run.agent_end(Agent(node)), lambda end: end.update(argv=change(end["argv"])))


def instead(old: str, new: str) -> Callable[[list[str]], list[str]]:
    def change(words: list[str]) -> list[str]:
        assert old in words
        return [new if word == old else word for word in words]

    return change


def rows(rank: int, change: Callable[[Rows], Rows]) -> Mutation:
    """Other steps in a rank's CSV, numbered, counted and digested as they should be."""

    def mutate(run: RunDirectory) -> None:
        changed = change(read_steps(run, rank))
        write_steps(run, rank, [[str(k), *row[1:]] for k, row in enumerate(changed, start=1)])

    return mutate


def steps_of(source: int, target: int, change: Callable[[Rows], Rows] = lambda steps: steps) -> Mutation:
    """One rank's steps in the place of another's."""
    return lambda run: write_steps(run, target, change(read_steps(run, source)))


def scaled(factor: float) -> Callable[[Rows], Rows]:
    return lambda steps: [[*row[:3], f"{float(row[3]) * factor:.9f}", row[4]] for row in steps]


def text(name: str, change: Callable[[str], str]) -> Mutation:
    def mutate(run: RunDirectory) -> None:
        before = (run.path / name).read_text()
        after = change(before)
        assert after != before
        (run.path / name).write_bytes(after.encode("utf-8", "surrogateescape"))

    return mutate


def replaced(name: str, old: str, new: str) -> Mutation:
    return text(name, lambda content: content.replace(old, new, 1))


# ---- Agreement of the ranks: one of four differs, and is named with its node. ----

SOFTWARE = "software.python"
FILES = "shared file system"
CHOICES = "what the script decides by rank"

AGREEMENT: dict[str, Case] = {
    "script": (seen("script_sha256", "e" * 64), ("script_sha256: ", "eeeeeeeeeeee on rank 3 (node1)", FILES)),
    "script on rank 0": (seen("script_sha256", "e" * 64, rank=0), ("on ranks 1-3 (node0, node1)", "on rank 0 (node0)")),
    "script not told": (seen("script_sha256", None), ("script_sha256: ", "none on rank 3 (node1)")),
    "module": (
        on_ranks(*(seen("sources", {"train.py": "a" * 64, "model.py": ("b" if k else "c") * 64}, k) for k in range(4))),
        ("sources: model.py: bbbbbbbbbbbb", "on rank 0 (node0)", FILES),
    ),
    "configuration file": (
        on_ranks(*(seen("configuration", {"c.yaml": ("d" if k == 2 else "a") * 64}, k) for k in range(4))),
        ("configuration: c.yaml: ", "on rank 2 (node1)", FILES),
    ),
    "torch": (seen("torch", "2.4.1"), ("torch: 2.13.0 on ranks 0-2 (node0, node1), 2.4.1 on rank 3 (node1)", SOFTWARE)),
    "torch on a node": (
        on_ranks(seen("torch", "2.4.1", 2), seen("torch", "2.4.1", 3)),
        ("torch: 2.13.0 on ranks 0-1 (node0), 2.4.1 on ranks 2-3 (node1)",),
    ),
    "torch of three kinds": (
        on_ranks(seen("torch", "2.4.1", 2), seen("torch", "2.5.0", 3)),
        ("2.4.1 on rank 2 (node1), 2.5.0 on rank 3 (node1)",),
    ),
    "no torch": (seen("torch", None), ("torch: 2.13.0", "none on rank 3 (node1)")),
    "torch of another build": (seen("torch", "2.13.0+cpu"), ("2.13.0+cpu on rank 3 (node1)",)),
    "python": (seen("python", "3.9.2"), ("python: 3.11.7", "3.9.2 on rank 3 (node1)", SOFTWARE)),
    "cuda": (seen("cuda", "12.4"), ("cuda: none", "12.4 on rank 3 (node1)")),
    "nccl": (seen("nccl", "2.19.3"), ("nccl: none", "2.19.3 on rank 3 (node1)")),
    "cudnn": (
        on_ranks(*(seen("cudnn", 90100 if k else 90200, k) for k in range(4))),
        ("cudnn: 90100", "90200 on rank 0 (node0)"),
    ),
    "library": (
        on_ranks(*(seen("libraries", {"numpy": "1.26.4" if k == 1 else "2.1.0"}, k) for k in range(4))),
        ("libraries: numpy: 2.1.0", "1.26.4 on rank 1 (node0)", SOFTWARE),
    ),
    "threads": (seen("threads", 64), ("threads: 1 on", "64 on rank 3 (node1)", CHOICES)),
    "workers": (seen("num_workers", 8), ("num_workers: 0 on", "8 on rank 3 (node1)", CHOICES)),
    "precision of parameters": (
        seen("parameter_dtype", "bfloat16"),
        ("parameter_dtype: float32", "bfloat16 on rank 3"),
    ),
    "autocast": (seen("autocast_dtype", "bfloat16"), ("autocast_dtype: none", "bfloat16 on rank 3 (node1)")),
    "autocast on all but one": (
        on_ranks(*(seen("autocast_dtype", "float16", k) for k in (0, 1, 3))),
        ("autocast_dtype: float16 on ranks 0-1, 3 (node0, node1), none on rank 2 (node1)",),
    ),
    "TF32": (
        on_ranks(*(seen("float32_products", "high" if k == 3 else "highest", k) for k in range(4))),
        ("float32_products: highest", "high on rank 3 (node1)"),
    ),
    "optimizer": (seen("optimizer", "AdamW (fused)"), ("optimizer: SGD", "AdamW (fused) on rank 3 (node1)")),
    "DDP": (in_rank(3, "ddp", to=None), ("DistributedDataParallel: used", "not used on rank 3 (node1)")),
    "communication hook": (
        in_rank(3, "ddp", "comm_hook", to="fp16_compress_hook"),
        ("communication hook: none", "fp16_compress_hook on rank 3 (node1)"),
    ),
    "backend": (in_rank(3, "backend", to="ucc"), ("backend: gloo", "ucc on rank 3 (node1)")),
    "no backend": (in_rank(3, "backend", to=None), ("no process group on rank 3", "init_process_group()")),
}

# ---- Against the plan. ----

PLANNED: dict[str, Case] = {
    "arguments of a rank": (
        seen("args", ["--batch-size", "32"]),
        ("rank 3 (node1) ran with other arguments: '32', planned '64'",),
    ),
    "arguments of all ranks": (
        on_ranks(*(seen("args", ["--batch-size", "32"], k) for k in range(4))),
        ("rank 0 (node0) ran with other arguments", "rank 2 (node1)"),
    ),
    "an argument more": (
        on_ranks(*(seen("args", ["--batch-size", "64", "--amp"], k) for k in range(4))),
        ("rank 0 (node0) ran with other arguments: '--amp', which is not planned",),
    ),
    "an argument less": (seen("args", ["--batch-size"]), ("rank 3 (node1)", "'64', which is planned, is missing")),
    "no arguments": (seen("args", [], 1), ("rank 1 (node0)", "'--batch-size', which is planned, is missing")),
    "arguments in another order": (seen("args", ["64", "--batch-size"]), ("rank 3 (node1)", "planned '--batch-size'")),
    "another script": (
        argv(1, instead("workflow/workloads/mnist.py", "workflow/workloads/mlp.py")),
        ("node 1 (node1) started another command", "mlp.py", "mnist.py"),
    ),
    "the script of another checkout with another name": (
        argv(1, instead("workflow/workloads/mnist.py", "/home/me/mnist.py")),
        ("node 1 (node1) started another command",),
    ),
    "another argument in the command": (
        argv(0, instead("64", "128")),
        ("node 0 (node0) started another command: '128', planned '64'",),
    ),
    "an argument more in the command": (argv(0, lambda words: [*words, "--amp"]), ("node 0 (node0)", "--amp")),
    "an argument less in the command": (argv(0, lambda words: words[:-1]), ("node 0 (node0) started another command",)),
    "no command": (argv(1, lambda words: []), ("node 1 (node1) started nothing, without instrument.py",)),
    "a command of something else": (
        argv(1, lambda words: ["sleep", "60"]),
        ("node 1 (node1) started sleep 60, without",),
    ),
    "without the instrument": (
        argv(1, lambda words: [word for word in words if not word.endswith("instrument.py")]),
        ("node 1 (node1) started ", ", without instrument.py"),
    ),
    "without torchrun": (
        argv(1, lambda words: [words[0], *words[-4:]]),
        ("node 1 (node1) was started without torch.distributed.run --nnodes=2 --nproc-per-node=2",),
    ),
    "fewer ranks per node": (
        argv(1, instead("--nproc-per-node=2", "--nproc-per-node=1")),
        ("node 1 (node1) was started without --nproc-per-node=2",),
    ),
    "fewer nodes": (argv(0, instead("--nnodes=2", "--nnodes=1")), ("node 0 (node0) was started without --nnodes=2",)),
    "told of another warm-up": (
        in_run("measure", "warmup_steps", to=0),
        ("run.json: measure.warmup_steps is 0, planned 10",),
    ),
    "told to stop early": (in_run("measure", "max_steps", to=60), ("run.json: measure.max_steps is 60, planned None",)),
    "told of a time": (in_run("measure", "max_seconds", to=5.0), ("measure.max_seconds is 5.0, planned None",)),
    "told of samples": (
        in_run("measure", "samples_per_step", to=640),
        ("measure.samples_per_step is 640, planned None",),
    ),
    "stopped by a maximum that is not set": (
        in_rank(3, "ended_by", to="max_steps"),
        ("rank 3 (node1) was ended by measure.max_steps, which is not set",),
    ),
    "stopped by a time that is not set": (
        in_rank(1, "ended_by", to="max_seconds"),
        ("rank 1 (node0) was ended by measure.max_seconds, which is not set",),
    ),
    "nccl without a GPU": (
        on_ranks(*(in_rank(k, "backend", to="nccl") for k in range(4))),
        ("backend", "nccl on ranks 0-3 (node0, node1)"),
    ),
    "a backend that does nothing": (
        on_ranks(*(in_rank(k, "backend", to="fake") for k in range(4))),
        ("backend", "fake on ranks 0-3"),
    ),
}

# ---- Times. A run of 9.3 s: started 0.1 s after the job did, in training from 4.3 s on. ----

TIMES: dict[str, Case] = {
    "node started before the run": (
        in_node(0, "launched_at_s", to=START_S - 30),
        ("node 0 (node0) was started 30.0 s before the run began",),
    ),
    "another host's node started before the run": (
        in_node(1, "launched_at_s", to=START_S - 300),
        ("node 1 (node1) was started 300.0 s before the run began",),
    ),
    "node ended after the run": (
        in_node(0, "ended_at_s", to=START_S + 100),
        ("node 0 (node0) ended ", "s after the run had ended"),
    ),
    "another host's node ended after the run": (
        in_node(1, "ended_at_s", to=START_S + 1000),
        ("node 1 (node1) ended ", "s after the run had ended"),
    ),
    "node ended before it was started": (
        in_node(1, "ended_at_s", to=START_S - 40),
        ("node 1 (node1) ended 40.1 s before it was started",),
    ),
    "node of yesterday": (
        on_ranks(in_node(1, "launched_at_s", to=START_S - 86_400), in_node(1, "ended_at_s", to=START_S - 86_390)),
        ("node 1 (node1)", "before the run began"),
    ),
    "rank ended after the run": (in_rank(0, "ended_at_s", to=START_S + 60), ("rank 0 (node0) ended ", "after the run")),
    "another host's rank ended after the run": (
        in_rank(3, "ended_at_s", to=START_S + 600),
        ("rank 3 (node1) ended ", "after the run"),
    ),
    "rank ended before the run": (
        in_rank(1, "ended_at_s", to=START_S - 60),
        ("rank 1 (node0)", "before the run began"),
    ),
    "rank ended before its node was started": (
        in_rank(3, "ended_at_s", to=START_S - 5),
        ("rank 3 (node1) ended at another time than its node's launcher ran",),
    ),
    "rank ended after its node had": (
        in_rank(3, "ended_at_s", to=START_S + 30),
        ("rank 3 (node1) ended at another time than its node's launcher ran",),
    ),
    "rank ended too early for what it did": (
        in_rank(2, "ended_at_s", to=START_S + 2),
        ("rank 2 (node1): start-up and training of",),
    ),
    "time 0": (in_rank(2, "ended_at_s", to=0), ("rank 2 (node1) ended ", "before the run began")),
    "milliseconds for seconds": (
        in_rank(2, "ended_at_s", to=START_S * 1000),
        ("rank 2 (node1) ended ", "after the run"),
    ),
    "steps longer than the run": (
        on_ranks(*(rows(k, scaled(5)) for k in range(4))),
        ("rank 0 (node0): 60 steps of", "though it ran for at most"),
    ),
    "steps of a rank longer than the run": (rows(3, scaled(5)), ("rank 3 (node1): 60 steps of",)),
    "steps longer than the training": (rows(3, scaled(1.6)), ("rank 3 (node1): steps of", "in a training of")),
    "milliseconds for seconds in the steps": (rows(1, scaled(1000)), ("rank 1 (node0): 60 steps of",)),
    "one step longer than the run": (
        rows(3, lambda steps: [*steps[:30], [*steps[30][:3], "99.000000001", "0.000000001"], *steps[31:]]),
        ("rank 3 (node1): 60 steps of",),
    ),
    "training longer than the run": (
        in_rank(3, "training_s", to=3600.0),
        ("rank 3 (node1): start-up and training of",),
    ),
    "training shorter than its steps": (
        in_rank(3, "training_s", to=1.0),
        ("rank 3 (node1): steps of", "training of 1.0 s"),
    ),
    "start-up longer than the run": (
        in_rank(3, "startup_s", "total", to=600.0),
        ("rank 3 (node1): start-up and training of",),
    ),
    "import longer than the start-up": (
        in_rank(3, "startup_s", "import_torch", to=60.0),
        ("rank 3 (node1): import_torch of 60.0 s in a start-up of 4.2 s",),
    ),
    "spawn longer than the start-up": (in_rank(3, "startup_s", "spawn", to=60.0), ("rank 3 (node1): spawn of 60.0 s",)),
    "process group longer than the start-up": (
        in_rank(3, "startup_s", "process_group", to=60.0),
        ("rank 3 (node1): process_group of 60.0 s",),
    ),
    "waits longer than the run": (
        rows(3, lambda steps: [[*row[:4], f"{float(row[4]) + 1:.9f}"] for row in steps]),
        ("rank 3 (node1): waits for data of",),
    ),
    "communication longer than the run": (
        in_rank(3, "ddp", "exposed_comm_s", to=99.0),
        ("rank 3 (node1): communication of one step of 99.0 s",),
    ),
    "run of another time": (
        on_ranks(in_end("started_at_s", to=START_S + 5000), in_end("ended_at_s", to=START_S + 5009)),
        ("node 0 (node0) was started 4999.9 s before the run began",),
    ),
    "run shorter than its ranks": (in_end("ended_at_s", to=START_S + 2), ("node 0 (node0) ended", "after the run had")),
    "run started after its nodes": (
        in_end("started_at_s", to=START_S + 3),
        ("node 0 (node0) was started 2.9 s before",),
    ),
}

# ---- Steps that are there twice. ----

COPIES: dict[str, Case] = {
    "steps of rank 0 on rank 3": (steps_of(0, 3), ("rank 0 (node0) and rank 3 (node1) have 100 % of their steps",)),
    "steps of the neighbour": (steps_of(2, 3), ("rank 2 (node1) and rank 3 (node1)",)),
    "steps of rank 0 on all": (
        on_ranks(*(steps_of(0, k) for k in (1, 2, 3))),
        ("rank 0 (node0) and rank 1 (node0)", "rank 0 (node0) and rank 3 (node1)"),
    ),
    "steps of rank 0, other samples": (
        steps_of(0, 3, lambda steps: [[row[0], "32", *row[2:]] for row in steps]),
        ("rank 0 (node0) and rank 3 (node1)",),
    ),
    "half of the steps of rank 0": (
        lambda run: write_steps(run, 3, [*read_steps(run, 0)[:30], *read_steps(run, 3)[30:]]),
        ("rank 0 (node0) and rank 3 (node1) have 50 % of their steps",),
    ),
    "ten steps of rank 0": (
        lambda run: write_steps(run, 3, [*read_steps(run, 0)[:10], *read_steps(run, 3)[10:]]),
        ("rank 0 (node0) and rank 3 (node1) have 17 % of their steps",),
    ),
    "second half is the first": (
        rows(3, lambda steps: [*steps[:30], *steps[:30]]),
        ("rank 3 (node1): steps 31 to", "repeat steps 1 to"),
    ),
    "ten steps come again": (
        rows(1, lambda steps: [*steps[:40], *steps[20:30], *steps[50:]]),
        ("rank 1 (node0): steps 41 to", "repeat steps 21 to"),
    ),
    "ten steps twenty times": (
        on_ranks(*(rows(k, lambda steps: steps[:10] * 6) for k in range(4))),
        ("rank 0 (node0): 60 steps took only 10 different times",),
    ),
    "one step again and again": (
        rows(2, lambda steps: [steps[20]] * 60),
        ("rank 2 (node1): 60 steps took only 1 different times",),
    ),
    "the steps of all are one": (
        on_ranks(*(rows(k, lambda steps: [steps[20]] * 60) for k in range(4))),
        ("rank 0 (node0): 60 steps took only 1 different times",),
    ),
    "one step in most places": (
        rows(2, lambda steps: [*steps[:10], *[steps[20]] * 50]),
        ("rank 2 (node1): 60 steps took only 11 different times",),
    ),
    "rounded to a hundredth": (
        rows(2, lambda steps: [[*row[:3], f"{float(row[3]):.2f}0000000", "0.000000000"] for row in steps]),
        ("rank 2 (node1): 60 steps took only",),
    ),
}

# ---- Raw files of another run, with the spec_hash rewritten. ----


def from_run(other: str, *names: str, also: tuple[str, ...] = ()) -> Mutation:
    """Files of another run in this one's place, with this one's spec_hash, and what ``also`` names of the job."""

    def mutate(run: RunDirectory) -> None:
        source = RunDirectory(run.path.parents[3] / other)
        told = read_json(run.run)
        for name in names:
            target = run.path / name
            shutil.copy(source.path / name, target)
            if name.endswith(".json"):
                job = {key: told["job"][key] for key in also}
                edit(target, lambda data, job=job: data.update(spec_hash=told["spec_hash"], job={**data["job"], **job}))

    return mutate


def whole_rank(rank: int) -> tuple[str, str]:
    return f"ranks/rank{rank}.json", f"ranks/rank{rank}.csv"


JOB = ("id", "attempt")
ALL_RANKS = tuple(name for rank in range(4) for name in whole_rank(rank))

FOREIGN: dict[str, Case] = {
    "rank of another repeat": (from_run(SIBLING, *whole_rank(3)), ("one origin", "foreign: rank 3")),
    "all ranks of another repeat": (from_run(SIBLING, *ALL_RANKS), ("one origin", "rank 0, rank 1, rank 2, rank 3")),
    "rank of another scale": (from_run(SMALLER, *whole_rank(1), also=JOB), ("one origin", "foreign: rank 1")),
    "node of another repeat": (from_run(SIBLING, "nodes/node1.json"), ("one origin", "foreign: node 1")),
    "node of another scale": (from_run(SMALLER, "nodes/node0.json", also=JOB), ("one origin", "foreign: node 0")),
    "end of another repeat": (from_run(SIBLING, "ended.json"), ("one origin", "foreign: ended.json")),
    "end of another scale": (from_run(SMALLER, "ended.json", also=JOB), ("one origin", "foreign: ended.json")),
    "everything but run.json": (
        from_run(SIBLING, *ALL_RANKS, "nodes/node0.json", "nodes/node1.json", "ended.json"),
        ("one origin", "foreign: rank 0"),
    ),
    "rank of another attempt": (in_rank(3, "job", "run_id", to="another"), ("one origin", "foreign: rank 3")),
    "node of another attempt": (in_node(1, "job", "run_id", to="another"), ("one origin", "foreign: node 1")),
    "end of another attempt": (in_end("job", "run_id", to="another"), ("one origin", "foreign: ended.json")),
    "run.json of another attempt": (in_run("job", "run_id", to="another"), ("one origin", "foreign: rank 0")),
    "rank without an attempt's name": (
        lambda run: edit(run.ranks / "rank3.json", lambda end: end["job"].pop("run_id")),
        ("rank3.json is damaged", "run_id"),
    ),
    "process twice on a node": (
        on_ranks(in_rank(3, "pid", to=1002), in_rank(3, "device", "id", to="cpu:9")),
        ("one origin", "process 1002 of node1 is rank 2 and rank 3"),
    ),
    "rank of another scale, job and attempt too": (
        from_run(SMALLER, *whole_rank(1), also=(*JOB, "run_id")),
        ("world size", "rank 1"),
    ),
}

# ---- JSON that two readers may read differently. ----

RANK, NODE = "ranks/rank3.json", "nodes/node1.json"


def twice(name: str, key: str, value: str) -> Mutation:
    return text(name, lambda content: content.replace("{", f'{{"{key}": {value}, ', 1))


def as_float(name: str, *path: str | int) -> Mutation:
    """1.0 in the place of 1."""

    def mutate(run: RunDirectory) -> None:
        def change(data: Any) -> None:
            value = data
            for key in path:
                value = value[key]
            assert type(value) is int
            put(data, path, float(value))

        edit(run.path / name, change)

    return mutate


STRICT: dict[str, Case] = {
    "key twice in a rank": (twice(RANK, "exit_code", "1"), ("rank3.json", "'exit_code' is there twice")),
    "key twice in a node": (twice(NODE, "exit_code", "1"), ("node1.json", "'exit_code' is there twice")),
    "key twice in the end": (
        twice("ended.json", "outcome", '"time limit"'),
        ("ended.json", "'outcome' is there twice"),
    ),
    "key twice, alike": (twice(RANK, "rank", "3"), ("rank3.json", "'rank' is there twice")),
    "key twice deep inside": (replaced(RANK, '"torch":', '"torch": "2.4.1", "torch":'), ("rank3.json", "'torch'")),
    "byte order mark in a rank": (text(RANK, lambda content: "\ufeff" + content), ("rank3.json", "BOM")),
    "byte order mark in a node": (text(NODE, lambda content: "\ufeff" + content), ("node1.json", "BOM")),
    "byte order mark in the end": (text("ended.json", lambda content: "\ufeff" + content), ("ended.json", "BOM")),
    "trailing data": (text(RANK, lambda content: content + "{}"), ("rank3.json", "Extra data")),
    "two objects": (text("ended.json", lambda content: content * 2), ("ended.json", "Extra data")),
    "no UTF-8": (replaced(RANK, '"node1"', '"node1\udcff"'), ("rank3.json", "utf-8")),
    "half of a surrogate pair": (replaced(RANK, '"node1"', '"node1\\ud800"'), ("rank3.json", "surrogates")),
    "a comment": (text(NODE, lambda content: "// edited\n" + content), ("node1.json", "not JSON")),
    "a comma too many": (text(NODE, lambda content: content.replace("}", ",}", 1)), ("node1.json", "not JSON")),
    "NaN": (replaced(RANK, '"total": 4.2', '"total": NaN'), ("rank3.json", "NaN is not a figure")),
    "minus zero": (replaced(RANK, '"exit_code": 0', '"exit_code": -0'), ("rank3.json", "-0")),
    "1e0 for 1": (replaced(RANK, '"local_rank": 1', '"local_rank": 1e0'), ("rank3.json", "local_rank")),
    "a number beyond all limits": (replaced(RANK, '"pid": 1003', f'"pid": {10**30}'), ("rank3.json", "beyond 64 bits")),
    **{
        f"1.0 for {'.'.join(map(str, path))} of a rank": (as_float(RANK, *path), ("rank3.json", str(path[-1])))
        for path in [
            ("schema_version",),
            ("rank",),
            ("local_rank",),
            ("world_size",),
            ("pid",),
            ("exit_code",),
            ("job", "attempt"),
            ("steps", "count"),
            ("parameters", "count"),
            ("parameters", "bytes"),
            ("loader", "passes"),
            ("loss", "samples"),
            ("loss", "last_step"),
            ("ddp", "samples"),
            ("fingerprint", "batch_per_gpu"),
            ("fingerprint", "threads"),
            ("fingerprint", "num_workers"),
            ("fingerprint", "cpus"),
            ("peak_memory_bytes", "host"),
        ]
    },
    **{
        f"1.0 for {'.'.join(map(str, path))} of a node": (as_float(NODE, *path), ("node1.json", str(path[-1])))
        for path in [("schema_version",), ("node_rank",), ("exit_code",), ("job", "attempt"), ("cpus", 0)]
    },
    "1.0 for the attempt in the end": (as_float("ended.json", "job", "attempt"), ("ended.json", "attempt")),
    "1.0 for the version of the end": (as_float("ended.json", "schema_version"), ("ended.json", "schema_version")),
    "true for an exit code": (in_rank(3, "exit_code", to=False), ("rank3.json", "exit_code")),
    "true for a local rank": (in_rank(3, "local_rank", to=True), ("rank3.json", "local_rank")),
    "true for a time": (in_rank(3, "ended_at_s", to=True), ("rank3.json", "ended_at_s")),
    "true for an attempt": (in_end("job", "attempt", to=True), ("ended.json", "attempt")),
    "a number for a version of torch": (seen("torch", 2.13), ("rank3.json", "torch")),
    "numbers for arguments": (seen("args", ["--batch-size", 64]), ("rank3.json", "args")),
    "null for arguments": (seen("args", None), ("rank3.json", "args")),
}

MUTATIONS: Mapping[str, Case] = {
    f"{group}: {name}": case
    for group, cases in {
        "agreement": AGREEMENT, "plan": PLANNED, "times": TIMES, "copies": COPIES, "foreign": FOREIGN, "strict": STRICT,
    }.items()
    for name, case in cases.items()
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_gate_closes_and_names_what_is_odd(results: Path, plan: Plan, name: str) -> None:
    mutate, words = MUTATIONS[name]
    run = RunDirectory(results / "runs" / RUN)
    mutate(run)
    record = reassemble(run)
    assert record.status == "failed"
    verdict = judge(plan, STAGE, results)
    assert not verdict.is_open
    assert verdict.reason
    assert verdict.reason.where == RUN
    assert verdict.reason.check != "record"
    said = f"{verdict.reason.in_words}; {verdict.reason.next}"
    assert [word for word in words if word not in said] == [], said
    assert len(said) < 1500


def test_the_ladder_is_good_before_it_is_spoilt(results: Path, plan: Plan) -> None:
    assert judge(plan, STAGE, results).is_open


# ---- run.json and record.json, of which the gate itself is the reader. ----


@pytest.mark.parametrize("name", ["run.json", "record.json"])
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.replace("{", '{"schema_version": 1, ', 1),
        lambda content: "\ufeff" + content,
        lambda content: content + "null",
        lambda content: content.replace('"schema_version": 1', '"schema_version": 1.0'),
        lambda content: content.replace('"attempt": 1', '"attempt": 1.0'),
        lambda content: content.replace('"nodes": 2', '"nodes": 2.0'),
    ],
    ids=["key twice", "BOM", "trailing data", "version 1.0", "attempt 1.0", "nodes 2.0"],
)
def test_what_the_gate_reads_is_read_strictly(
    results: Path, plan: Plan, name: str, change: Callable[[str], str]
) -> None:
    text(name, change)(RunDirectory(results / "runs" / RUN))
    verdict = judge(plan, STAGE, results)
    assert not verdict.is_open
    assert verdict.reason
    assert verdict.reason.where == RUN
    assert name in verdict.reason.measured


@pytest.mark.parametrize(
    "path", [("throughput", "samples_per_s"), ("ranks", 3, "steps"), ("fingerprint", "threads"), ("timing", "wall_s")]
)
def test_a_figure_of_another_kind_is_another_figure(results: Path, plan: Plan, path: tuple[str | int, ...]) -> None:
    def change(record: Any) -> None:
        value = record
        for key in path:
            value = value[key]
        put(record, path, round(value) if isinstance(value, float) else float(value))

    edit(RunDirectory(results / "runs" / RUN).record, change)
    verdict = judge(plan, STAGE, results)
    assert not verdict.is_open
    assert verdict.reason
    assert (verdict.reason.where, verdict.reason.check) == (RUN, "record")


# ---- Copies that only show beside the run that they were taken from. ----


@pytest.mark.parametrize("source", ["2x2/r1 rank 2", "1x2/r1 rank 0", "1x1/r2 rank 0"])
def test_steps_of_another_run_close_the_gate(results: Path, pristine: tuple[Path, Plan], source: str) -> None:
    other, _, rank = source.partition(" rank ")
    run, taken_from = (RunDirectory(results / "runs" / name) for name in (RUN, f"default/weak/{other}"))
    write_steps(run, 3, read_steps(taken_from, int(rank)))
    assert reassemble(run).status == "ok", "in itself it is good"
    verdict = judge(pristine[1], STAGE, results)
    assert not verdict.is_open
    assert verdict.reason
    assert verdict.reason.where == RUN
    assert f"rank 3 (node1) has exactly the steps of a rank of default/weak/{other}" in verdict.reason.in_words


# ---- What honest runs hold and these checks must bear. ----


def compiled_apart(run: RunDirectory) -> None:
    for k in range(4):
        seen("cpu_set", f"{k}", k)(run)
    for k in (1, 2, 3):
        seen("compiled_graphs", k, k)(run)
        seen("product_dtypes", ["float32"], k)(run)
        seen("cpu_model", f"model of node {k // 2}", k)(run)
        seen("batch_per_gpu", 64 - k, k)(run)


def more_on_rank_0(run: RunDirectory) -> None:
    """It logs, saves and draws: the others do not import what that takes."""
    for k in range(4):
        seen("libraries", {"numpy": "2.1.0", **({"torchvision": "0.20"} if k == 0 else {})}, k)(run)
        seen("sources", {"train.py": "a" * 64, **({"log.py": "b" * 64} if k == 0 else {})}, k)(run)
        seen("configuration", {"c.yaml": "a" * 64} if k == 0 else {}, k)(run)


def data_from_rank_0(run: RunDirectory) -> None:
    for k in (1, 2, 3):
        seen("num_workers", None, k)(run)


def clocks_apart(run: RunDirectory) -> None:
    """The second node's is 40 s behind."""
    for change in (in_node(1, "launched_at_s", to=START_S - 39.9), in_node(1, "ended_at_s", to=START_S - 31.0)):
        change(run)
    for k in (2, 3):
        edit(run.ranks / f"rank{k}.json", lambda end: end.update(ended_at_s=end["ended_at_s"] - 40))


def not_all_told(run: RunDirectory) -> None:
    for k in range(4):
        edit(run.ranks / f"rank{k}.json", lambda end: end.update(training_s=None, startup_s={"total": None}))


def another_backend(run: RunDirectory) -> None:
    for k in range(4):
        in_rank(k, "backend", to="mpi")(run)


def of_a_program(run: RunDirectory) -> None:
    """Times to a hundredth, which repeat, and the same on all ranks."""
    for k in range(4):
        in_rank(k, "source", to="metrics")(run)
        write_steps(run, k, [[str(n), "64", "0", "0.070000000", "0.000000000"] for n in range(1, 61)])


HONEST = (
    compiled_apart, more_on_rank_0, data_from_rank_0, clocks_apart, not_all_told,
    another_backend, of_a_program,
)  # fmt: skip


@pytest.mark.parametrize("change", HONEST)
def test_what_honest_runs_hold_closes_no_gate(results: Path, plan: Plan, change: Mutation) -> None:
    run = RunDirectory(results / "runs" / RUN)
    before = sha256(b"".join(path.read_bytes() for path in sorted(run.path.rglob("*.json"))))
    change(run)
    assert before != sha256(b"".join(path.read_bytes() for path in sorted(run.path.rglob("*.json"))))
    record = reassemble(run)
    assert (record.status, record.failure) == ("ok", None)
    assert judge(plan, STAGE, results).is_open


@pytest.mark.parametrize(
    "changes",
    [
        {
            "directory": "results/runs/default/weak/1x2/r1/work",
            "args_template": ("--out", "{run_dir}"),
            "args": ("--out", "x"),
        },
        {"python": "software/bin/python", "directory": "elsewhere"},
        {"script": "-m package.train"},
        {"launcher": "srun"},
        {
            "container": {"image": "i.sif", "engine": "apptainer", "binds": [], "args": ["--cleanenv"]},
            "python": "python3",
        },
        {"env": {"A": "b"}, "samples_per_step": 64, "max_steps": 60, "max_seconds": 900.0},
        {"backend_wanted": "gloo"},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_what_can_be_configured_is_as_planned(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    record = reassemble(write_run(tmp_path, make_spec("1x2", **changes)))
    assert (record.status, record.failure) == ("ok", None)
