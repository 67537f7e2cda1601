"""The state machine gives the truth of generated training loops, and of named ones."""

from __future__ import annotations

import itertools

import pytest
from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import read_log
from ddp_ladder_instrument.machine import MOST_STEPS, Judged, Machine, judge
from ddp_ladder_instrument.table import StepTable, csv_lines
from ddp_ladder_instrument.trained import MOST_AHEAD
from witness_support import counted
from worlds import CHOICES, Loader, Loop, Script, World, ordinary, sensible, worlds


def rows(table: StepTable) -> list[tuple[int, int]]:
    return list(zip(table.samples, table.padding_samples, strict=True))


def check(script: Script) -> Judged:
    judged = judge(script.log, None)
    assert_exact(judged, script)
    return judged


def assert_exact(judged: Judged, script: Script) -> None:
    assert rows(judged.table) == script.rows
    known = [
        (ours, true) for ours, true in zip(judged.table.step_time_s, script.seconds, strict=True) if true is not None
    ]
    assert [ours for ours, _ in known] == pytest.approx([true for _, true in known], abs=1e-9)


def assert_near(counted: float, script: Script, more: int = 0) -> None:
    """Assert that the samples of all steps are right, but for those of one step and ``more`` ones."""
    sizes = [sum(row) for row in script.rows]
    assert counted == pytest.approx(sum(sizes), abs=max(sizes, default=0) + more)


@worlds(6_000, ordinary, *CHOICES)
def test_ordinary_loops_are_exact_and_no_doubt_is_said(world: World) -> None:
    """What a prefetcher draws ahead counts for the first step of an epoch."""
    script = Loop(world).run()
    judged = judge(script.log, None)
    assert not judged.batches.unclear
    if world.ahead:
        assert (judged.table.count, judged.table.all_samples) == (len(script.rows), sum(row[0] for row in script.rows))
    else:
        assert_exact(judged, script)


@worlds(6_000, sensible, *CHOICES)
def test_what_is_not_exact_is_doubtful(world: World) -> None:
    """But for batches that are drawn before the first step of a pass and never used: they may be drawn ahead."""
    script = Loop(world).run()
    judged = judge(script.log, None)
    if judged.batches.unclear:
        return
    if rows(judged.table) == script.rows:
        assert_exact(judged, script)
    else:
        counted = judged.table.all_samples + sum(judged.table.padding_samples)
        assert_near(counted, script, MOST_AHEAD * max(world.size, world.second_size))


@worlds(6_000, sensible, *CHOICES)
def test_with_a_witness_the_count_is_exact(world: World) -> None:
    """It decides what the form of a loop leaves open, but for the ends of a log."""
    script = Loop(world).run()
    if script.rows:
        witness, samples = counted(script.testimony(), script.log, script.places())
        assert witness.is_counted
        assert_near(samples, script, world.size * world.ahead + world.padding * world.epochs)


@worlds(1_000, ordinary, *CHOICES)
def test_rows_online_are_those_of_the_whole(world: World) -> None:
    """The log's file holds the log."""
    script = Loop(world).run()
    machine = Machine()
    for event in script.log.events():
        machine.feed(iter((event,)))
    assert rows(machine.judged().table) == rows(judge(script.log, None).table)
    data = script.log.to_bytes()
    assert read_log(data).rows == script.log.rows


NAMED = {
    "the first pass of next(iter(loader)) is over before its step": World(source="next_iter"),
    "the first step follows the end of its pass": World(body="full"),
    "two batches in one input, two optimizers": World(count=6, group=2, body="gan"),
    "two batches in one input, SAM": World(count=6, group=2, body="sam"),
    "validation after the first step of the training, after one that was none": World(
        count=5, validate="inside", val_every=1, val_data="tensor", warm_step=True
    ),
    "an endless loader beside one with epochs": World(count=5, second="endless"),
    "an epoch begins in eval mode, its last pass ended with a batch drawn in vain": World(
        count=5, source="break", eval_training="once"
    ),
    "GradScaler skips the last step of an epoch": World(count=8, scaler=1 << 8),
    "GradScaler skips the last step of an epoch and the next one": World(scaler=0b110000),
    "GradScaler skips, gradients are discarded after the step": World(count=6, zero="after", scaler=0b101000000),
    "GradScaler skips the step of one of two loaders": World(count=5, second="turns", scaler=1 << 3),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_worlds(name: str) -> None:
    check(Loop(NAMED[name]).run())


def test_further_steps_on_a_batch_are_told() -> None:
    assert check(Loop(World(body="ppo", times=3)).run()).batches.again == 2 * 8
    assert check(Loop(World(body="gan")).run()).batches.again == 0


def one_pass(script: Script, sizes: list[int], real: int = -1, seconds: float = 0.0) -> None:
    """Train on each batch of a pass."""
    for batch in Loader(script, sizes, real):
        script.gradient((batch,))
        script.step()
        script.row()
        script.zero()
        script.now_s += seconds


def test_time_between_steps_is_of_the_pass_and_that_between_passes_is_not() -> None:
    script = Script()
    for _ in range(2):
        script.start()
        one_pass(script, [8, 8, 3], seconds=2.0)
        script.leave_epoch()
        script.now_s += 100
    check(script)
    assert script.seconds[1] == script.seconds[4] == 2.0 + 0.5 + 0.25 + 1.0 + 0.125


def test_what_leads_to_the_first_step_of_a_loop_without_a_loader_is_no_part_of_it() -> None:
    script = Script()
    script.now_s = 50.0
    script.add(log.GROUP)
    script.now_s += 2
    script.step()
    script.now_s += 1
    script.add(log.GROUP)  # another process group
    script.now_s += 4
    script.step()
    assert list(judge(script.log, 16).table.step_time_s) == [2.125, 5.125]


def test_eval_mode_is_training_once_the_batch_was_drawn() -> None:
    """Adversarial examples; a validation between the steps is no part of any, nor is the time around it."""
    script = Script()
    for index, batch in enumerate(Loader(script, [8] * 4)):
        if index:
            script.eval()
            script.now_s += 10
            script.train()
        script.gradient((batch,))
        script.step()
        if index == 1:
            script.now_s += 1
            began_s = script.now_s
            script.eval()
            script.now_s += 100
            script.train()
            ended_s = script.now_s
            script.now_s += 2
    judged = judge(script.log, None)
    assert list(judged.table.step_time_s) == [2.0, 11.875, 11.875, 11.875]
    assert judged.phases["validations_s"] == [(1e9 + began_s, 1e9 + ended_s)]


@pytest.mark.parametrize("is_witnessed", [True, False])
@pytest.mark.parametrize("where", ["between", "inside", "between, kept"])
def test_a_rare_pass_without_gradients_is_no_part_of_a_step(where: str, is_witnessed: bool) -> None:
    """Some batches of another loader each 10 steps, by an iterator of their own or by one that is kept."""
    script = Script()
    train, validation = Loader(script, [8] * 40), Loader(script, [4] * 99)
    kept = iter(validation)

    def validate() -> None:
        drawing = kept if "kept" in where else iter(validation)
        script.grad = False
        for _ in range(3):
            next(drawing)
            script.now_s += 10
        script.grad = True

    for index, batch in enumerate(train):
        if where == "inside" and index % 10 == 5:
            validate()
        script.gradient((batch,))
        script.step()
        if where != "inside" and index % 10 == 5:
            validate()
    judged = judge(script.log, None, beside={validation.number} if is_witnessed else ())
    assert [*judged.table.samples] == [8] * 40
    assert [*judged.table.step_time_s] == pytest.approx([2.0] + [1.875] * 39, abs=0.13)


@pytest.mark.parametrize("is_witnessed", [True, False])
def test_what_a_teacher_does_in_each_step_is_a_part_of_it(is_witnessed: bool) -> None:
    """It draws before the student, whose batches are kept and used again."""
    script = Script()
    train, teachers = Loader(script, [8] * 20), Loader(script, [4] * 99)
    kept, batches = iter(teachers), itertools.cycle(train)
    for _ in range(40):
        script.grad = False
        next(kept)
        script.now_s += 10
        script.grad = True
        script.gradient((next(batches),))
        script.step()
    judged = judge(script.log, None, beside={teachers.number} if is_witnessed else ())
    assert judged.table.count == 40
    assert [*judged.table.step_time_s][1:] == pytest.approx([12.375] * 19 + [11.875] * 20, abs=0.01)


@pytest.mark.parametrize("same", [True, False])
def test_a_gradient_that_is_carried_over_passes_counts_for_the_step_that_applies_it(same: bool) -> None:
    script = Script()
    loader = Loader(script, [8, 8, 8])
    for epoch in range(2):
        script.start()
        for batch in loader if same or not epoch else Loader(script, [8, 8, 8]):
            script.gradient((batch,))
            if batch.number % 2 == 0:
                script.step()
                script.row()
                script.zero()
        script.stop()
        script.now_s += 100
    assert [row[0] for row in script.rows] == [16, 16, 16]
    check(script)


def test_each_gradient_is_a_step_of_a_loop_without_a_loader() -> None:
    script = Script()
    for replayed in (False, True, True):
        if replayed:
            script.add(log.REPLAY, 7, seconds=1.0)  # the backward pass was captured into a CUDA graph
        else:
            script.backward(())
        script.step()
    script.step()  # no gradient at all: a part of the step before
    assert list(judge(script.log, 16).table.step_time_s) == [1.125, 1.125, 1.25]


def test_a_pass_that_yields_no_further_batch_does_not_hold_its_row_for_ever() -> None:
    script = Script()
    batch = next(drawing := iter(Loader(script, [8, 8])))
    for _ in range(MOST_STEPS + 3):
        script.gradient((batch,))
        script.step()
    assert list(judge(script.log, None).table.samples) == [8, 0]
    del drawing


@pytest.mark.parametrize("skipped", [(0,), (0, 1)])
def test_a_step_left_out_of_one_optimizer_only(skipped: tuple[int, ...]) -> None:
    """A GradScaler with two optimizers: the batch is lost where neither steps."""
    script = Script()
    script.start()
    for batch in Loader(script, [8] * 6):
        for optimizer in (0, 1):
            script.gradient((batch,), (optimizer,))
        for optimizer in (0, 1):
            if batch.number == 3 and optimizer in skipped:
                script.skip_step()
            else:
                script.step(optimizer)
        if batch.number != 3 or len(skipped) == 1:
            script.row()
        for optimizer in (0, 1):
            script.zero(optimizer)
    assert len(script.rows) == 7 - len(skipped)
    check(script)


@pytest.mark.parametrize(("samples", "batch"), [([64, 32, 64, 32], 64), ([64, 64, 32], 64), ([64, 32, 32], 32)])
def test_the_batch_is_that_of_a_whole_step_where_each_other_step_is_what_is_left(
    samples: list[int], batch: int
) -> None:
    script = Script()
    for size in samples:
        one_pass(script, [size])
    assert judge(script.log, None).table.batch_per_gpu() == batch


def test_padding_comes_last() -> None:
    script = Script()
    one_pass(script, [4, 4, 4, 1], real=10)
    assert rows(judge(script.log, None).table) == [(4, 0), (4, 0), (2, 2), (0, 1)]


def test_time_between_epochs_is_not_of_the_endless_loader_beside() -> None:
    script = Script()
    endless = iter(Loader(script, [4] * 9))
    for _ in range(2):
        for batch in Loader(script, [4, 4]):
            script.gradient((batch, next(endless)))
            script.step()
        script.now_s += 100
    assert list(judge(script.log, None).table.step_time_s) == pytest.approx([2.625, 2.375, 2.5, 2.375], abs=1e-9)


def test_phases_of_two_epochs_with_validation() -> None:
    script = Script()
    spans = []
    for _ in range(2):
        script.train()
        one_pass(script, [8] * 3)
        began_s = script.now_s
        script.eval()
        script.now_s += 5
        spans.append((1e9 + began_s, 1e9 + script.now_s))
        script.train()
    assert judge(script.log, None).phases == {
        "epoch_steps": [1, 4],
        "validations_s": spans,
        "without_a_pass_s": spans,
        "saves_s": [],
        "saves": {"count": 0, "seconds": 0, "aside_s": 0, "bytes": 0},
        "rests_s": [],
        "compiles_s": [],
    }


@pytest.mark.parametrize("grad", [True, False])
def test_a_pass_without_a_step_is_a_validation(grad: bool) -> None:
    script = Script()
    one_pass(script, [8, 8])
    began_s, script.grad = script.now_s, grad
    for batch in Loader(script, [8, 8]):
        script.forward((batch,))
    assert judge(script.log, None).phases["validations_s"] == [(1e9 + began_s, 1e9 + script.now_s)]


def test_csv() -> None:
    script = Script()
    one_pass(script, [8])
    assert "".join(csv_lines(judge(script.log, None).table.columns())) == (
        "step,samples,padding_samples,step_time_s,data_wait_s,ended_at_s,forward_s,backward_s,comm_s,overlap_s,"
        "collectives_s\n"
        "1,8,0,2.000000000,0.625000000,1000000002.000000,,,,,0.000000000\n"
    )
