"""The table of the steps, written as the rank's CSV, and the batches of each step: which passes over a DataLoader it
trains on, and which of their batches.

The training passes of a step are those that yielded batches for it, except

- passes drawn with gradients off (torch.no_grad, torch.inference_mode): they are never training;
- passes drawn in the model's eval mode, if others were drawn in training mode;
- passes that are over or abandoned, if a living one also yielded. The remainder of the previous pass over the same
  loader counts (an accumulation across the end of an epoch), unless the script dropped its gradients.

Its samples are those of the batches that these passes yielded since the last step, except batches whose step
GradScaler skipped, and batches drawn ahead: the second step of a pass shows how many, as it draws fewer than the first
for as many backward passes.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

if TYPE_CHECKING:
    from ddp_ladder_instrument.torch_facts import Segment

NEVER = 2**62
MOST = 10_000
"""Validations, times in eval mode, saves and epochs that are kept: one every minute makes 10,000 in a week."""
CSV_HEADER = "step,samples,padding_samples,step_time_s,data_wait_s,ended_at_s,forward_s,backward_s,comm_s,overlap_s\n"


class DdpTimes(NamedTuple):
    """DDP's times of a step, in seconds. overlap_s: the part of comm_s that the backward pass hides."""

    forward_s: float
    backward_s: float
    comm_s: float
    overlap_s: float


class Row(NamedTuple):
    """A step that the program reported itself; times in seconds."""

    samples: int
    step_time_s: float
    data_wait_s: float


class StepTable:
    """The table's columns; times in seconds.

    ended_at_s: Unix time on the host at the end of each step. A GPU may still be busy with it, or with earlier ones.
    ddp: DDP's times of the steps that it timed, by row.
    """

    def __init__(self) -> None:
        self.count = 0
        self.samples = array("q")
        self.padding_samples = array("q")
        self.step_time_s = array("d")
        self.data_wait_s = array("d")
        self.ended_at_s = array("d")
        self.ddp: dict[int, DdpTimes] = {}
        self.first_step_ended_at_s: float | None = None
        self._measured: int | None = None

    def add(self, samples: int, padding_samples: int, step_time_s: float, data_wait_s: float) -> None:
        """Add the row of a step that has just ended."""
        self.samples.append(samples)
        self.padding_samples.append(padding_samples)
        self.step_time_s.append(step_time_s)
        self.data_wait_s.append(data_wait_s)
        self.ended_at_s.append(time.time())
        if self.count == 0:
            self.first_step_ended_at_s = self.ended_at_s[0]
        self.count += 1

    def extend(self, seconds: float) -> None:
        """Add seconds up to now to the last row."""
        self.step_time_s[-1] += seconds
        self.ended_at_s[-1] = time.time()

    def end_measured(self) -> None:
        """Note that the rows that follow are not measured."""
        self._measured = self.count

    def drop_unmeasured(self) -> None:
        """Remove the rows that are not measured."""
        if self._measured is not None and self.count > self._measured:
            self.count = self._measured
            for column in (self.samples, self.padding_samples, self.step_time_s, self.data_wait_s, self.ended_at_s):
                del column[self.count :]
            self.ddp = {row: times for row, times in self.ddp.items() if row < self.count}

    def adopt(self, rows: Sequence[Row]) -> None:
        """Replace the rows with steps that the program reported itself."""
        self.count = len(rows)
        self.samples = array("q", [row.samples for row in rows])
        self.padding_samples = array("q", [0] * len(rows))
        self.step_time_s = array("d", [row.step_time_s for row in rows])
        self.data_wait_s = array("d", [row.data_wait_s for row in rows])
        self.ended_at_s = array("d", [math.nan] * len(rows))
        self.ddp.clear()

    def csv(self) -> Iterator[str]:
        """Yield the rows as CSV lines; steps count from 1, an unknown end is nan, unknown times of DDP are empty."""
        yield CSV_HEADER
        for row in range(self.count):
            ddp = self.ddp.get(row)
            times = "{:.9f},{:.9f},{:.9f},{:.9f}".format(*ddp) if ddp else ",,,"
            yield (
                f"{row + 1},{self.samples[row]},{self.padding_samples[row]},{self.step_time_s[row]:.9f},"
                f"{self.data_wait_s[row]:.9f},{self.ended_at_s[row]:.3f},{times}\n"
            )


class Loop:
    """One pass over a DataLoader, with its batches since the last optimizer step.

    ``loader`` returns the DataLoader while it lives. ``real_samples``: how many samples of this
    pass are not padding by the sampler; those come first. ``began_at_s``: Unix time.
    ``source``: what is known of the loader, also once it is gone. ``batch_sizes`` measures its batches.

    sizes: indices of the batches that no step has used yet, and how many of these did not arrive.
    ahead: how many of the last ones are drawn ahead.
    each_step: batches per step, if some are drawn ahead.
    first: row of the pass's first step, its backward passes, and its batches as (samples, padding).
    backwards_at_begin, backwards_at_end: total count of backward passes when the pass yielded its first batch,
    and when it ended.
    dropped: no step trains on the batches since the last step.
    in_eval_mode, between_steps: the last batch was drawn in the model's eval mode; and this began after a step, before
    the next one's batch was drawn.
    """

    def __init__(self, loader: Callable[[], Any], real_samples: int) -> None:
        self.began_at_s = time.time()
        self.loader = loader
        self.real_samples = real_samples
        self.source: Any = None
        self.batch_sizes: Any = None
        self.position = 0
        self.living = True
        self.stepped = False
        self.before: Loop | None = None
        self.carried_segments: list[Segment] = []
        self.first_samples: list[str] = []
        self.iterator: Any = None  # a weak reference whose callback ends the pass
        self.sizes: deque[tuple[int, int]] = deque()
        self.ahead = 0
        self.each_step = 0
        self.first: tuple[int, int, list[tuple[int, int]]] | None = None
        self.backwards_at_begin = self.backwards_at_end = 0
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Reset the batches and times for this step; ``step`` counts from 0."""
        self.step = step
        self.batches = 0
        self.wait_s = 0.0
        self.carried_s = 0.0
        if self.carried_segments:
            self.carried_segments = []
        self.without_grad = False
        self.in_eval_mode = self.between_steps = False
        self.dropped = False

    def add(self, size: int, left_out: int) -> None:
        """Add a batch of ``size`` indices, of padding too, and of the ``left_out`` that did not arrive."""
        self.batches += 1
        self.sizes.append((size, left_out))

    def is_drawn(self, step: int) -> bool:
        """Return True if it yielded a batch for this step."""
        return self.step == step and self.batches > 0

    def take(self, left: int = 0) -> list[tuple[int, int]]:
        """Remove and return the samples and the other indices of each batch, except the last ``left`` ones."""
        taken = []
        for _ in range(len(self.sizes) - left):
            size, left_out = self.sizes.popleft()
            self.position += size
            others = min(self._padding(size) + left_out, size)
            taken.append((size - others, others))
        return taken

    def give_back(self, samples: int, others: int) -> None:
        """Put back the batch that was taken last."""
        size = samples + others
        left_out = others - self._padding(size)
        self.position -= size
        self.sizes.appendleft((size, left_out))

    def _padding(self, size: int) -> int:
        """Return the padding in a batch of ``size`` indices that ends at the position."""
        return min(max(self.position - self.real_samples, 0), size)


def training(pending: Sequence[Loop], loader_expected: bool) -> list[Loop]:
    """Return the training passes among those that yielded for this step.

    loader_expected: False if the user set samples_per_step (no DataLoader); then a pass that is over
    without a step does not count.
    """
    if len(pending) == 1 and loader_expected and not pending[0].without_grad:
        return [pending[0]]
    loops = [loop for loop in pending if not loop.without_grad]
    if not loader_expected:
        loops = [loop for loop in loops if loop.living or loop.stepped]
    if len(loops) < 2:
        return loops
    loops = [loop for loop in loops if not loop.in_eval_mode] or loops
    loops = [loop for loop in loops if not loop.dropped]
    living = [loop for loop in loops if loop.living]
    if not living:
        return [loop for loop in loops if loop.stepped] or loops[-1:]
    return [loop for loop in loops if loop.living or is_remainder(loop, living)]


def is_remainder(loop: Loop, living: Sequence[Loop]) -> bool:
    """Return True if this finished pass trained and a living one over the same loader continues its step."""
    loader = loop.loader()
    return loop.stepped and loader is not None and any(other.loader() is loader for other in living)


class Phases:
    """A validation is the time from the model's ``eval()`` to its ``train()``, or a pass on which no step trained.

    Only what ended after the first step is recorded: before it, all is start-up.
    """

    def __init__(self) -> None:
        self._validations_s: deque[tuple[float, float, Loop]] = deque(maxlen=MOST)
        self._evals_s: deque[tuple[float, float]] = deque(maxlen=MOST)  # in which no pass began
        self._saves_s: deque[tuple[float, float]] = deque(maxlen=MOST)
        self._epoch_steps: deque[int] = deque(maxlen=MOST)
        self._evaluating_since_s: float | None = None

    @property
    def evaluations(self) -> int:
        """Number of validations and times in eval mode so far, with a running one."""
        return len(self._validations_s) + len(self._evals_s) + (self._evaluating_since_s is not None)

    def begin_evaluation(self) -> None:
        """Note that the model was put in eval mode."""
        self._evaluating_since_s = time.time()

    def drop_evaluation(self) -> None:
        """Note that what was done in eval mode is training: this was no validation."""
        self._evaluating_since_s = None

    def end_evaluation(self, loop: Optional[Loop]) -> None:
        """Note that it was put in training mode. loop: the pass that began in between, if any."""
        began_s, self._evaluating_since_s = self._evaluating_since_s, None
        if began_s is None:
            return
        if loop is not None:
            self._validations_s.append((began_s, time.time(), loop))
        else:
            self._evals_s.append((began_s, time.time()))

    def end_pass(self, loop: Loop) -> None:
        """Note a pass that ends now without a step. One may follow, if its batches were drawn ahead of it."""
        self._validations_s.append((loop.began_at_s, time.time(), loop))

    def add_save(self, _args: object, took_s: float) -> None:
        """Note a torch.save that ends now."""
        self._saves_s.append((time.time() - took_s, time.time()))

    def add_epoch(self, step: int) -> None:
        """Add the first step, counted from 1, of a pass over training data."""
        if not self._epoch_steps or self._epoch_steps[-1] != step:
            self._epoch_steps.append(step)

    def summary(self) -> dict[str, Any]:
        """Return the record's ``phases``; an evaluation that is not over ends now."""
        self.end_evaluation(None)
        validations_s = [(begin_s, end_s) for begin_s, end_s, loop in self._validations_s if not loop.stepped]
        return {
            "epoch_steps": [*self._epoch_steps],
            "validations_s": sorted([*validations_s, *self._evals_s]),
            "without_a_pass_s": [*self._evals_s],
            "saves_s": [*self._saves_s],
        }


class BackwardPasses:
    """The backward passes of the running step.

    count: the number of all backward passes; at_step: the same at the last step. of_rows: those of each row.
    replays: the same of CUDA graphs, which may contain backward passes.
    """

    def __init__(self) -> None:
        self.count = self.at_step = 0
        self.of_rows = array("I")
        self._at_row = 0
        self.replays = self._replays_at_step = 0

    @property
    def is_seen(self) -> bool:
        """True if gradients may have been computed since the last step."""
        return self.count > self.at_step or self.replays > self._replays_at_step

    @property
    def usual(self) -> int:
        """Return the number in most steps; the last step of an epoch may accumulate fewer batches. 0: none was seen."""
        return Counter(self.of_rows).most_common(1)[0][0] if self.of_rows else 0

    def end_row(self) -> None:
        """Count those of a step that has a row of its own."""
        self.of_rows.append(self.count - self._at_row)
        self._at_row = self.count

    def end_step(self) -> None:
        """Begin the next step."""
        self.at_step = self.count
        self._replays_at_step = self.replays


class StepBatches:
    """The passes with batches for the running step, and those of the last row.

    samples_per_step: replaces counted samples, for loops without a DataLoader.
    pending: passes that yielded since the last step. trained: training passes of the last row.
    on_loop: called at the first step of each training pass. paused_at: number of steps when a pass last ended.
    skips: number of steps that GradScaler skipped.
    """

    def __init__(
        self, table: StepTable, phases: Phases, backwards: BackwardPasses, samples_per_step: int | None
    ) -> None:
        self._table = table
        self._phases = phases
        self._backwards = backwards
        self.samples_per_step = samples_per_step
        self.pending: list[Loop] = []
        self.trained: list[Loop] = []
        self.on_loop: Callable[[Loop], None] = lambda loop: None
        self.paused_at = -1
        self.skips = 0
        self._skipped = False

    def add(self, loop: Loop, size: int, left_out: int) -> None:
        """Add a batch of ``size`` indices, padding included, of which ``left_out`` did not arrive."""
        if self._skipped:
            self._discard()
        if loop.step != self._table.count:
            loop.begin_step(self._table.count)
        if not loop.batches:
            self.pending.append(loop)
            if not loop.stepped:
                loop.backwards_at_begin = loop.backwards_at_begin or self._backwards.count
        loop.add(size, left_out)

    def end_pass(self, loop: Loop) -> None:
        """Note that the pass is over; later batches of it count for no step."""
        if loop.living:
            loop.living = False
            self.paused_at = self._table.count
            if self._table.count and not loop.stepped:
                self._phases.end_pass(loop)
            loop.backwards_at_end = self._backwards.count

    def drop_remainders(self, optimizers: Iterable[Any]) -> None:
        """Drop the rest of a pass that is over if its gradients are gone, as the next one over its loader begins."""
        if len(self.pending) < 2 or self._backwards.count == self._backwards.at_step:
            return
        living = [loop for loop in self.pending if loop.living]
        rest = [loop for loop in self.pending if not loop.living and is_remainder(loop, living)]
        if rest and all(
            parameter.grad is None
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ):
            for loop in rest:
                loop.dropped = True

    def is_after_a_pass(self) -> bool:
        """Return True if a backward pass that begins now can only be for batches of a pass that is over."""
        return bool(self.pending) and not any(loop.living and not loop.without_grad for loop in self.pending)

    def skipped(self) -> None:
        """Note that GradScaler skipped a step. Another optimizer may still step on the same batches."""
        self._skipped = True
        self.skips += 1

    def _discard(self) -> None:
        """Discard the batches since the last step: no step trains on them."""
        loops = self.training()
        for loop in self.pending:
            self._take(loop, None) if loop in loops else loop.take()
            loop.batches = 0
        self.end_step()

    def training(self) -> list[Loop]:
        """Return the training passes of the running step."""
        return training(self.pending, self.samples_per_step is None)

    def drawn_ahead(self) -> list[Loop]:
        """Return the passes that are over and have batches that no step has used."""
        return [loop for loop in self.trained if loop.sizes and not loop.living]

    def count_samples(self, loops: Sequence[Loop]) -> tuple[int, int, float]:
        """Return the samples and padding that a row of these passes trains on, and its wait for data in seconds."""
        step, fixed = self._table.count, self.samples_per_step
        samples = padding = 0
        wait_s = 0.0
        for loop in loops:
            for real, filled in self._take(loop, step):
                samples += real
                padding += filled
            if loop.step == step:
                wait_s += loop.wait_s
            if not loop.stepped:
                loop.stepped = True
                self._phases.add_epoch(step + 1)
                self.on_loop(loop)
        for loop in self.pending:
            if loop not in loops:
                loop.take()
                wait_s += loop.wait_s if loop.dropped else 0.0
        return (samples, padding, wait_s) if fixed is None else (fixed, 0, wait_s)

    def drop_pending(self) -> None:
        """Drop the batches since the last step, which another optimizer's step does not train on."""
        for loop in self.pending:
            loop.take()

    def end_step(self) -> None:
        """Begin the next step."""
        self.pending = []
        self._skipped = False
        self._backwards.end_step()

    def _take(self, loop: Loop, row: int | None) -> list[tuple[int, int]]:
        """Take and return the batches of ``loop`` that this step trains on; row: None if the step was skipped."""
        backwards = self._backwards
        made = backwards.count - backwards.at_step
        fresh = loop.batches if loop.step == self._table.count else 0
        left = loop.ahead
        if not loop.living and left and (backwards.count > loop.backwards_at_end or not backwards.count):
            left = max(0, len(loop.sizes) - loop.each_step)
        elif loop.first is not None and fresh:
            left = self._find_ahead(loop, made, fresh)
        batches = loop.take(left)
        if not loop.stepped and fresh > 1:
            made = min(made, backwards.count - loop.backwards_at_begin)
            loop.first = (NEVER if row is None else row, made, batches)
        return batches

    def _find_ahead(self, loop: Loop, made: int, fresh: int) -> int:
        """Return how many batches are drawn ahead, from the pass's first two steps; remove them from the first row."""
        assert loop.first is not None
        row, made_first, first = loop.first
        loop.first = None
        used = fresh * made_first / made if made else float(fresh)
        ahead = len(first) - int(used)
        if ahead <= 0 or used != int(used) or (made_first and not made):
            return 0
        loop.ahead, loop.each_step = ahead, fresh
        for samples, padding in reversed(first[int(used) :]):
            loop.give_back(samples, padding)
            if row < self._table.count and self.samples_per_step is None:
                self._table.samples[row] -= samples
                self._table.padding_samples[row] -= padding
        return ahead
