"""The batches of each step: which of those that passes yielded it trains on, and which are drawn ahead.

The samples of a step are those of the batches that its training passes yielded since the last step,
except batches drawn ahead and batches whose gradients are known to be lost: a step that GradScaler
skipped, or the rest of an epoch whose gradients were dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddp_ladder_instrument.gradients import BackwardPasses
from ddp_ladder_instrument.loops import NEVER, Loop, training
from ddp_ladder_instrument.phases import Phases
from ddp_ladder_instrument.step_table import StepTable


class StepBatches:
    """The passes with batches for the running step, and those of the last row.

    samples_per_step: replaces counted samples, for loops without a DataLoader.
    pending: passes that yielded since the last step. trained: training passes of the last row.
    on_loop: called at the first step of each training pass. paused_at: number of steps when a pass last ended.
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
        self._skipped = False

    def add(self, loop: Loop, size: int) -> None:
        """Add a batch of ``size`` samples, padding included."""
        if self._skipped:
            self._discard()
        if loop.step != self._table.count:
            loop.begin_step(self._table.count)
        if not loop.batches:
            self.pending.append(loop)
            if not loop.stepped:
                loop.backwards_at_begin = loop.backwards_at_begin or self._backwards.count
        loop.add(size)

    def end_pass(self, loop: Loop) -> None:
        """Note that the pass is over; later batches of it count for no step."""
        if loop.living:
            loop.living = False
            self.paused_at = self._table.count
            if self._table.count and not loop.stepped:
                self._phases.end_pass(loop)
            loop.backwards_at_end = self._backwards.count
            if loop.is_drawn(self._table.count):
                self._backwards.end_pass(loop)

    def end_others(self, loop: Loop) -> None:
        """End earlier passes over the same loader: an abandoned thread may keep its pass for ever."""
        loader = loop.loader()
        for other in self.trained:
            if other is not loop and other.given and other.loader() is loader is not None:
                self.end_pass(other)

    def skipped(self) -> None:
        """Note that GradScaler skipped a step. Another optimizer may still step on the same batches."""
        self._skipped = True

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
