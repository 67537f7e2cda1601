from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory, canonical_sha256, read_json, sha256, write_json
from ddp_ladder.common.messages import UserError
from ddp_ladder.gates.file import Verdict, closed_variants, outcome_line
from ddp_ladder.gates.gate import judge, write_verdict
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.assemble import not_run
from ddp_ladder.records.record import write_record
from ddp_ladder.settings.config_keys import GateThresholds
from ddp_ladder.slurm.job_end import JobEnd, job_end_file, write_job_end
from gate import main
from make_records import make_plan_of, make_spec, make_specs
from make_runs import (
    csv_text,
    edit,
    read_steps,
    reassemble,
    take_longer,
    write_csv,
    write_ladder,
    write_run,
    write_steps,
)

RUN = "default/weak/1x2/r2"
SIBLING = "default/weak/1x2/r1"
BASELINE = "default/weak/1x1/r1"
TWO_NODES = "default/weak/2x1/r2"


@dataclass(frozen=True)
class Ladder:
    """A climbed ladder under a temporary directory."""

    results: Path
    plan: Plan

    def run(self, name: str = RUN) -> RunDirectory:
        return RunDirectory(self.results / "runs" / name)

    @property
    def gates(self) -> Path:
        return self.results / "gates"

    def judge(self, stage: str) -> Verdict:
        return judge(self.plan, stage, self.results)

    def stage_of(self, name: str) -> str:
        return next(run.stage for run in self.plan.runs if run.name == name)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    results = tmp_path_factory.mktemp("pristine")
    return Ladder(results, write_ladder(results))


@pytest.fixture
def ladder(pristine: Ladder, tmp_path: Path) -> Ladder:
    """A copy of the good ladder to spoil."""
    results = tmp_path / "results"
    shutil.copytree(pristine.results, results)
    return Ladder(results, pristine.plan)


def assert_closed(ladder: Ladder, *runs: str, stage: str | None = None) -> Verdict:
    """The gate closes, because of exactly these runs, and says so in the place of an evidence file."""
    stage = stage or ladder.stage_of(runs[0])
    write_json(ladder.gates / f"{stage}.json", {"verdict": "open"})
    verdict = ladder.judge(stage)
    path = write_verdict(verdict, ladder.gates)
    assert not verdict.is_open
    assert {f.where for f in verdict.judged if f.repeat is not None and not f.ok} == set(runs)
    assert [file.name for file in ladder.gates.iterdir()] == [f"{stage}.closed.json"]
    gate = read_json(path)
    assert gate["verdict"] == "closed"
    assert gate["why"].startswith(runs[0])
    assert len(gate["why"]) < 1000
    assert gate["wanted"]
    assert gate["next"]
    return verdict


@pytest.mark.parametrize("stage", ["stage1", "stage2", "stage3"])
def test_a_good_ladder_opens(ladder: Ladder, stage: str) -> None:
    write_json(ladder.gates / f"{stage}.closed.json", {"verdict": "closed"})
    verdict = ladder.judge(stage)
    assert verdict.is_open
    assert verdict.reason is None
    path = write_verdict(verdict, ladder.gates)
    assert [file.name for file in ladder.gates.iterdir()] == [f"{stage}.json"]
    gate = read_json(path)
    assert (gate["verdict"], gate["why"], gate["variants"]) == ("open", None, {"default": "open"})


def test_the_evidence_holds_the_numbers_and_the_records(ladder: Ladder) -> None:
    gate = read_json(write_verdict(ladder.judge("stage2"), ladder.gates))
    base, point = gate["points"]
    assert base["samples_per_s"] == pytest.approx(1024, rel=0.01)
    assert point["samples_per_s"] == pytest.approx(1843, rel=0.01)
    assert point["efficiency"] == pytest.approx(0.9, rel=0.01)
    assert point["efficiency_low"] <= point["efficiency"] <= point["efficiency_high"]
    sanity, efficiency = gate["judged"][0], gate["judged"][-1]
    assert (sanity["check"], sanity["measured"]) == ("sanity", "18 checks passed")
    assert efficiency["check"] == "efficiency"
    assert efficiency["measured"].startswith("efficiency 0.90 (95 % interval 0.")
    assert efficiency["wanted"] == "at least 0.80 (stages.stage2.gate.min_efficiency)"
    records = [ladder.run(f"default/weak/{k}").record for k in ("1x1/r1", "1x1/r2", "1x2/r1")]
    records.append(ladder.run(RUN).record)
    digests = {str(file.relative_to(ladder.results)): sha256(file.read_bytes()) for file in records}
    assert gate["records"] == digests


def test_judging_writes_nothing(ladder: Ladder) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in ladder.results.rglob("*") if path.is_file()}

    before = contents()
    ladder.judge("stage3")
    assert contents() == before


def test_a_stage_that_the_plan_does_not_have_is_the_users_mistake(ladder: Ladder) -> None:
    with pytest.raises(UserError, match=r"stage9[\s\S]*stage1, stage2, stage3"):
        ladder.judge("stage9")


# ---- Mutations. Each takes the ladder and spoils one run of it. ----

Mutation = Callable[[RunDirectory], Any]


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        *parents, last = path
        for key in parents:
            data = data[key]
        data[last] = to

    return change


def _in_record(*path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.record, _set(*path, to=to))


def _in_rank(rank: int, *path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.ranks / f"rank{rank}.json", _set(*path, to=to))


def _in_node(*path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.agent_end(Agent(0)), _set(*path, to=to))


def _in_end(*path: str | int, to: Any) -> Mutation:
    return lambda run: edit(run.ended, _set(*path, to=to))


def _replace_text(name: str, content: str | bytes) -> Mutation:
    """Overwrite a file of the run."""
    data = content.encode() if isinstance(content, str) else content
    return lambda run: (run.path / name).write_bytes(data)


def _replace_in(name: str, old: str, new: str) -> Mutation:
    """Replace text that is there exactly once: for what json.dumps would not write."""

    def mutate(run: RunDirectory) -> None:
        text = (run.path / name).read_text()
        assert text.count(old) == 1, (name, old, text.count(old))
        (run.path / name).write_text(text.replace(old, new))

    return mutate


def _remove(name: str) -> Mutation:
    return lambda run: (run.path / name).unlink()


def _truncate(name: str) -> Mutation:
    def mutate(run: RunDirectory) -> None:
        content = (run.path / name).read_bytes()
        (run.path / name).write_bytes(content[: len(content) // 2])

    return mutate


def _directory_instead(name: str) -> Mutation:
    def mutate(run: RunDirectory) -> None:
        (run.path / name).unlink()
        (run.path / name).mkdir()

    return mutate


def _link_to_itself(name: str) -> Mutation:
    def mutate(run: RunDirectory) -> None:
        (run.path / name).unlink()
        (run.path / name).symlink_to(run.path / name)

    return mutate


def _copy(source: str, target: str) -> Mutation:
    return lambda run: shutil.copy(run.path / source, run.path / target)


def _copy_sibling(*names: str) -> Mutation:
    """Take files from another repeat."""

    def mutate(run: RunDirectory) -> None:
        for name in names:
            shutil.copy(run.path.parent / "r1" / name, run.path / name)

    return mutate


def _drop(*path: str) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


def _as_failed(data: dict[str, Any]) -> None:
    data.update(status="failed", failure={"verdict": "v", "why": "w", "next": "n"})


RECORD_MUTATIONS: dict[str, Mutation] = {
    "removed": _remove("record.json"),
    "empty": _replace_text("record.json", ""),
    "truncated": _truncate("record.json"),
    "not JSON": _replace_text("record.json", "status: ok\n"),
    "not text": _replace_text("record.json", b"\x80\x81\xfe\xff"),
    "a list": _replace_text("record.json", "[]"),
    "null": _replace_text("record.json", "null"),
    "a word": _replace_text("record.json", '"ok"'),
    "nested beyond all limits": _replace_text("record.json", "[" * 200_000),
    "a number beyond all limits": _replace_in("record.json", '"size": 2', f'"size": {"2" * 5000}'),
    "a directory": _directory_instead("record.json"),
    "a link to itself": _link_to_itself("record.json"),
    "not a number": _in_record("timing", "data_wait_fraction", to=math.nan),
    "infinite": _in_record("throughput", "samples_per_s", to=math.inf),
    "extra key": _in_record("comment", to="looks good"),
    "extra key in a rank": _in_record("ranks", 0, "comment", to="looks good"),
    "extra key in the spec": _in_record("spec", "comment", to="looks good"),
    "key missing": lambda run: edit(run.record, _drop("checks")),
    "key of a rank missing": lambda run: edit(run.record, lambda data: data["ranks"][0].pop("pid")),
    "key of the spec missing": lambda run: edit(run.record, _drop("spec", "seed")),
    "schema_version 2": _in_record("schema_version", to=2),
    "schema_version true": _in_record("schema_version", to=True),
    "status failed": _in_record("status", to="failed"),
    "status unknown": _in_record("status", to="fine"),
    "failed for a made-up reason": lambda run: edit(run.record, _as_failed),
    "no ranks": _in_record("ranks", to=[]),
    "a rank less": lambda run: edit(run.record, lambda data: data["ranks"].pop()),
    "a rank more": lambda run: edit(run.record, lambda data: data["ranks"].append(data["ranks"][0])),
    "ranks swapped": lambda run: edit(run.record, lambda data: data["ranks"].reverse()),
    "ranks not a list": _in_record("ranks", to="x" * 100_000),
    "no throughput": _in_record("throughput", to=None),
    "a block less": lambda run: edit(run.record, lambda data: data["throughput"]["blocks_samples_per_s"].pop()),
    "no checks": _in_record("checks", to=[]),
    "a check less": lambda run: edit(run.record, lambda data: data["checks"].pop()),
    "a failed check": _in_record("checks", 0, "ok", to=False),
    "no job": _in_record("job", to=None),
    "left out, it says": lambda run: write_record(run.record, not_run(make_spec("1x2", repeat=2), "no time", "wait")),
    "spec of another repeat": _in_record("spec", "repeat", to=1),
    "record of another repeat": _copy_sibling("record.json"),
    "spec and hash of another repeat": lambda run: edit(
        run.record,
        lambda data: data.update(
            json.loads((run.path.parent / "r1/record.json").read_text(), object_pairs_hook=_identity)
        ),
    ),
    "spec_hash changed": _in_record("spec_hash", to="0" * 64),
}


def _identity(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    return {key: data[key] for key in ("spec", "spec_hash")} if "spec_hash" in data else data


def _swapped(rows: list[list[str]]) -> list[list[str]]:
    """Two rows exchanged, their numbers not."""
    first, second = rows[20], rows[21]
    return [*rows[:20], [first[0], *second[1:]], [second[0], *first[1:]], *rows[22:]]


def _with_cell(row: int, column: int, text: str) -> Callable[[list[list[str]]], list[list[str]]]:
    def change(rows: list[list[str]]) -> list[list[str]]:
        changed = [list(cells) for cells in rows]
        changed[row][column] = text
        return changed

    return change


SAMPLES, PADDING, STEP_TIME, DATA_WAIT = 1, 2, 3, 4

CHANGED_ROWS: dict[str, Callable[[list[list[str]]], list[list[str]]]] = {
    "faster step": _with_cell(30, STEP_TIME, "0.001000000"),
    "more samples": _with_cell(30, SAMPLES, "640"),
    "less padding": _with_cell(30, PADDING, "7"),
    "less data wait": _with_cell(30, DATA_WAIT, "0.000000000"),
    "slow warm-up step": _with_cell(2, STEP_TIME, "9.000000000"),
    "negative step time": _with_cell(30, STEP_TIME, "-0.07"),
    "negative samples": _with_cell(30, SAMPLES, "-64"),
    "no step time": _with_cell(30, STEP_TIME, "0.000000000"),
    "step time that no clock shows": _with_cell(30, STEP_TIME, "5e-324"),
    "all step times that no clock shows": lambda rows: [[*r[:3], "5e-324", r[4]] for r in rows],
    "step time for ever": _with_cell(30, STEP_TIME, "1e308"),
    "all step times for ever": lambda rows: [[*r[:3], "1e308", r[4]] for r in rows],
    "step time nan": _with_cell(30, STEP_TIME, "nan"),
    "step time inf": _with_cell(30, STEP_TIME, "inf"),
    "step time missing": _with_cell(30, STEP_TIME, ""),
    "step time a word": _with_cell(30, STEP_TIME, "fast"),
    "half a sample": _with_cell(30, SAMPLES, "64.5"),
    "samples beyond all limits": _with_cell(30, SAMPLES, "1e300"),
    "step number wrong": _with_cell(30, 0, "30"),
    "row removed": lambda rows: [*rows[:30], *rows[31:]],
    "row duplicated": lambda rows: [*rows[:30], rows[30], *rows[30:]],
    "rows exchanged": _swapped,
    "rows out of order": lambda rows: list(reversed(rows)),
    "last row removed": lambda rows: rows[:-1],
    "row added": lambda rows: [*rows, ["61", "64", "0", "0.07", "0"]],
    "column removed": lambda rows: [row[:-1] for row in rows],
    "cell added": lambda rows: [*rows[:30], [*rows[30], "0"], *rows[31:]],
    "no rows": lambda rows: [],
    "one row": lambda rows: rows[:1],
}


def _tampered_csv(change: Callable[[list[list[str]]], list[list[str]]], with_digest: bool) -> Mutation:
    def mutate(run: RunDirectory) -> None:
        rows = change(read_steps(run, 0))
        if with_digest:
            write_steps(run, 0, rows)
        else:
            (run.ranks / "rank0.csv").write_text(csv_text(rows))

    return mutate


def _csv(content: bytes) -> Mutation:
    return lambda run: write_csv(run, 0, content)


CSV_MUTATIONS: dict[str, Mutation] = {
    **{name: _tampered_csv(change, False) for name, change in CHANGED_ROWS.items()},
    **{f"{name}, digest too": _tampered_csv(change, True) for name, change in CHANGED_ROWS.items()},
    "csv removed": _remove("ranks/rank0.csv"),
    "csv empty": _replace_text("ranks/rank0.csv", ""),
    "csv truncated": _truncate("ranks/rank0.csv"),
    "csv of the other rank": _copy("ranks/rank1.csv", "ranks/rank0.csv"),
    "csv a directory": _directory_instead("ranks/rank0.csv"),
    "csv empty, digest too": _csv(b""),
    "csv without a header, digest too": _csv(b"1,64,0,0.07,0.001\n" * 60),
    "csv not text, digest too": _csv(b"step,\xff\xfe\n"),
    "csv in one line of carriage returns, digest too": lambda run: write_csv(
        run, 0, csv_text(read_steps(run, 0)).replace("\n", "\r").encode()
    ),
    "csv with an endless field, digest too": lambda run: write_csv(
        run, 0, csv_text(read_steps(run, 0)).encode() + b"1" * 200_000
    ),
    "csv with an open quote, digest too": lambda run: write_csv(run, 0, csv_text(read_steps(run, 0)).encode() + b'"'),
    "csv with zero bytes, digest too": lambda run: write_csv(run, 0, csv_text(read_steps(run, 0)).encode() + b"\0\0"),
}

# What a rank, a node or the job could really have left: it must close the gate also when the record was
# assembled from it.
TRUE_MUTATIONS: dict[str, Mutation] = {
    "rank file of another rank": _copy("ranks/rank1.json", "ranks/rank0.json"),
    "rank and csv of another rank": lambda run: [
        shutil.copy(run.ranks / f"rank1.{kind}", run.ranks / f"rank0.{kind}") for kind in ("json", "csv")
    ],
    "rank of another repeat": _copy_sibling("ranks/rank0.json", "ranks/rank0.csv"),
    "rank of another job": _in_rank(1, "job", "id", to="local-other"),
    "rank of another attempt": _in_rank(1, "job", "attempt", to=2),
    "rank of another spec": _in_rank(1, "spec_hash", to="0" * 64),
    "rank saw another world size": _in_rank(1, "world_size", to=1),
    "all ranks saw another world size": lambda run: [_in_rank(k, "world_size", to=4)(run) for k in (0, 1)],
    "rank missing": _remove("ranks/rank1.json"),
    "rank 0 missing": _remove("ranks/rank0.json"),
    "all ranks missing": lambda run: shutil.rmtree(run.ranks),
    "rank too many": _copy("ranks/rank1.json", "ranks/rank2.json"),
    "steps of a rank too many": _copy("ranks/rank1.csv", "ranks/rank2.csv"),
    "rank file empty": _replace_text("ranks/rank1.json", ""),
    "rank file truncated": _truncate("ranks/rank1.json"),
    "rank file a list": _replace_text("ranks/rank1.json", "[]"),
    "rank file nested beyond all limits": _replace_text("ranks/rank1.json", "[" * 200_000),
    "rank file of another version": _in_rank(1, "schema_version", to=2),
    "rank numbers exchanged": lambda run: [_in_rank(k, "rank", to=1 - k)(run) for k in (0, 1)],
    "rank number twice": _in_rank(1, "rank", to=0),
    "rank number a word": _in_rank(1, "rank", to="1"),
    "same device twice": lambda run: edit(
        run.ranks / "rank1.json",
        lambda end: end.update(device=json.loads((run.ranks / "rank0.json").read_text())["device"]),
    ),
    "device of another kind": _in_rank(1, "device", "kind", to="cuda"),
    "checksum differs": _in_rank(1, "parameters", "checksum", to="sha256:b"),
    "no checksum": _in_rank(1, "parameters", to=None),
    "no checksum on any rank": lambda run: [_in_rank(k, "parameters", to=None)(run) for k in (0, 1)],
    "exit code of a rank": _in_rank(1, "exit_code", to=3),
    "exception on a rank": lambda run: edit(
        run.ranks / "rank1.json",
        lambda end: end.update(exit_code=1, ended_by="exception", exception="ValueError: no"),
    ),
    "exception on a rank with exit code 0": _in_rank(1, "exception", to="ValueError: no"),
    "steps counted wrong": _in_rank(1, "steps", "count", to=9999),
    "digest of other steps": _in_rank(1, "steps", "sha256", to="0" * 64),
    "startup for ever": _replace_in("ranks/rank1.json", '"total": 4.2', '"total": Infinity'),
    "startup not a number": _replace_in("ranks/rank1.json", '"total": 4.2', '"total": NaN'),
    "startup beyond all limits": _replace_in("ranks/rank1.json", '"total": 4.2', '"total": 1e999'),
    "communication beyond all limits": _replace_in(
        "ranks/rank1.json", '"exposed_comm_s": 0.001', f'"exposed_comm_s": 1{"0" * 400}'
    ),
    "batch a word": _in_rank(0, "fingerprint", "batch_per_gpu", to="many"),
    "exit code of a node": _in_node("exit_code", to=1),
    "node ended by a signal": lambda run: edit(
        run.agent_end(Agent(0)), lambda end: end.update(exit_code=-9, signal="SIGKILL")
    ),
    "node ended by a signal with exit code 0": _in_node("signal", to="SIGTERM"),
    "node missing": _remove("nodes/node0.json"),
    "node too many": _copy("nodes/node0.json", "nodes/node1.json"),
    "node of another attempt": _in_node("job", "attempt", to=2),
    "node of another job": _in_node("job", "id", to="local-other"),
    "node of another spec": _in_node("spec_hash", to="0" * 64),
    "node of another number": _in_node("node_rank", to=1),
    "node of another repeat": _copy_sibling("nodes/node0.json"),
    "node file truncated": _truncate("nodes/node0.json"),
    "time limit": _in_end("outcome", to="time limit"),
    "outcome unknown": _in_end("outcome", to="fine"),
    "end missing": _remove("ended.json"),
    "end truncated": _truncate("ended.json"),
    "end of another job": _in_end("job", "id", to="local-other"),
    "end of another attempt": _in_end("job", "attempt", to=2),
    "end of another spec": _in_end("spec_hash", to="0" * 64),
    "end of another repeat": _copy_sibling("ended.json"),
    "end not a number": _in_end("ended_at_s", to=math.nan),
    "end beyond all limits": _replace_in("ended.json", '"ended_at_s": 1', f'"ended_at_s": {"1" * 400}'),
    "end before the start": _in_end("ended_at_s", to=0),
    "fewer steps than wanted": lambda run: [write_steps(run, k, read_steps(run, k)[:39]) for k in (0, 1)],
    "no steps after the warm-up": lambda run: [write_steps(run, k, read_steps(run, k)[:10]) for k in (0, 1)],
    "ranks with different numbers of steps": lambda run: write_steps(run, 1, read_steps(run, 1)[:-1]),
    "no samples on a rank": lambda run: write_steps(
        run, 1, [[row[0], "0", "64", *row[3:]] for row in read_steps(run, 1)]
    ),
    "samples in the warm-up only": lambda run: [
        write_steps(run, k, _without_samples(read_steps(run, k), after=10)) for k in (0, 1)
    ],
    "samples at first only": lambda run: [
        write_steps(run, k, _without_samples(read_steps(run, k), after=40)) for k in (0, 1)
    ],
    "job of all others differs": lambda run: edit(run.run, _set("job", "id", to="local-other")),
    "attempt of all others differs": lambda run: edit(run.run, _set("job", "attempt", to=2)),
}


def _without_samples(rows: list[list[str]], after: int) -> list[list[str]]:
    return [row if int(row[0]) <= after else [row[0], "0", *row[2:]] for row in rows]


def _respecified(**values: Any) -> Mutation:
    """run.json with other values in its spec, and the spec_hash that fits."""

    def change(data: dict[str, Any]) -> None:
        data["spec"].update(values)
        data["spec_hash"] = canonical_sha256(data["spec"])

    return lambda run: edit(run.run, change)


RUN_FILE_MUTATIONS: dict[str, Mutation] = {
    "run.json removed": _remove("run.json"),
    "run.json empty": _replace_text("run.json", ""),
    "run.json truncated": _truncate("run.json"),
    "run.json a list": _replace_text("run.json", "[]"),
    "run.json a word": _replace_text("run.json", '"spec job args"'),
    "run.json of another repeat": _copy_sibling("run.json"),
    "spec edited": lambda run: edit(run.run, _set("spec", "min_steps", to=1)),
    "spec without a key": lambda run: edit(run.run, _drop("spec", "seed")),
    "spec null": lambda run: edit(run.run, _set("spec", to=None)),
    "spec a word": lambda run: edit(run.run, _set("spec", to="args")),
    "job null": lambda run: edit(run.run, _set("job", to=None)),
    "job without an id": lambda run: edit(run.run, _drop("job", "id")),
    "job id a list": lambda run: edit(run.run, _set("job", "id", to=[1])),
    "spec_hash edited": lambda run: edit(run.run, _set("spec_hash", to="0" * 64)),
    "spec_hash missing": lambda run: edit(run.run, _drop("spec_hash")),
    "other min_steps, hash too": _respecified(min_steps=1),
    "other batch, hash too": _respecified(batch_per_gpu=1),
    "nodes a word, hash too": _respecified(nodes="many"),
    "nodes true, hash too": _respecified(nodes=True),
    "nodes nothing, hash too": _respecified(nodes=None),
    "no nodes, hash too": _respecified(nodes=0),
    "negative nodes, hash too": _respecified(nodes=-1),
    "a million nodes, hash too": _respecified(nodes=1_000_000),
    "args a number, hash too": _respecified(args=5),
    "args numbers, hash too": _respecified(args=[1, 2]),
    "warm-up a word, hash too": _respecified(warmup_steps="ten"),
    "negative warm-up, hash too": _respecified(warmup_steps=-5),
}

MUTATIONS = {**RECORD_MUTATIONS, **CSV_MUTATIONS, **TRUE_MUTATIONS, **RUN_FILE_MUTATIONS}


def test_there_are_at_least_fifty_mutations() -> None:
    assert len(MUTATIONS) >= 50


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_spoilt_run_closes_the_gate(ladder: Ladder, name: str) -> None:
    MUTATIONS[name](ladder.run())
    assert_closed(ladder, RUN)


@pytest.mark.parametrize("name", TRUE_MUTATIONS)
def test_a_failed_run_closes_the_gate_though_its_record_fits_its_files(ladder: Ladder, name: str) -> None:
    TRUE_MUTATIONS[name](ladder.run())
    assert reassemble(ladder.run()).status == "failed"
    verdict = assert_closed(ladder, RUN)
    assert verdict.reason
    assert verdict.reason.check != "record"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("checksum differs", "equal parameters: 1 distinct on 2 ranks"),
        ("exit code of a rank", "a training that ends by itself, with exit code 0 on every rank and node"),
        ("time limit", "a training that ends by itself, with exit code 0 on every rank and node"),
        (
            "fewer steps than wanted",
            "at least 40 on every rank (measure.warmup_steps + measure.min_steps), equally many",
        ),
    ],
)
def test_what_was_wanted_is_what_the_run_did_not_hold_to(ladder: Ladder, name: str, wanted: str) -> None:
    TRUE_MUTATIONS[name](ladder.run())
    reassemble(ladder.run())
    reason = assert_closed(ladder, RUN).reason
    assert reason
    assert reason.wanted == wanted


@pytest.mark.parametrize(
    "name",
    ["removed", "not JSON", "faster step", "rank 0 missing", "time limit", "run.json removed"],
)
@pytest.mark.parametrize("run", [BASELINE, RUN])
def test_a_run_spoilt_after_its_gate_opened_closes_the_gates_above(ladder: Ladder, name: str, run: str) -> None:
    MUTATIONS[name](ladder.run(run))
    verdict = assert_closed(ladder, run, stage="stage3")
    assert len([f for f in verdict.judged if f.repeat is not None and f.where == run]) == 1


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all figures and words in a JSON value."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(item, (*path, key))
    else:
        yield path


def _other(value: Any) -> Any:
    """A value of the same type, so that it passes the schema where the schema leaves a choice."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value * 1.001 + 1e-6
    return "0" if value is None else f"{value[:-1]}0" if value[-1:] != "0" else f"{value[:-1]}1"


SECTIONS = ("status schema_version spec spec_hash job world ranks throughput timing step fingerprint checks").split()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_single_value_of_a_record_counts(ladder: Ladder, section: str) -> None:
    file = ladder.run().record
    good = file.read_bytes()
    leaves = [path for path in _leaves(json.loads(good)) if path[0] == section]
    assert leaves
    for path in leaves:
        data = value = json.loads(good)
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = _other(value[path[-1]])
        file.write_text(json.dumps(data))
        assert not ladder.judge("stage2").is_open, path
    file.write_bytes(good)
    assert ladder.judge("stage2").is_open


def test_the_sections_are_all_of_a_record(ladder: Ladder) -> None:
    record = json.loads(ladder.run().record.read_text())
    assert {key for key, value in record.items() if value not in (None, [])} == set(SECTIONS)


@pytest.mark.parametrize(
    ("name", "mutation"),
    [
        ("second node missing", _remove("nodes/node1.json")),
        ("second node is the first", _copy("nodes/node0.json", "nodes/node1.json")),
        ("nodes exchanged", lambda run: _exchange(run.nodes / "node0.json", run.nodes / "node1.json")),
        ("ranks exchanged", lambda run: _exchange(run.ranks / "rank0.json", run.ranks / "rank1.json")),
        ("third node", _copy("nodes/node1.json", "nodes/node2.json")),
        ("second node of another job", lambda run: edit(
            run.agent_end(Agent(1)), _set("job", "id", to="local-other")
        )),
        ("second node failed", lambda run: edit(run.agent_end(Agent(1)), _set("exit_code", to=1))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_nodes_are_told_apart(ladder: Ladder, name: str, mutation: Mutation) -> None:
    mutation(ladder.run(TWO_NODES))
    assert_closed(ladder, TWO_NODES)
    assert reassemble(ladder.run(TWO_NODES)).status == "failed"
    assert_closed(ladder, TWO_NODES)


def test_the_same_device_id_on_two_hosts_is_two_devices(ladder: Ladder) -> None:
    _in_rank(1, "device", "id", to="cpu:1000")(ladder.run(TWO_NODES))
    assert reassemble(ladder.run(TWO_NODES)).status == "ok"
    assert ladder.judge("stage3").is_open


def _exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def test_directories_exchanged(ladder: Ladder) -> None:
    _exchange(ladder.run(SIBLING).path, ladder.run(RUN).path)
    assert_closed(ladder, SIBLING, RUN)


def test_directory_copied_from_another_repeat(ladder: Ladder) -> None:
    shutil.rmtree(ladder.run().path)
    shutil.copytree(ladder.run(SIBLING).path, ladder.run().path)
    assert_closed(ladder, RUN)


def test_directory_copied_from_another_scale(ladder: Ladder) -> None:
    shutil.rmtree(ladder.run().path)
    shutil.copytree(ladder.run(TWO_NODES).path, ladder.run().path)
    assert_closed(ladder, RUN)


def test_directory_is_a_link_to_another_repeat(ladder: Ladder) -> None:
    shutil.rmtree(ladder.run().path)
    ladder.run().path.symlink_to(ladder.run(SIBLING).path)
    assert_closed(ladder, RUN)


def test_directory_removed(ladder: Ladder) -> None:
    shutil.rmtree(ladder.run().path)
    assert_closed(ladder, RUN)


def test_all_directories_removed(ladder: Ladder) -> None:
    shutil.rmtree(ladder.results / "runs")
    names = [run.name for run in ladder.plan.runs if run.stage in ("stage1", "stage2")]
    assert_closed(ladder, *names, stage="stage2")


def test_directory_is_a_file(ladder: Ladder) -> None:
    shutil.rmtree(ladder.run().path)
    ladder.run().path.write_text("")
    assert_closed(ladder, RUN)


def test_record_of_another_results_directory(ladder: Ladder, tmp_path: Path) -> None:
    spec = next(run for run in ladder.plan.runs if run.name == RUN)
    faster = write_run(tmp_path / "elsewhere", spec, samples_per_s=1900.0)
    shutil.copy(faster.record, ladder.run().record)
    assert_closed(ladder, RUN)


def test_record_that_cannot_be_read(ladder: Ladder) -> None:
    ladder.run().record.unlink()
    ladder.run().record.mkdir()
    assert_closed(ladder, RUN)


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ("--batch-size", "64", "--amp"), "args_template": ("--amp",)},
        {"env": {"NCCL_ALGO": "Ring"}},
        {"min_steps": 20},
        {"threads_per_rank": 2},
        {"lr": 0.1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_records_from_before_a_change_of_the_configuration(ladder: Ladder, changes: Mapping[str, Any]) -> None:
    plan = make_plan_of(make_specs(("1x1", "1x2"), repeats=2, **changes))
    stale = replace(ladder, plan=plan)
    verdict = assert_closed(stale, *(run.name for run in plan.runs), stage="stage2")
    assert verdict.reason
    assert "the configuration has changed" in verdict.reason.measured


def test_a_repeat_more_than_was_measured(ladder: Ladder) -> None:
    grown = replace(ladder, plan=make_plan_of(make_specs(("1x1", "1x2"), repeats=3)))
    names = ("default/weak/1x1/r3", "default/weak/1x2/r3")
    assert_closed(grown, *names, stage="stage2")


def test_a_repeat_less_than_was_measured_still_opens(ladder: Ladder) -> None:
    plan = make_plan_of(make_specs(("1x1", "1x2"), repeats=1))
    assert judge(plan, "stage2", ladder.results).is_open


def test_backend_other_than_the_wanted_one(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, scales=("1x1", "1x2"), backend_wanted="gloo")
    ladder = Ladder(tmp_path, plan)
    assert ladder.judge("stage2").is_open
    for rank in (0, 1):
        _in_rank(rank, "backend", to="nccl")(ladder.run())
    assert reassemble(ladder.run()).status == "failed"
    verdict = assert_closed(ladder, RUN)
    assert verdict.reason
    assert verdict.reason.check == "backend"
    assert verdict.reason.measured == "measured nccl"
    assert verdict.reason.wanted == "gloo"


# ---- Thresholds. ----


def _with_gate(ladder: Ladder, **thresholds: float) -> Ladder:
    gates = {**ladder.plan.gates, "stage2": GateThresholds.model_construct(**thresholds)}  # not checked
    return replace(ladder, plan=replace(ladder.plan, gates=gates))


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    """Step times that binary fractions hold exactly: efficiency 1, data wait 0.25."""
    results = tmp_path_factory.mktemp("exact")
    specs = make_specs(("1x1", "1x2"), repeats=2)
    for spec in specs:
        rate = {"1x1": 512.0, "1x2": 1024.0}[str(spec.scale)]
        run = write_run(results, spec, rate, wobble=0, data_wait_fraction=0.25)
        for rank in range(spec.world_size):
            write_steps(run, rank, _shaken(read_steps(run, rank), seed=f"{spec.name} {rank}"))
        reassemble(run)
    return Ladder(results, make_plan_of(specs))


def _shaken(rows: list[list[str]], seed: str) -> list[list[str]]:
    """Other waits in each row, but together as long as before: no clock shows the same row again and again."""
    offsets = [sign * (1 + place % 15) for place in range(len(rows) // 2) for sign in (1, -1)]
    chance, warmup, measured = random.Random(seed), offsets[:10], offsets[10:]
    for part in (warmup, measured):
        chance.shuffle(part)
    waits_s = [float(row[DATA_WAIT]) + n / 512 for row, n in zip(rows, warmup + measured, strict=True)]
    return [[*row[:DATA_WAIT], f"{wait_s:.9f}"] for row, wait_s in zip(rows, waits_s, strict=True)]


BOUNDARIES = [
    ("min_efficiency", 1.0, +1, "efficiency"),
    ("min_samples_per_s", 1024.0, +1, "throughput"),
    ("max_data_wait_fraction", 0.25, -1, "data wait"),
]


@pytest.mark.parametrize(("key", "boundary", "direction", "check"), BOUNDARIES)
def test_thresholds_open_at_their_boundary_and_close_beyond(
    exact: Ladder, tmp_path: Path, key: str, boundary: float, direction: int, check: str
) -> None:
    at = _with_gate(exact, **{key: boundary}).judge("stage2")
    assert at.is_open
    beyond = _with_gate(exact, **{key: math.nextafter(boundary, direction * math.inf)})
    verdict = beyond.judge("stage2")
    assert not verdict.is_open
    assert verdict.reason
    assert (verdict.reason.where, verdict.reason.check) == ("default/weak/1x2", check)
    assert f"stages.stage2.gate.{key}" in verdict.reason.wanted
    assert f"stages.stage2.gate.{key}" in verdict.reason.next
    assert write_verdict(at, tmp_path).name == "stage2.json"
    assert write_verdict(verdict, tmp_path).name == "stage2.closed.json"
    assert [file.name for file in tmp_path.iterdir()] == ["stage2.closed.json"]


def test_slow_steps_that_recur_count_before_the_gate(ladder: Ladder) -> None:
    """Each 8th step of 1x2 takes 5 times as long: the steps between have an efficiency of 0.9, the training of 0.6."""
    for spec in ladder.plan.stage_jobs("stage2")[0].runs:
        run = ladder.run(spec.name)
        for rank in (0, 1):
            rows = read_steps(run, rank)
            for row in rows[::8]:
                row[3] = str(5 * float(row[3]))
            write_steps(run, rank, rows)
        take_longer(run, seconds=3.0)
        assert reassemble(run).throughput
    verdict = ladder.judge("stage2")
    assert not verdict.is_open
    assert verdict.reason
    assert verdict.reason.measured.startswith("efficiency 0.6")
    assert ", samples / time; of a step's " in verdict.reason.measured
    assert {point.statistic for point in verdict.points} == {"samples / time"}


def test_a_disturbed_baseline_closes_the_gate_of_the_scale_above(ladder: Ladder) -> None:
    for spec in ladder.plan.stage_jobs("stage1")[0].runs:
        write_run(ladder.results, spec, 700.0)
    gate = _with_gate(ladder)
    verdict = gate.judge("stage2")
    assert not verdict.is_open
    assert verdict.reason
    assert (verdict.reason.where, verdict.reason.check) == ("default/weak/1x2", "baseline")
    assert str(ladder.results / "runs/default/weak/1x1") in verdict.reason.next
    assert gate.judge("stage1").is_open


def test_a_wait_for_data_that_is_not_known_passes_no_threshold(ladder: Ladder) -> None:
    for spec in ladder.plan.stage_jobs("stage2")[0].runs:
        run = ladder.run(spec.name)
        for rank in (0, 1):
            write_steps(run, rank, [[*row[:4], "nan"] for row in read_steps(run, rank)])
        timing = reassemble(run).timing
        assert timing
        assert timing.data_wait_fraction is None
    assert ladder.judge("stage2").is_open
    verdict = _with_gate(ladder, max_data_wait_fraction=1.0).judge("stage2")
    assert verdict.reason
    assert (verdict.reason.check, verdict.reason.measured) == ("data wait", "it was not measured")
    assert "stages.stage2.gate.max_data_wait_fraction" in verdict.reason.next


def test_a_gate_without_thresholds_asks_for_sanity_alone(exact: Ladder) -> None:
    verdict = _with_gate(exact).judge("stage2")
    assert verdict.is_open
    assert {finding.check for finding in verdict.judged} == {"sanity"}


def test_all_thresholds_are_judged_even_when_the_first_fails(exact: Ladder) -> None:
    gate = _with_gate(exact, min_efficiency=1.0, min_samples_per_s=2000, max_data_wait_fraction=0.1)
    verdict = gate.judge("stage2")
    outcomes = [(f.check, f.ok) for f in verdict.judged if f.repeat is None]
    assert outcomes == [("efficiency", True), ("throughput", False), ("data wait", False)]
    assert verdict.reason
    assert verdict.reason.measured == "1,024 samples/s"
    assert all(f.next for f in verdict.judged if f.repeat is None)  # the first is at its threshold: uncertain


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_workers", 8, "num_workers: 0 at 1x1, 8 at 1x2"),
        ("autocast_dtype", "bfloat16", "autocast_dtype: none at 1x1, bfloat16 at 1x2"),
        ("batch_per_gpu", 128, "batch_per_gpu: 64 at 1x1, 128 at 1x2"),
    ],
)
def test_what_is_not_comparable_has_no_efficiency_to_pass(ladder: Ladder, field: str, value: Any, words: str) -> None:
    for spec in ladder.plan.stage_jobs("stage2")[0].runs:
        write_run(ladder.results, spec, 1843.2, fingerprint={field: value})
    verdict = ladder.judge("stage2")
    assert not verdict.is_open
    assert verdict.reason
    assert (verdict.reason.check, verdict.reason.repeat) == ("efficiency", None)
    assert "not comparable" in verdict.reason.measured
    assert words in verdict.reason.measured
    assert "comparable" in verdict.reason.next
    gate = read_json(write_verdict(verdict, ladder.gates))
    assert words in gate["why"]
    without = _with_gate(ladder, min_samples_per_s=1000.0)
    assert without.judge("stage2").is_open


def test_a_difference_that_the_user_allows_opens_the_gate_and_is_in_the_evidence(ladder: Ladder) -> None:
    for spec in ladder.plan.stage_jobs("stage2")[0].runs:
        write_run(ladder.results, spec, 1843.2, fingerprint={"num_workers": 1})
    closed = ladder.judge("stage2").reason
    assert closed is not None
    assert "the same num_workers" in closed.next
    assert "`fingerprint: {may_differ: [num_workers]}` in config.yaml" in closed.next
    verdict = replace(ladder, plan=replace(ladder.plan, may_differ=("num_workers",))).judge("stage2")
    assert verdict.is_open
    finding = next(finding for finding in verdict.judged if finding.check == "like for like")
    assert finding.where == "default/weak/1x2"
    assert finding.measured == "allowed to differ: num_workers: 0 at 1x1, 1 at 1x2"


def test_runs_that_made_other_steps_are_not_compared_unless_it_is_meant(ladder: Ladder) -> None:
    spec = ladder.plan.stage_jobs("stage2")[0].runs[1]
    run = write_run(ladder.results, spec, 1843.2, steps=45)
    shared = {"path": "/x", "found": {"snapshot.pt": "default/weak/1x1/r1"}, "appeared": [], "changed": []}
    edit(run.ended, lambda end: end.update(shared_directory={**shared, "complete": True}))
    reassemble(run)
    closed = ladder.judge("stage2").reason
    assert closed is not None
    words = "steps: 60 (7,680 samples) in r1, 45 (5,760 samples) in r2 (default/weak/1x2/r2 found snapshot.pt, which"
    assert words in closed.measured
    assert 'set workload.directory: "{run_dir}"' in closed.next
    assert "`fingerprint: {may_differ: [steps]}`" in closed.next
    assert replace(ladder, plan=replace(ladder.plan, may_differ=("steps",))).judge("stage2").is_open


def test_the_advice_keeps_what_is_allowed_already_and_names_nothing_that_may_not(ladder: Ladder) -> None:
    plan = replace(ladder.plan, may_differ=("threads",))
    for fields, words in (
        ({"num_workers": 1, "threads": 2}, "{may_differ: [threads, num_workers]}"),
        ({"batch_per_gpu": 128}, "the same batch_per_gpu"),
    ):
        for spec in ladder.plan.stage_jobs("stage2")[0].runs:
            write_run(ladder.results, spec, 1843.2, fingerprint=fields)
        reason = replace(ladder, plan=plan).judge("stage2").reason
        assert reason is not None
        assert words in reason.next
    assert "may_differ" not in reason.next


def test_the_baseline_is_judged_on_its_own_mode(tmp_path: Path) -> None:
    plan = write_ladder(tmp_path, scales=("1x1", "1x2"), modes=("weak", "strong"), repeats=1)
    assert judge(plan, "stage2", tmp_path).is_open
    slow = next(run for run in plan.runs if run.name == "default/strong/1x2/r1")
    write_run(tmp_path, slow, 1100.0)
    verdict = judge(plan, "stage2", tmp_path)
    assert not verdict.is_open
    assert verdict.reason
    assert verdict.reason.where == "default/strong/1x2"


# ---- Variants. ----


@pytest.fixture
def two_variants(tmp_path: Path) -> Ladder:
    return Ladder(
        tmp_path,
        write_ladder(tmp_path, scales=("1x1", "1x2"), repeats=1, variants=("default", "ring")),
    )


def test_a_variant_that_fails_is_closed_and_the_gate_is_not(two_variants: Ladder) -> None:
    MUTATIONS["exit code of a rank"](two_variants.run("ring/weak/1x2/r1"))
    reassemble(two_variants.run("ring/weak/1x2/r1"))
    verdict = two_variants.judge("stage2")
    assert verdict.is_open
    assert verdict.variants == {"default": "open", "ring": "closed"}
    path = write_verdict(verdict, two_variants.gates)
    assert path.name == "stage2.json"
    gate = Verdict.from_json(read_json(path))
    assert closed_variants(gate) == {"ring": "variant ring did not pass the gate of stage2"}
    assert outcome_line(gate).startswith("gate stage2: open (without ring: see the report)")


def test_a_variant_that_is_too_slow_is_closed_and_the_gate_is_not(two_variants: Ladder) -> None:
    slow = next(run for run in two_variants.plan.runs if run.name == "ring/weak/1x2/r1")
    write_run(two_variants.results, slow, 1100.0)
    assert two_variants.judge("stage2").variants == {"default": "open", "ring": "closed"}


def test_a_variant_left_out_after_an_earlier_gate_stays_closed(two_variants: Ladder) -> None:
    MUTATIONS["time limit"](two_variants.run("ring/weak/1x1/r1"))
    reassemble(two_variants.run("ring/weak/1x1/r1"))
    left_out = next(run for run in two_variants.plan.runs if run.name == "ring/weak/1x2/r1")
    directory = two_variants.run(left_out.name)
    shutil.rmtree(directory.path)
    write_record(directory.record, not_run(left_out, "ring did not pass", "see its records"))
    verdict = two_variants.judge("stage2")
    assert verdict.is_open
    assert verdict.variants == {"default": "open", "ring": "closed"}
    left = next(f for f in verdict.judged if f.where == left_out.name)
    assert (left.check, left.measured, left.next) == (
        "not run", "ring did not pass", "see its records",
    )  # fmt: skip


def test_the_default_variant_is_not_saved_by_another(two_variants: Ladder) -> None:
    MUTATIONS["removed"](two_variants.run("default/weak/1x2/r1"))
    verdict = two_variants.judge("stage2")
    assert not verdict.is_open
    assert verdict.variants == {"default": "closed", "ring": "open"}


# ---- The gate file and the command line. ----


def test_exactly_one_gate_file_exists_whatever_was_there(ladder: Ladder) -> None:
    good = ladder.judge("stage2")
    MUTATIONS["removed"](ladder.run())
    bad = ladder.judge("stage2")
    for verdict in (good, bad, bad, good, good):
        path = write_verdict(verdict, ladder.gates)
        assert list(ladder.gates.iterdir()) == [path]
        assert path.name == ("stage2.json" if verdict.is_open else "stage2.closed.json")


def test_no_evidence_file_is_left_when_the_closed_one_cannot_be_written(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_verdict(ladder.judge("stage2"), ladder.gates)
    MUTATIONS["removed"](ladder.run())

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_verdict(ladder.judge("stage2"), ladder.gates)
    assert list(ladder.gates.iterdir()) == []


def test_the_command_line_opens(ladder: Ladder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", str(ladder.results / "plan.json"), "--stage", "stage2"]) == 0
    out, err = capsys.readouterr()
    assert err == "gate stage2: open\n"
    assert "pass  default/weak/1x2/r1: sanity: 18 checks passed; wanted all checks" in out
    assert (ladder.gates / "stage2.json").exists()


def test_the_command_line_closes_with_a_box(ladder: Ladder, capsys: pytest.CaptureFixture[str]) -> None:
    MUTATIONS["exception on a rank"](ladder.run())
    reassemble(ladder.run())
    assert main(["--plan", str(ladder.results / "plan.json"), "--stage", "stage2"]) == 1
    out, err = capsys.readouterr()
    reason = f"{RUN}: the script raised an exception: rank 1: ValueError: no"
    assert err == f"gate stage2: CLOSED, {reason}\n"
    assert "| verdict   the script raised an exception (rank 1 on node0) at " in out
    assert f"| run       {RUN} " in out
    assert "| why       rank 1: ValueError: no " in out
    assert "Traceback" not in out + err
    assert not (ladder.gates / "stage2.json").exists()


def test_the_command_line_refuses_a_stage_that_is_not_planned(
    ladder: Ladder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plan", str(ladder.results / "plan.json"), "--stage", "stage9"]) == 1
    assert "there is no stage9" in capsys.readouterr().err


def test_a_job_that_slurm_ended_is_told_where_there_is_no_record(ladder: Ladder) -> None:
    end = JobEnd("7", "stage2", "1x2", "TIMEOUT", "7.log", False, "node1", "TimeLimit", "its time was up", "raise it")
    write_job_end(ladder.results, end)
    assert ladder.judge("stage2").is_open, "a record counts for more than how a job ended"
    ladder.run().record.unlink()
    reason = ladder.judge("stage2").reason
    assert reason is not None
    assert reason.measured == "job 7 ended TIMEOUT on node1: its time was up (TimeLimit); its log: 7.log"
    assert reason.next == "raise it"


def test_a_torn_job_end_closes_the_gate(ladder: Ladder) -> None:
    job_end_file(ladder.results, "1x2").parent.mkdir()
    job_end_file(ladder.results, "1x2").write_text("{")
    ladder.run().record.unlink()
    assert not ladder.judge("stage2").is_open


@pytest.fixture
def with_plain(tmp_path: Path) -> Ladder:
    """A climbed ladder whose script also ran alone, in stage 1."""
    specs = [*make_specs(["1x1", "1x2"], repeats=2)]
    specs += [make_spec("1x1", repeat=k, variant="plain", launcher="python", backend_wanted="gloo") for k in (1, 2)]
    plan = make_plan_of(specs)
    write_json(tmp_path / "plan.json", plan.to_json())
    for spec in specs:
        run = write_run(tmp_path, spec, 1900.0 if spec.world_size == 2 else 1024.0)
        if spec.is_plain:
            edit(run.ranks / "rank0.json", lambda end: end.update(backend=None, ddp=None))
            assert reassemble(run).status == "ok"
    return Ladder(tmp_path, plan)


def test_the_plain_baseline_is_in_the_evidence_and_not_judged(with_plain: Ladder) -> None:
    verdict = with_plain.judge("stage2")
    assert verdict.is_open
    assert set(verdict.variants) == {"default"}
    assert not any(finding.variant == "plain" for finding in verdict.judged)
    assert {point.variant for point in verdict.points} == {"default", "plain"}
    assert any("plain/weak/1x1/r2" in path for path in verdict.records)
    two = next(point for point in verdict.points if point.world_size == 2)
    assert two.efficiency_plain == pytest.approx(1900 / 2048, rel=0.02)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("failed", "it does not run without a launcher (rank 0: ValueError: RANK expected)"),
        ("time limit", "it was cut short (the job of scale 1x1 reached its stages.stage1.runtime"),
        ("forged", "it has not been run"),
        ("missing", "it has not been run"),
    ],
)
def test_a_bad_plain_baseline_closes_no_gate_and_gives_no_figure(with_plain: Ladder, damage: str, reason: str) -> None:
    runs = [with_plain.run(f"plain/weak/1x1/r{k}") for k in (1, 2)]
    for run in runs:
        if damage == "failed":
            edit(run.ranks / "rank0.json", lambda end: end.update(exit_code=1, exception="ValueError: RANK expected"))
            reassemble(run)
        elif damage == "time limit":
            edit(run.ended, lambda ended: ended.update(outcome="time limit"))
            reassemble(run)
        elif damage == "forged":
            edit(run.record, lambda record: record["throughput"].update(samples_per_s=500.0))
        else:
            run.record.unlink()
    verdict = with_plain.judge("stage2")
    assert verdict.is_open
    points = {point.variant: point for point in verdict.points if point.world_size == 1}
    assert points["plain"].efficiency_plain is points["default"].efficiency_plain is None
    assert reason in points["default"].note
