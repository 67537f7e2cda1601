"""What two starts of a script show: states with a known truth, and the judgement on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_ladder.common.files import read_json, write_json
from ddp_ladder.ledger.kept import resumption
from ddp_ladder.production.rehearsal import LONGER, VERDICTS, Start, judged, start_of, what_is_rehearsed
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.raw_models import TrainingState
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.terms import REHEARSAL
from hypothesis import given, settings
from hypothesis import strategies as st
from make_records import make_spec, make_specs
from make_runs import LOOP_AT_S, edit, edit_agent, edit_rank, write_loop, write_run


def state(values: Any, steps: int | None = None, lr: float = 0.1) -> TrainingState:
    return TrainingState(optimizer_steps=steps, lr=(lr,), values=tuple(map(float, values)), count=10_000)


class Training:
    """Parameters after each of some steps, some way and some chance, with what an optimizer and a schedule count."""

    def __init__(self, seed: int, size: int, steps: int, noise: float, counts: bool) -> None:
        self.random = np.random.default_rng(seed)
        self.size, self.steps, self.counts = size, steps, counts
        way = self.random.normal(size=size) * 0.05
        moves = way + noise * 0.05 * self.random.normal(size=(steps, size))
        self.values = np.vstack([self.initial(), moves]).cumsum(axis=0)

    def initial(self) -> Any:
        return self.random.normal(size=self.size)

    def at(self, parameters: int, optimizer: int | None = None) -> TrainingState:
        step = parameters if optimizer is None else optimizer
        return state(self.values[parameters], step if self.counts else None, 0.1 * 0.9**step)

    def fresh(self) -> TrainingState:
        """Another start from other initial values."""
        return state(self.initial(), 0 if self.counts else None)


trainings = st.builds(
    Training, st.integers(0, 2**32), st.integers(64, 256), st.integers(4, 40), st.floats(0.0, 2.0), st.booleans()
)


@settings(deadline=None, max_examples=300)
@given(trainings, st.integers(1, 39), st.booleans())
def test_what_is_gone_on_from_is_found(training: Training, at: int, seeded: bool) -> None:
    first, last = training.at(0), training.at(training.steps)
    middle = min(at, training.steps - 1)

    def kind(begin: TrainingState) -> str:
        return resumption(first, last, begin).kind

    assert kind(last) == "end"
    begin = first if seeded else training.fresh()
    by_chance = () if seeded else ("unknown",)  # other initial values may lie on the way
    assert kind(begin) == "beginning" or (not training.counts and kind(begin) in by_chance)
    earlier = kind(training.at(middle))
    assert earlier == "earlier" or (not training.counts and earlier == "unknown")
    if training.counts:
        assert kind(training.at(training.steps, optimizer=0)) == "no optimizer"
        assert kind(training.at(training.steps, optimizer=middle)) == "mixed"
        assert kind(begin.replace(optimizer_steps=training.steps)) in ("no parameters", *by_chance)
        assert kind(training.at(middle, optimizer=0)) in ("no optimizer", "beginning")
    assert kind(last.replace(lr=first.lr)) == "no rate"


# The judgement

TRAINING = Training(1, 100, 10, 0.5, counts=True)
BEGUN, ENDED = TRAINING.at(0), TRAINING.at(10)
FIRST = Start("the first start", "saved", steps=10, warned=2, first={0: BEGUN, 1: BEGUN}, last={0: ENDED, 1: ENDED})
TIMED_OUT = replace(FIRST, end="time limit", steps=None, last={})
BROKEN = Failure(verdict="the script raised an exception", why="rank 0: KeyError: 'model'", next="look at the log")


def second(zero: TrainingState, one: TrainingState | None = None, **more: Any) -> Start:
    return replace(FIRST, name="the second start", first={0: zero, 1: one or zero}, last={}, **more)


CASES: dict[str, tuple[Start, Start, str, str]] = {
    "where it ended": (FIRST, second(ENDED), "passed", "goes on where the first one ended, at step 10 (ranks 0, 1)"),
    "an interval": (
        replace(FIRST, saved_last=False), second(TRAINING.at(7)), "passed", "at step 7; 3 of 10 steps are lost",
    ),
    "an older one": (
        replace(FIRST, saved_last=True), second(TRAINING.at(7)), "failed", "resumes from the wrong step: the",
    ),
    "an older one, and no save was seen": (FIRST, second(TRAINING.at(7)), "failed", "resumes from the wrong step"),
    "the beginning": (FIRST, second(TRAINING.fresh()), "failed", "the second start starts from the beginning"),
    "one rank": (
        FIRST, second(ENDED, BEGUN), "failed",
        "on some ranks only: rank 0 goes on where it ended (step 10); rank 1 starts from the beginning (step 0)",
    ),
    "an optimizer on one rank": (
        FIRST, second(ENDED, TRAINING.at(10, optimizer=0)), "failed", "rank 1 has no state of the optimizer (step 0)",
    ),
    "steps that differ": (
        replace(FIRST, saved_last=False), second(TRAINING.at(7), TRAINING.at(6)), "failed",
        "the ranks go on from different states: rank 0 goes on from an earlier state (step 7); rank 1",
    ),
    "a rank that its launcher ended": (replace(FIRST, last={1: ENDED}), second(ENDED), "passed", "at step 10"),
    "exit code 0": (replace(FIRST, end="complete"), second(ENDED), "failed", "ended with exit code 0 at the signal"),
    "complete before the signal": (
        replace(FIRST, end="complete", warned=None), second(ENDED), "unclear", "the training was complete",
    ),
    "complete at the signal": (
        replace(FIRST, end="complete"), Start(
            "the second start", "complete", steps=0), "unclear", "the second one ended without a step",
    ),
    "a failure": (
        replace(FIRST, end="failed", failure=BROKEN), second(BEGUN), "failed", "the first start failed: the script",
    ),
    "a failure of the second one": (
        FIRST, Start("the second start", "failed", BROKEN), "failed", "the second start failed: the script raised",
    ),
    "a later failure": (FIRST, second(ENDED, end="failed", failure=BROKEN), "failed", "the second start failed: "),
    "no step": (Start("the first start", "time limit"), second(BEGUN), "unclear", "no step of a torch optimizer was"),
    "no second step": (FIRST, Start("the second start", "saved", steps=0), "unclear", "no step was seen in the second"),
    "the signal ignored": (TIMED_OUT, second(TRAINING.at(7)), "passed", "at step 7; how many steps are lost is"),
    "the signal ignored, and nothing saved": (TIMED_OUT, second(BEGUN), "failed", "starts from the beginning"),
    "the signal during imports": (
        replace(TIMED_OUT, warned=0, is_warned_early=True), second(BEGUN), "unclear", "signal came before the end",
    ),
    "the signal during imports, and saves at intervals": (
        replace(TIMED_OUT, warned=0, is_warned_early=True), second(TRAINING.at(7)), "passed", "at step 7; how many",
    ),
    "nothing that counts": (
        replace(TIMED_OUT, first={0: BEGUN.replace(optimizer_steps=None)}), second(ENDED.replace(optimizer_steps=None)),
        "unclear", "cannot be seen: the first start was ended by its time limit and left no last state",
    ),
    "no states": (
        replace(FIRST, first={}, last={}), second(ENDED), "unclear", "cannot be seen: no state of the parameters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_judgement(case: str) -> None:
    first, again, verdict, why = CASES[case]
    found, seen, *_ = judged(first, again)
    assert (VERDICTS[found.severity], why in found.measured) == (verdict, True), found
    assert found.next or verdict == "passed"
    assert found.next == LONGER or not first.is_warned_early or verdict == "passed"
    assert seen.place == "the first start"


def test_a_start_s_files_show_its_steps_its_end_and_whether_it_saved_last(tmp_path: Path) -> None:
    """As of a chain: 75 on both ranks, and the file that the first step of a killed rank has left."""
    (spec,) = make_specs(["1x2"], repeats=1, stage=REHEARSAL)
    directory = write_run(tmp_path, spec)
    assert start_of(read_raw_run(directory), "").saved_last is None
    steps = {"steps_s": [0.1] * 20, "exit_code": 75}
    for rank in (0, 1):
        ended_s = write_loop(directory, rank, pauses={3: ("save", 1.0)}, last_state=ENDED.model_dump(), **steps)
    edit_agent(directory, 0, warned=2)
    found = start_of(read_raw_run(directory), "")
    assert (found.end, found.steps, found.warned, found.saved_last) == ("saved", 20, 2, False)
    assert (found.first, found.last) == ({}, {0: ENDED, 1: ENDED})
    saved = {"epoch_steps": [], "validations_s": [], "without_a_pass_s": [], "saves_s": [(ended_s - 0.2, ended_s)]}
    edit_rank(directory, 0, phases=saved)
    (directory.ranks / "rank1.json").unlink()
    identity = {key: value for key, value in read_json(directory.run).items() if key in ("spec_hash", "job")}
    write_json(
        directory.ranks / "rank1.first.json", {"schema_version": 1, **identity, "rank": 1, "state": BEGUN.model_dump()}
    )
    found = start_of(read_raw_run(directory), "")
    assert (found.saved_last, found.first) == (True, {1: BEGUN})


@pytest.mark.parametrize(("after_s", "is_early"), [(-1.0, True), (1.0, False), (None, False)])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_signal_before_the_first_step_is_told_from_a_later_one(
    tmp_path: Path, after_s: float | None, is_early: bool, is_killed: bool
) -> None:
    """Also of ranks that were killed: rank 0 has left its progress."""
    (spec,) = make_specs(["1x2"], repeats=1, stage=REHEARSAL)
    directory = write_run(tmp_path, spec)
    for rank in (0, 1):
        write_loop(directory, rank, steps_s=[0.1] * 20)
        if is_killed:
            (directory.ranks / f"rank{rank}.json").unlink()
    shown = {"step": 20, "saves": 0, "elapsed_s": 1.9, "samples_per_s": 1.0, "updated_at_s": LOOP_AT_S + 1.9}
    write_json(directory.progress, shown)
    edit(directory.run, lambda run: run.update(warn_at_s=after_s and LOOP_AT_S + after_s))
    assert start_of(read_raw_run(directory), "").is_warned_early is is_early


def test_how_the_starts_ended_and_what_they_counted_is_told() -> None:
    first = replace(TIMED_OUT, warned=0)
    _, *found = judged(first, second(TRAINING.at(7)))
    assert [finding.in_words for finding in found] == [
        "the first start: ended after an unknown number of steps, by its time limit; no rank had a handler of SIGUSR1 "
        "when it came",
        "the second start: ended after 10 steps, exit code 75: its state is saved",
        "rank 0: begin of the first start: step 0, rate 0.100; its end: step unknown, rate unknown; "
        "begin of the second: step 7, rate 0.0478",
    ]


def test_a_rehearsal_is_of_one_wrapper() -> None:
    """A wrapper may keep the warning before the end of a job from the script."""
    one, same, *others = (what_is_rehearsed(make_spec(wrapper_template=words)) for words in ((), (), ("a",), ("b",)))
    assert one == same
    assert one not in others
    assert others[0] != others[1]
