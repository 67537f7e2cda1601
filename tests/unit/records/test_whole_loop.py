"""The figure of a run against its whole loop: 100 steps of 10 ms and 8 samples, on two ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from ddp_ladder.records.raw_files import Steps
from ddp_ladder.records.raw_models import RankPhases
from ddp_ladder.records.record import Remark
from ddp_ladder.records.timing import remark_on_loop

STEPS, STEP_S, BATCH = 100, 0.01, 8
RATE = 2 * BATCH / STEP_S
EVERY_16TH = range(16, STEPS, 16)


def judged(
    gaps: Sequence[int], gap_s: float, validation: str = "", of_ranks: tuple[int, ...] = (0, 1), slow: bool = False
) -> Remark | None:
    """Judge a run with a gap before each of some steps. slow: the gap is part of the step.

    validation: what the ranks ``of_ranks`` know of the gaps: ``over a loader``, ``in eval mode``, ``save``.
    """
    ranks = []
    for rank in (0, 1):
        extra_s = np.zeros(STEPS)
        extra_s[list(gaps)] = gap_s
        ended_s = 1e9 + np.cumsum(STEP_S + extra_s)
        spans = tuple((ended_s[k] - STEP_S - gap_s, ended_s[k] - STEP_S) for k in gaps if validation)
        spans = spans if rank in of_ranks else ()
        phases = RankPhases(
            epoch_steps=(),
            validations_s=() if validation == "save" else spans,
            without_a_pass_s=spans if validation == "in eval mode" else (),
            saves_s=spans if validation == "save" else (),
        )
        samples = np.full(STEPS, BATCH)
        times_s = np.full(STEPS, STEP_S) + (extra_s if slow else 0.0)
        ranks.append((Steps(samples, 0 * samples, times_s, 0 * times_s, ended_s), phases))
    return next(remark_on_loop(RATE, ranks, warmup_steps=10), None)


@pytest.mark.parametrize("validation", ["", "in eval mode"])
def test_time_in_no_step_that_recurs_is_remarked(validation: str) -> None:
    """A rollout every 16 steps: in eval mode, or between two passes over a loader of its own."""
    remark = judged(EVERY_16TH, 0.3, validation)
    assert remark is not None
    assert "1,600 samples/s" in remark.what
    assert "596 samples/s" in remark.what  # without the longest: 89 steps and 5 rollouts
    assert "what the script does between its steps" in remark.next


@pytest.mark.parametrize("of_ranks", [(0, 1), (0,)])
@pytest.mark.parametrize("known", ["over a loader", "save"])
def test_known_validations_and_checkpoints_explain_themselves(known: str, of_ranks: tuple[int, ...]) -> None:
    assert judged(EVERY_16TH, 0.3, known, of_ranks) is None


def test_a_checkpoint_within_a_step_explains_nothing_else() -> None:
    extra_s = np.zeros(STEPS)
    extra_s[list(EVERY_16TH)] = 0.05
    ended_s = 1e9 + np.cumsum(STEP_S + extra_s)
    saves = tuple((end_s - STEP_S, end_s) for end_s in ended_s)  # in each step
    phases = RankPhases(epoch_steps=(), validations_s=(), saves_s=saves)
    samples, times_s = np.full(STEPS, BATCH), np.full(STEPS, STEP_S)
    for known_s, remarks in ((ended_s, 1), (None, 0)):
        steps = Steps(samples, 0 * samples, times_s, 0 * times_s, known_s)
        assert len([*remark_on_loop(RATE, [(steps, phases)], warmup_steps=10)]) == remarks


@pytest.mark.parametrize(
    ("gaps", "gap_s", "slow"),
    [((), 0.0, False), ((50,), 5.0, False), (EVERY_16TH, 0.01, False), (EVERY_16TH, 0.3, True)],
    ids=["none", "one", "short ones", "slow steps"],
)
def test_what_needs_no_remark(gaps: Sequence[int], gap_s: float, slow: bool) -> None:
    assert judged(gaps, gap_s, slow=slow) is None
