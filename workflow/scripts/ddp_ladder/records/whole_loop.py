"""The figure of a run against its whole loop: does the time in no step, which nobody counts, explain itself? Pure.

A validation that passes over a DataLoader and torch.save are known, and no part of either. What else is in no step may
be training that the instrument does not see: a rollout every few steps, in eval mode or between passes. So the run is
remarked, and its gate is not certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.common.formats import percent, significant
from ddp_ladder.records.raw_files import Steps
from ddp_ladder.records.raw_models import RankPhases
from ddp_ladder.records.record import Remark

WHOLE_LOOP = "whole loop"  # the name of the remark
NOTABLE_EXCESS = 0.1  # of the time of the whole loop over that of its steps
NOTABLE_S = 0.05


def remark_on_loop(
    samples_per_s: float, ranks: Sequence[tuple[Steps, RankPhases | None]], warmup_steps: int
) -> Remark | None:
    """Return a remark if the loop took longer than its steps, by more than known validations and checkpoints explain.

    The loop lasts from the end of the warm-up to that of the last step. The step after the longest time in no step is
    left out, so that one interruption makes no remark. That steps differ is shown by their statistic.
    """
    first = max(warmup_steps, 1)
    known_s, eval_s, elapsed_s = [], [], []
    for steps, phases in ranks:
        if steps.ended_at_s is None or len(steps) < first + 2 or np.isnan(steps.ended_at_s).any():
            return None
        edges_s = steps.ended_at_s[first - 1 :]
        unknown = set(phases.without_a_pass_s) if phases else set()
        known = {*phases.validations_s, *phases.saves_s} - unknown if phases else set()
        elapsed_s.append(np.diff(edges_s))
        known_s.append(_covered_s(edges_s, known))
        eval_s.append(_covered_s(edges_s, unknown))
    # Ranks may wait for one that validates alone. What is known may be a part of a step.
    step_s = np.max([steps.step_time_s[first:] for steps, _ in ranks], axis=0)
    loop_s = np.max(elapsed_s, axis=0)
    loop_s = loop_s - np.minimum(np.max(known_s, axis=0), np.maximum(loop_s - step_s, 0.0))
    samples = np.sum([steps.samples[first:] for steps, _ in ranks], axis=0)
    parts_s = np.stack([loop_s, np.max(eval_s, axis=0), step_s])
    rest = np.arange(len(loop_s)) != np.argmax(loop_s - step_s)
    loop, in_eval_mode, in_steps = parts_s[:, rest].sum(axis=1)
    if loop - in_steps <= max(NOTABLE_EXCESS * in_steps, NOTABLE_S):
        return None
    shares = {
        "in eval mode, with no pass over a DataLoader": in_eval_mode / loop,
        "elsewhere between the steps": 1 - (in_steps + in_eval_mode) / loop,
    }
    where = [f"{percent(share)} of that time is {what}" for what, share in shares.items() if share > NOTABLE_EXCESS / 4]
    return Remark(
        name=WHOLE_LOOP,
        what=f"the figure is {significant(samples_per_s)} samples/s, but samples / time of the whole loop is "
        f"{significant(samples[rest].sum() / loop)} samples/s, without known validations and checkpoints: "
        f"{' and '.join(where)}",
        next="look at what the script does in that time: if it is part of the training (a rollout, data that the model "
        "makes), only the second figure holds; if it is a validation, the first one does",
    )


def _covered_s(edges_s: NDArray[np.float64], spans: Iterable[tuple[float, float]]) -> NDArray[np.float64]:
    """Return how much of each interval between two edges the spans cover, in s; spans may overlap."""
    ordered = np.array(sorted(spans) or [(0.0, 0.0)])
    ends_s = np.maximum.accumulate(ordered[:, 1])
    begins_s = np.maximum(ordered[:, 0], np.concatenate([[-np.inf], ends_s[:-1]]))
    times_s = np.stack([begins_s, ends_s], axis=1)
    covered_s = np.cumsum(np.diff(times_s, axis=1).clip(0.0))
    before_s = np.concatenate([[0.0], covered_s[:-1]])
    return np.diff(np.interp(edges_s, times_s.ravel(), np.stack([before_s, covered_s], axis=1).ravel()))
