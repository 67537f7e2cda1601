"""Which batches are trained on: those that a backward pass followed whose gradients a step applied.

Batches of a pass wait in a queue. A backward pass takes as many as are usual for their loader in this run: the counts
of draws and of backward passes between two draws (a cycle) show the ratio, and show batches that are drawn ahead (the
passes that follow a loader's last batch). What waits beyond that was drawn and skipped. If no backward pass is seen in
the whole run (gradients computed in a way of their own), a step takes its place.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple, Optional

LEAST_SHARE = (
    0.5  # of the backward passes, in relation to the loader that has most: a loader with less has none of its own
)
EVAL_MODE, NO_GRAD = 1, 2  # how a batch was drawn: adversarial examples and evaluations begin in eval mode, too
OUTSIDE, AFTER = -1, -2  # numbers of what owns the time of a loop without a DataLoader, and that after a pass


class Batch(NamedTuple):
    """A batch: samples with the sampler's padding, those that did not arrive; what speaks against it."""

    size: int
    left_out: int
    flag: int  # EVAL_MODE, NO_GRAD or 0


class Pass:
    """One pass over a DataLoader: its batches that wait, and since the last row what it drew and the time it owns.

    real: samples of it that are no padding, which come first. stepped: a row trained on it. before: the pass that was
    active when this one was entered. ahead: batches that are drawn ahead. shown: draws of this cycle that are known to
    be ahead, or left out. between_steps: its last batch was drawn in an
    eval mode that began after a step, before the next one's batch was drawn.
    """

    __slots__ = (
        "ahead", "batches", "before", "began_s", "between_steps", "carried_comm_s", "carried_s", "cycle_backwards",
        "cycle_draws", "drawn", "dropped", "epoch", "exhausted", "fresh", "living", "loader", "number", "position",
        "queue", "real", "shown", "step", "stepped", "untrained", "wait_s",
    )  # fmt: skip

    def __init__(self, number: int, loader: int = -1, real: int = -1, began_s: float = 0.0) -> None:
        self.number, self.loader, self.real, self.began_s = number, loader, real, began_s
        self.living, self.stepped, self.exhausted = True, False, False
        self.before: Optional[Pass] = None
        self.queue: deque[Batch] = deque()
        self.ahead: Optional[int] = None
        self.epoch = -1
        self.position = self.drawn = self.untrained = 0
        self.fresh = self.shown = self.cycle_draws = self.cycle_backwards = 0
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Reset what belongs to a row; ``step`` counts from 0."""
        self.step = step
        self.batches = 0
        self.wait_s = self.carried_s = self.carried_comm_s = 0.0
        self.between_steps = self.dropped = False

    def is_drawn(self, step: int) -> bool:
        """Return True if it yielded a batch for this step."""
        return self.step == step and self.batches > 0

    def take(self, index: int = 0) -> tuple[int, int]:
        """Remove a batch that waits; return its samples and its other indices (padding, and what did not arrive)."""
        size, left_out, _ = self.queue[index]
        del self.queue[index]
        self.position += size
        padding = min(max(self.position - self.real, 0), size) if self.real >= 0 else 0
        others = min(padding + left_out, size)
        return size - others, others


class Usual:
    """What is usual in a run, of the log so far, or of a whole one.

    backwards: the number of backward passes. parts: of each loader the backward passes before which it drew. cycles: of
    each loader the pairs (draws, backward passes until the next draw). ahead: of each pass, the batches drawn ahead.
    optimizers: those that have stepped.
    """

    def __init__(self) -> None:
        self.backwards = 0
        self.parts: Counter[int] = Counter()
        self.cycles: dict[int, Counter[tuple[int, int]]] = {}
        self.ahead: dict[int, int] = {}
        self.optimizers: set[int] = set()
        self._modes: dict[int, tuple[int, int]] = {}
        self._alike: dict[int, int] = {}  # cycles with as many draws as the commonest one
        self._all: Counter[int] = Counter()

    def add_cycle(self, loader: int, draws: int, backwards: int) -> None:
        """Count a cycle."""
        counts = self.cycles.setdefault(loader, Counter())
        counts[draws, backwards] += 1
        self._all[loader] += 1
        known = self._modes.get(loader, (0, 0))
        # Of two that are equally common, that with more draws is of batches drawn ahead, or skipped.
        if known == (draws, backwards) or (counts[draws, backwards], -draws) <= (counts[known], -known[0]):
            self._alike[loader] += draws == known[0]
            return
        self._modes[loader] = draws, backwards
        self._alike[loader] = sum(number for cycle, number in counts.items() if cycle[0] == draws)

    def cycle(self, loader: int) -> tuple[int, int] | None:
        """Return the commonest cycle; None before the first one is over."""
        return self._modes.get(loader)

    def is_regular(self, loader: int) -> bool:
        """Return True if the commonest number of draws is that of half of the cycles or more."""
        return 2 * self._alike[loader] >= self._all[loader]

    def note_ahead(self, each: Pass) -> None:
        """Note how many batches a pass that is over had drawn ahead: the backward passes after its last batch tell."""
        if each.loader not in self._modes:
            self.add_cycle(each.loader, each.cycle_draws, each.cycle_backwards)
        draws, backwards = self._modes[each.loader]
        whole, rest = divmod(draws, backwards)
        used = each.cycle_backwards * whole if not rest else each.cycle_backwards // backwards * draws
        if used > draws or each.exhausted:
            self.ahead[each.number] = max(0, used - draws)


class TrainedBatches:
    """The batches of the running step that a backward pass used.

    usual: of the whole log, where it is known; else it is counted meanwhile (then the first cycles are a guess).
    last: the passes that the last backward pass trained on. taken: of each pass the samples and other indices, which
    the next step applies. drawn, untrained: batches of passes that trained, and those of them that no step used.
    unclear: places where the ratio of draws to backward passes is not the usual one and nothing shows which batches
    were trained on (the size of the model's input, gradients that are off).
    """

    def __init__(self, usual: Usual | None) -> None:
        self.seen = Usual()
        self.usual = usual or self.seen
        self.taken: dict[Pass, tuple[int, int]] = {}
        self.last: list[Pass] = []
        self.made = 0  # backward passes since the last step
        self.drawn = self.untrained = self.unclear = 0
        self._zeroed: dict[Pass, tuple[int, int]] = {}
        self._zeroed_by: set[int] = set()
        self._open: list[Pass] = []  # with batches that wait
        self._flag = NO_GRAD  # of the batches that the last backward pass used
        self._fresh: list[Pass] = []  # that drew since the last backward pass
        self._forwards = 0  # since the last backward pass
        self._dimensions = -1, -1  # of the last one's input

    @property
    def is_seen(self) -> bool:
        """True if a gradient may have been computed since the last step."""
        return self.made > 0

    def draw(self, each: Pass, batch: Batch) -> None:
        """A pass yields a batch."""
        if each.cycle_backwards:
            self.seen.add_cycle(each.loader, each.cycle_draws, each.cycle_backwards)
            if (each.cycle_draws - each.shown, each.cycle_backwards) != self.usual.cycle(each.loader):
                self.unclear += 1
            each.shown = each.cycle_draws = each.cycle_backwards = 0
        each.cycle_draws += 1
        each.fresh += 1
        each.drawn += 1
        self.drawn += each.stepped
        each.queue.append(batch)
        if each.fresh == 1:
            self._fresh.append(each)
            if len(each.queue) == 1:
                self._open.append(each)

    def forward(self, dimensions: tuple[int, int]) -> None:
        """The wrapped model is called with an input of these first two dimensions."""
        self._forwards += 1
        self._dimensions = dimensions

    def backward(self) -> None:
        """A backward pass uses batches."""
        self.made += 1
        self.seen.backwards += 1
        self._use_some()

    def _use_some(self) -> None:
        fresh = self._fresh
        is_usual = len(fresh) == 1 and fresh == self.last
        trained = fresh if is_usual else self._accepted(fresh) if fresh else self.last
        for each in fresh:
            self.seen.parts[each.loader] += 1
        used = False
        for each in trained:
            samples, others = self._use(each, len(trained) == 1)
            if samples + others:
                before = self.taken.get(each, (0, 0))
                self.taken[each] = before[0] + samples, before[1] + others
                used = True
            each.cycle_backwards += 1
        if not used and not self.taken and self._zeroed:  # the same batches again: a second gradient of them
            self.taken, self._zeroed = self._zeroed, {}
        self._forwards = 0
        for each in fresh:
            each.fresh = 0
            if each not in trained:
                self._discard(each)
        self._leave([each for each in self.last if each not in trained])
        self._fresh, self.last = [], trained
        self._zeroed_by.clear()
        if self._open:
            self._open = [each for each in self._open if each.queue]

    def _leave(self, passes: list[Pass]) -> None:
        """Note what passes that are over show of batches that were drawn ahead; what still waits was not trained on."""
        for each in passes:
            if not each.living:
                self.seen.note_ahead(each)
                self._end_last_cycle(each)
                self._discard(each)

    def _end_last_cycle(self, each: Pass) -> None:
        """Note if the backward passes after the last draw do not use what is left, at the usual ratio."""
        draws, backwards = self.usual.cycle(each.loader) or (1, 1)
        number = each.cycle_draws - each.shown
        is_whole = each.exhausted or number == draws
        number += (each.ahead or 0) * each.exhausted
        usual = backwards * -(-number // draws), backwards * number / draws
        self.unclear += each.cycle_backwards > 0 and not (is_whole and each.cycle_backwards in usual)

    def _accepted(self, fresh: list[Pass]) -> list[Pass]:
        """Return the passes among those that drew whose batches this backward pass is of."""
        living = {each.loader for each in fresh if each.living}
        pool = [each for each in fresh if each.living or each.loader not in living]
        flags = {each: min(batch.flag for batch in each.queue) for each in pool}
        least = min(flags.values())
        pool = [each for each in pool if flags[each] == least]
        parts = self.usual.parts
        most = max(parts[each.loader] for each in pool)
        before = max((parts[each.loader] for each in self.last), default=0)
        is_waiting = any(each.queue and not each.fresh for each in self.last)
        if least and (most < LEAST_SHARE * before or is_waiting or least == NO_GRAD > self._flag):
            return self.last  # only a validation drew: the batches before it are used, or used again
        self._flag = least
        accepted = [each for each in pool if parts[each.loader] >= LEAST_SHARE * most]
        rare = [each for each in pool if parts[each.loader] < most and (each.living or each in accepted)]
        self.unclear += bool(rare) or len({each.loader for each in pool}) < len(pool)
        return accepted

    def _use(self, each: Pass, is_alone: bool) -> tuple[int, int]:
        """Take the batches of a pass that a backward pass uses; return their samples and other indices.

        is_alone: of this pass only.
        """
        cycle = self.usual.cycle(each.loader)
        draws, backwards = cycle or (each.fresh, 1)
        usual, shown = draws, 0  # what is trained on, by the size of the model's input
        if each.fresh:
            if cycle and not self.usual.is_regular(each.loader):
                draws, backwards = each.fresh, 1
            number = self._of_forward(each) if is_alone else 0
            if number and (backwards == 1 or number == each.fresh):  # several backward passes are of all that was drawn
                draws, backwards, shown = number, 1, number
            if each.ahead is None:
                ahead = self.usual.ahead.get(each.number)
                each.ahead = max(0, len(each.queue) - draws) if ahead is None else ahead
                each.shown += each.ahead
                self.unclear += ahead is None and each.ahead > 0  # they may have been skipped as well
            self._skip(each, len(each.queue) - each.ahead - draws)
            if shown and not each.ahead:
                each.shown = each.cycle_draws - usual
        begins = each.cycle_backwards % backwards == 0
        number = min(draws // backwards if draws % backwards == 0 else draws * begins, len(each.queue))
        # One batch each, as of several that are drawn at once, is usual; gradients of one that are discarded are not.
        self.unclear += not shown and (number > 1 or (number == 1 < usual and bool(self._zeroed)))
        samples = others = 0
        for _ in range(number):
            one = each.take()
            samples += one[0]
            others += one[1]
        return samples, others

    def _of_forward(self, each: Pass) -> int:
        """Return how many of the batches that wait the model's only input was made of; 0: its size does not show it."""
        if self._forwards != 1 or each.fresh < 2:
            return 0
        total, wanted = 0, self._dimensions
        for number, batch in enumerate(reversed(each.queue), 1):
            total += batch.size - batch.left_out
            if total in wanted and total > 1:
                return number
        return 0

    def _skip(self, each: Pass, number: int) -> None:
        """Drop batches that were drawn and that no backward pass will use: flagged ones first, else the oldest."""
        for _ in range(number):
            flags = [batch.flag for batch in each.queue]
            each.shown += max(flags) == NO_GRAD
            self.unclear += max(flags) == EVAL_MODE  # a batch that is trained on may be drawn so, too
            each.take(flags.index(max(flags)))
            self._drop(each, 1)

    def _drop(self, each: Pass, number: int) -> None:
        each.untrained += number
        self.untrained += number * each.stepped

    def _discard(self, each: Pass) -> None:
        """Drop all batches of a pass that wait: the backward pass is not of them."""
        self._drop(each, len(each.queue))
        while each.queue:
            each.take()

    def zero(self, optimizer: int) -> None:
        """Gradients are discarded. optimizer: -1: of the whole model."""
        if not self.taken:
            return
        self._zeroed_by.add(optimizer)
        known = self.usual.optimizers
        if -1 in self._zeroed_by or (known and known <= self._zeroed_by):
            for each in [each for each in self.taken if each.living or each.stepped]:
                self._zeroed[each] = self.taken.pop(each)
            self.unclear += bool(self.taken)  # of a pass without a step: were they copied, or thrown away?

    def discard_taken(self) -> list[Pass]:
        """Drop the batches since the last step, as GradScaler has skipped it; return their passes."""
        dropped = [*self.taken, *self._zeroed]
        for each in dropped:
            self._drop(each, 1)
            each.batches = 0
            each.dropped = True
        self.taken, self._zeroed = {}, {}
        self.made = 0
        return dropped

    @property
    def waiting(self) -> int:
        """Return the number of batches, of passes that trained, that wait for a backward pass."""
        return sum(len(each.queue) for each in self._open if each.stepped)

    def apply(self, optimizer: int) -> dict[Pass, tuple[int, int]]:
        """A step applies the gradients: return the samples and other indices of each pass that it trains on."""
        self.seen.optimizers.add(optimizer)
        if not self.usual.backwards and (self._fresh or self.last):  # gradients are computed in a way that is not seen
            self._use_some()
        taken, self.taken = self.taken, {}
        for each in self._zeroed:
            each.dropped = True
            self._drop(each, 1)
        self._zeroed = {}
        return taken

    def is_first_step(self, each: Pass) -> bool:
        """Return True once: a step has trained on this pass, whose batches count from now on."""
        if each.stepped:
            return False
        each.stepped = True
        self.drawn += each.drawn
        self.untrained += each.untrained
        return True

    def end_step(self) -> None:
        """Begin the next step."""
        self.made = 0

    def end_pass(self, each: Pass, exhausted: bool) -> None:
        """A pass is over."""
        each.living, each.exhausted = False, exhausted

    def whole(self) -> Usual:
        """Return what is usual, after the last event."""
        self._leave(self.last)
        return self.seen
