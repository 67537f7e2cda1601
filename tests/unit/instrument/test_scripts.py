"""Scripts as people write them, on two ranks or one: what is measured is what the script counted and timed itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.records.judging import judged_anew
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.steps import matrix_of
from ddp_ladder_instrument.contract import LEAST_UNCLEAR
from ddp_ladder_instrument.log import read_log
from instrument_support import need_compiler, oldest_python, python_named
from instrument_support import run as run_with
from scripts_support import MISSING, SCRIPTS, TOLERANCE, Measured, check, off_by, run, warmed
from warm import Warm

warm = warmed("torch", "torch._dynamo", "torch.distributed.tensor", "torch.testing")


LINES = (
    "accumulate.py sync",
    "accumulate.py no_sync",
    "accumulate.py static_graph",
    "gan.py same",
    "gan.py twice",
    "eval_mode.py adversarial",
    "eval_mode.py pseudo",
    "loaders.py collated 2",
    "workers.py fork 2 3 persistent",
    "workers.py spawn 1 1",
    "amp.py foreach",
    "amp.py fused",
    "optimizers.py fused",
    "optimizers.py lbfgs",
    "optimizers.py per_layer",
    *(f"left_out.py {kind}" for kind in ("thrown", "no_grad", "aside", "breaks")),
    "snapshots.py",
    "-m package.train --batch-size 7",
)
VALIDATIONS = (
    "--where between --grad no_grad --eval-mode",
    "--where inside --grad inference --data workers",
    "--where inside --grad grad --data cut_short",
    "--where before_use --grad grad",
    "--where before_use --grad no_grad --data cut_short",
    "--where accumulating --grad grad --eval-mode",
)


# Of an accumulation of four batches: the exchanges of gradients in a step.
EXCHANGES = {"accumulate.py sync": 4, "accumulate.py no_sync": 1}


def words_of(line: str) -> list[str]:
    """``-m package.train x`` is the script ``-m package.train`` with one argument."""
    words = line.split()
    return [" ".join(words[:2]), *words[2:]] if words[0] == "-m" else words


@pytest.mark.parametrize("line", LINES)
def test_script(warm: Warm, tmp_path: Path, line: str) -> None:
    record = check(warm, tmp_path, *words_of(line), ranks=2).ran.rank()
    if line in EXCHANGES:
        assert (record["ddp"]["exchanges"], record["fingerprint"]["backward_passes"]) == (EXCHANGES[line], 4)


@pytest.mark.parametrize("line", ["accumulate.py sync", "gan.py own", "left_out.py no_grad"])
def test_script_on_one_rank(warm: Warm, tmp_path: Path, line: str) -> None:
    check(warm, tmp_path, *words_of(line), ranks=1)


def test_batches_that_are_skipped_before_their_backward_pass_are_counted_with_a_doubt(
    warm: Warm, tmp_path: Path
) -> None:
    measured = run(warm, tmp_path, "left_out.py", "behind", ranks=1)
    assert sum(measured.samples(0)) > sum(measured.tally(0)["samples"])
    batches = measured.ran.rank()["batches"]
    assert batches["unclear"] > LEAST_UNCLEAR * batches["drawn"]


def test_of_a_run_that_is_longer_than_its_log_all_is_counted_and_the_log_gives_it_again(
    warm: Warm, tmp_path: Path
) -> None:
    ran = check(warm, tmp_path, "long.py", ranks=1).ran
    record = ran.rank()
    assert record["log"]["is_cut"]
    assert record["phases"]["epoch_steps"] == [1, 38]
    assert len(record["phases"]["validations_s"]) == 2
    end, matrix = RankEnd.from_json(record), matrix_of(ran.path(0, "steps").read_bytes())
    again, steps = judged_anew(end, matrix, read_log(ran.path(0, "log").read_bytes()))
    assert (again, steps.step_time_s.tolist()) == (end, [row["step_time_s"] for row in ran.rows()])


def test_a_communication_hook_is_named(warm: Warm, tmp_path: Path) -> None:
    measured = check(warm, tmp_path, "accumulate.py", "comm_hook", ranks=2)
    assert measured.ran.rank()["ddp"]["comm_hook"] == "fp16_compress_hook"


oldest = warmed("torch", "torch._dynamo", python=oldest_python)


COMPILED = {
    "model aot_eager": (1, "compiled.py"),
    "optimizer eager": (1, "compiled.py optimizer.py adam.py"),
    "step eager": (2, "compiled.py optimizer.py adam.py"),
    "loop eager": (2, "compiled.py optimizer.py adam.py"),
}
OF_DDP = {"contextlib.py", "external_utils.py"}


@pytest.mark.parametrize("what", COMPILED)
def test_compiled(warm: Warm, tmp_path: Path, what: str) -> None:
    is_compiled(check(warm, tmp_path, "compiled.py", *what.split(), ranks=2), what)


@pytest.mark.parametrize(("what", "ranks"), [("step eager", 2), ("loop eager", 1)])
def test_compiled_by_the_oldest_torch(oldest: Warm, tmp_path: Path, what: str, ranks: int) -> None:
    is_compiled(check(oldest, tmp_path, "compiled.py", *what.split(), ranks=ranks), what)


def is_compiled(measured: Measured, what: str) -> None:
    """What the script compiles is compiled, and nothing of the instrument."""
    graphs, files = COMPILED[what]
    for rank, ran in enumerate(measured.ranks):
        title, _, compiled = ran.out.partition(":")
        assert title == "compiled from"
        assert set(compiled.split()) - OF_DDP == set(files.split())
        assert "UserWarning" not in ran.err
        record = measured.ran.rank(rank)
        assert record["fingerprint"]["compiled_graphs"] >= graphs
        startup_s, (*_, (begin_s, end_s)) = record["startup_s"], record["phases"]["compiles_s"]
        assert startup_s["compile"] > startup_s["compile_later"] >= 0
        rows = measured.ran.rows(rank)
        if what == "optimizer eager":  # its parameters keep their shapes
            assert end_s < rows[0]["ended_at_s"]
        else:
            assert rows[-2]["ended_at_s"] <= begin_s < end_s <= rows[-1]["ended_at_s"]
            assert 0 < end_s - begin_s < rows[-1]["step_time_s"]


def test_compiled_by_the_default_compiler(warm: Warm, tmp_path: Path) -> None:
    need_compiler()
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    measured = run(warm, tmp_path, "compiled.py", "model", "inductor", ranks=1, env=env)
    assert measured.samples(0) == measured.tally(0)["samples"]
    record = measured.ran.rank()
    assert record["fingerprint"]["compiled_graphs"] == 2
    assert record["startup_s"]["compile"] > 0
    assert list((tmp_path / "compiled").rglob("*.so"))


@pytest.mark.parametrize("line", VALIDATIONS)
def test_validation_is_never_counted(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = check(warm, tmp_path, "validate.py", *line.split(), ranks=2)
    for rank in (0, 1):
        rows, record = measured.ran.rows(rank), measured.ran.rank(rank)
        steps_s = sum(row["step_time_s"] for row in rows[1:])
        # But it is in the time that goes end to end: six of its batches or more come after the first step.
        assert record["training_s"] > steps_s + 6 * 0.0099
        assert record["phases"]["epoch_steps"] == [1, 1 + len(rows) // 2]
        spans_s = record["phases"]["validations_s"]
        assert record["phases"]["without_a_pass_s"] == []
        assert sum(end_s - begin_s for begin_s, end_s in spans_s) > 6 * 0.0099
        assert all(rows[0]["ended_at_s"] - 0.001 <= begin_s for begin_s, _ in spans_s)


@pytest.mark.parametrize("line", ["no_loader.py", "no_loader.py groups"])
def test_loops_without_a_loader(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = check(warm, tmp_path, *line.split(), ranks=2, samples_per_step=32)
    assert measured.ran.rank()["source"] == "samples_per_step"


@pytest.mark.parametrize(("first", "torch"), [("probe", "oldest"), ("libraries", "newest")])
def test_libraries_that_look_for_torch_before_it_is_imported(tmp_path: Path, first: str, torch: str) -> None:
    env = {"PYTHONPATH": str(SCRIPTS)}
    done = run_with(tmp_path, SCRIPTS / "imports_torch_last.py", first, env=env, python=python_named(torch))
    assert done.code == 0, done.err
    measured = Measured([], done)
    assert measured.samples(0) == measured.tally(0)["samples"] == [4] * 16
    assert off_by(measured, 0) < 5 * TOLERANCE
    record = done.rank()
    assert [reason for reason in record["not_measured"] if not reason.startswith(MISSING)] == []
    assert record["startup_s"]["import_torch"] > 0


SHARDED = {  # on two ranks: whether it is, elements on all ranks together
    "fsdp1 flat": (True, 577 + 1),  # and one to fill up
    "fsdp1 original": (True, 577),
    "fsdp1 not_sharded": (False, 2 * 577),
    "fsdp2": (True, 2 * 577),  # a DTensor counts as the whole
    "tensor_parallel": (True, 2 * 577),
    "replicated": (False, 2 * 577),
}


@pytest.mark.parametrize("kind", SHARDED)
def test_shards_are_distinguished_from_replicas(warm: Warm, tmp_path: Path, kind: str) -> None:
    measured = check(warm, tmp_path, "sharded.py", *kind.split(), ranks=2)
    sharded, count = SHARDED[kind]
    first, second = (measured.ran.rank(rank)["parameters"] for rank in (0, 1))
    assert (first["sharded"], first["checksum"] == second["checksum"]) == (sharded, not sharded)
    assert first["count"] + second["count"] == count


@pytest.mark.parametrize(("how", "code"), [("exit", 0), ("hard_exit_3", 3), ("fork", 0)])
def test_ends(warm: Warm, tmp_path: Path, how: str, code: int) -> None:
    measured = run(warm, tmp_path, "ends.py", how, ranks=2)
    for rank in (0, 1):
        assert measured.ranks[rank].code == measured.ran.rank(rank)["exit_code"] == code
        assert measured.samples(rank) == measured.tally(rank)["samples"] == [4] * 20
        assert measured.ranks[rank].out.splitlines() == ["trained", *(["child 7"] if how == "fork" else [])]


def test_one_rank_raises(warm: Warm, tmp_path: Path) -> None:
    measured = run(warm, tmp_path, "ends.py", "raise", ranks=2)
    assert [rank.code for rank in measured.ranks] == [0, 1]
    assert measured.ran.rank(1)["exception"] == "ValueError: the last rank's own trouble"
    assert "ddp_ladder_instrument" not in measured.ranks[1].err
    assert measured.samples(0) == measured.samples(1) == [4] * 20


def test_a_script_without_an_optimizer_has_no_steps(warm: Warm, tmp_path: Path) -> None:
    measured = run(warm, tmp_path, "no_steps.py", ranks=2)
    for rank in (0, 1):
        assert measured.ranks[rank].out == "trained without an optimizer\n"
        record = measured.ran.rank(rank)
        assert (record["steps"]["count"], record["source"]) == (0, "none")


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_ranks_of_its_own_are_refused(warm: Warm, tmp_path: Path, start_method: str) -> None:
    measured = run(warm, tmp_path, "spawns_ranks.py", start_method, ranks=1)
    assert measured.ranks[0].code == 1
    assert "ScriptDoesNotFit: a process that the script has started would be rank 0 of 1" in measured.ranks[0].err


ENDED = {
    "accumulating": "--accumulate 4 --workers 1",
    "at their own pace": "--alone --accumulate 4",
    "two optimizers": "--critic",
}


LIMITS = [("two optimizers", {"max_steps": 21}), *((case, {"max_seconds": 1.0}) for case in ENDED)]


@pytest.mark.parametrize(("case", "limit"), LIMITS)
def test_all_ranks_end_at_the_same_step(warm: Warm, tmp_path: Path, case: str, limit: dict[str, float]) -> None:
    measured = run(warm, tmp_path, "endless.py", *ENDED[case].split(), ranks=2, **limit)
    records = [measured.ran.rank(rank) for rank in (0, 1)]
    for rank in (0, 1):
        assert measured.ranks[rank].code == 0, measured.ranks[rank].err
        assert measured.ranks[rank].out == f"cleaned up {rank}\n"
        assert "Traceback" not in measured.ranks[rank].err  # nor of a loader's worker
        assert (records[rank]["ended_by"],) == tuple(limit)
        assert records[rank]["exception"] is None
    counts = {record["steps"]["count"] for record in records}
    assert len(counts) == 1
    assert counts == {21} if "max_steps" in limit else min(counts) > 5


def test_limits_end_the_last_optimizer_of_a_step(warm: Warm, tmp_path: Path) -> None:
    measured = run(warm, tmp_path, "endless.py", "--critic", ranks=1, max_steps=12)
    last_s, before_s = (measured.ran.rows()[row]["step_time_s"] for row in (-1, -2))
    assert len(measured.ran.rows()) == 12
    assert last_s > 0.3 * before_s
