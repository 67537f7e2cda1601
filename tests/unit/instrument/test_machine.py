"""The state machine gives the truth of generated training loops, and of named ones."""

from __future__ import annotations

from itertools import takewhile

import pytest
from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import read_log
from ddp_ladder_instrument.machine import MOST_STEPS, Judged, Machine, StepTable, judge
from hypothesis import HealthCheck, given, settings
from worlds import CHOICES, Loader, Loop, Script, World, sensible, worlds

MANY = settings(
    max_examples=10_000,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
DATA = ("count", "size", "last", "padding", "epochs", "source", "stop_at", "ahead", "group", "buffer", "second")
STEPS = ("body", "times", "accumulate", "remainder", "zero", "wrapped", "visible")
LEFT_OUT = ("skip_at", "skips", "scaler", "ends_at", "fails", "warm_step")
MODES = ("validate", "val_every", "val_grad", "val_eval", "val_data", "val_ahead", "late_train", "eval_training")


def rows(table: StepTable) -> list[tuple[int, int]]:
    return list(zip(table.samples, table.padding_samples, strict=True))


def check(script: Script) -> Judged:
    judged = judge(script.log, None)
    assert rows(judged.table) == script.rows
    known = [
        (ours, true) for ours, true in zip(judged.table.step_time_s, script.seconds, strict=True) if true is not None
    ]
    assert [ours for ours, _ in known] == pytest.approx([true for _, true in known], abs=1e-9)
    return judged


@MANY
@given(worlds(*DATA, *STEPS))
def test_how_batches_are_drawn_and_used(world: World) -> None:
    check(Loop(world).run())


@MANY
@given(worlds(*STEPS, *LEFT_OUT, "count", "ahead", "second", "source"))
def test_what_is_left_out(world: World) -> None:
    check(Loop(world).run())


@MANY
@given(worlds(*MODES, "count", "epochs", "ahead", "body", "accumulate", "remainder", "wrapped"))
def test_validation_and_modes(world: World) -> None:
    check(Loop(world).run())


@MANY
@given(worlds(*CHOICES))
def test_all_together(world: World) -> None:
    check(Loop(world).run())


@MANY
@given(worlds(*CHOICES))
def test_rows_online_are_those_of_the_whole(world: World) -> None:
    """Limits depend on the number of rows after each step. The log's file holds the log."""
    script = Loop(world).run()
    online = Machine()
    counts = rows_after_steps(online, script)
    assert counts == rows_after_steps(Machine(None, online.trained.whole()), script)
    data = script.log.to_bytes()
    assert read_log(data).rows == script.log.rows


def rows_after_steps(machine: Machine, script: Script) -> list[int]:
    counts = []
    for event in script.log.events():
        machine.feed(iter((event,)))
        if event[0] in (log.STEP, log.REPLAY):
            counts.append(machine.table.count)
    return counts


NAMED = {
    "the first pass of next(iter(loader)) is over before its step": World(source="next_iter"),
    "the first step follows the end of its pass": World(body="full"),
    "few steps, batches drawn ahead": World(count=5, epochs=1, ahead=1),
    "validation while the last batch waits": World(count=5, ahead=1, validate="inside"),
    "validation in each step, batches drawn ahead": World(count=5, ahead=1, validate="inside", val_every=1),
    "validation before the batch is used, batches drawn ahead": World(count=5, ahead=2, validate="before_use"),
    "batches drawn ahead, no backward pass is seen": World(count=5, ahead=1, visible=False),
    "two batches in one input, two optimizers": World(count=6, group=2, body="gan"),
    "two batches in one input, SAM": World(count=6, group=2, body="sam"),
    "an epoch's first batch is drawn in eval mode after a validation": World(
        count=6, ahead=1, validate="inside", late_train=True
    ),
    "of two loaders of the same batch size pairs are skipped": World(
        count=9, epochs=3, second="zip", second_size=4, skip_at="draw", skips=1 << 3
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
