"""What the ranks of a node did when: phases, epochs and steps in unix time, by the clock of the node. Pure.

The samples of a node are compared with ranks of the same node only: the clocks of two nodes may differ. On a GPU, the
end of a step is when the host had launched its work: the device may be some steps behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.usage.samples import NodeSamples, Values

Phase = Literal["start-up", "warm-up", "training", "validation", "between epochs", "end", "run"]
"""Start-up lasts until the end of the first step; training is what is measured. run: the phases are not known."""

SHORTEST_S = 0.05  # shorter interruptions of the training are no spans: samples are further apart


@dataclass(frozen=True)
class Span:
    """A phase in unix time."""

    phase: Phase
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class StepTimes:
    """What a rank recorded of its steps.

    ended_at_s, step_time_s: of each step; unix time and seconds. warmup_steps: of the run. epoch_steps: the first step
    of each pass over training data, counted from 1. validations_s: begin and end of each, unix time.
    """

    ended_at_s: Values
    step_time_s: Values
    warmup_steps: int
    epoch_steps: Sequence[int] = ()
    validations_s: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Timeline:
    """The phases of a run on one node, without gaps.

    epochs_s: begins of the epochs. step_ends_s: ends of the steps; empty if they are not known.
    """

    spans: tuple[Span, ...]
    epochs_s: tuple[float, ...] = ()
    step_ends_s: Values = field(default_factory=lambda: np.empty(0))

    def seconds_in(self, phase: Phase, begins_s: Values, ends_s: Values) -> Values:
        """Return how many seconds of each interval are in a phase."""
        found = np.zeros(len(ends_s))
        for span in self.spans:
            if span.phase == phase:
                found += np.clip(np.minimum(ends_s, span.end_s) - np.maximum(begins_s, span.begin_s), 0, None)
        return found

    def phases(self, times_s: Values) -> list[Phase]:
        """Return the phase at each time; before the first it is the first, after the last the last."""
        ends = np.array([span.end_s for span in self.spans[:-1]])
        return [self.spans[k].phase for k in np.searchsorted(ends, times_s)]

    def phases_of(self, samples: NodeSamples) -> list[Phase]:
        """Return the phase of each sample: that in the middle of its interval."""
        return self.phases((samples.begins_s + samples.times_s) / 2)

    def steps(self, times_s: Values) -> NDArray[np.int64]:
        """Return the number of the step at each time, from 1; after the last step, that; 0 if the steps are unknown."""
        count = len(self.step_ends_s)
        return np.minimum(np.searchsorted(self.step_ends_s, times_s) + 1, count)

    def share_of_training(self, samples: NodeSamples) -> Values:
        """Return which part of each sample's interval is measured training; without phases, of the whole run."""
        phase: Phase = "run" if self.spans[0].phase == "run" else "training"
        length_s = samples.times_s - samples.begins_s
        inside_s = self.seconds_in(phase, samples.begins_s, samples.times_s)
        return np.divide(inside_s, length_s, out=np.zeros(len(samples)), where=length_s > 0)


def timeline(begin_s: float, end_s: float, steps: StepTimes | None) -> Timeline:
    """Return the timeline of a run that lasted from ``begin_s`` to ``end_s``, unix times.

    steps: of one of its ranks; None if they are not known.
    """
    if steps is None or not len(steps.ended_at_s):
        return Timeline((Span("run", begin_s, max(begin_s, end_s)),))
    ends_s = np.maximum.accumulate(steps.ended_at_s)  # a clock may have been set back
    first_s, last_s = float(ends_s[0]), float(ends_s[-1])
    warm_s = float(ends_s[min(max(steps.warmup_steps, 1), len(ends_s)) - 1])
    edges_s = [min(begin_s, first_s), first_s, warm_s, last_s, max(end_s, last_s)]
    phases: tuple[Phase, ...] = ("start-up", "warm-up", "training", "end")
    base = [Span(phase, *ends) for phase, ends in zip(phases, pairwise(edges_s), strict=True)]
    whole = Span("run", edges_s[0], edges_s[-1])
    epochs_s, pauses = _epochs(steps, ends_s)
    validations = [Span("validation", begin, end) for begin, end in steps.validations_s]
    spans = _painted([whole, *base, *_longer(pauses, first_s), *_longer(validations, first_s)])
    return Timeline(spans, epochs_s, ends_s)


def _epochs(steps: StepTimes, ends_s: Values) -> tuple[tuple[float, ...], list[Span]]:
    """Return the begins of the epochs, and the spans from the last step of an epoch to the begin of the next."""
    first_steps = [step - 1 for step in steps.epoch_steps if step <= len(ends_s)]
    begins_s = [float(ends_s[step] - steps.step_time_s[step]) for step in first_steps]
    before_s = [float(ends_s[step - 1]) if step else None for step in first_steps]
    pauses = [Span("between epochs", b, e) for b, e in zip(before_s, begins_s, strict=True) if b is not None]
    return tuple(begins_s), pauses


def _longer(spans: Sequence[Span], since_s: float) -> list[Span]:
    """Return the spans after ``since_s`` that are long enough to be seen."""
    cut = [Span(span.phase, max(since_s, span.begin_s), span.end_s) for span in spans]
    return [span for span in cut if span.end_s - span.begin_s >= SHORTEST_S]


def _painted(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans as they are seen if later ones cover earlier ones. The first covers the whole time."""
    whole = spans[0]
    edges_s = np.unique([edge for span in spans for edge in (span.begin_s, span.end_s)])
    edges_s = edges_s[(edges_s >= whole.begin_s) & (edges_s <= whole.end_s)]
    seen = [whole.phase] * (len(edges_s) - 1)
    for span in spans[1:]:
        first, after = np.searchsorted(edges_s, [span.begin_s, span.end_s])
        seen[first:after] = [span.phase] * (after - first)
    merged: list[Span] = []
    for phase, begin_s, end_s in zip(seen, edges_s[:-1].tolist(), edges_s[1:].tolist(), strict=True):
        if merged and merged[-1].phase == phase:
            merged[-1] = Span(phase, merged[-1].begin_s, end_s)
        else:
            merged.append(Span(phase, begin_s, end_s))
    return tuple(merged)
