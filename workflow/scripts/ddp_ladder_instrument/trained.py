"""Which batches are trained on: those that a backward pass followed whose gradients a step applied.

Batches of a pass wait in a queue. A backward pass takes as many as are usual for their loader in this run: the counts
of draws and of backward passes between two draws (a cycle) show the ratio, and show batches that are drawn ahead (the
passes that follow a loader's last batch). What waits beyond that was drawn and skipped. If no backward pass is seen in
the whole run (gradients computed in a way of their own), a step takes its place.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

LEAST_SHARE = 0.5  # of the backward passes of the loader that has most: a loader with less has none of its own
EVAL_MODE, NO_GRAD = 1, 2  # how a batch was drawn: adversarial examples and evaluations begin in eval mode, too
OUTSIDE, AFTER = -1, -2  # numbers of what owns the time of a loop without a DataLoader, and that after a pass


class Batch(NamedTuple):
    """A batch that waits for a backward pass."""

    size: int  # samples, with the sampler's padding
    left_out: int  # samples that did not arrive
    flag: int  # what speaks against its being trained on: EVAL_MODE, NO_GRAD or 0


class Pass:
    """One pass over a DataLoader: its batches that wait, and since the last row what it drew and the time it owns."""

    __slots__ = (
        "ahead", "batches", "before", "began_s", "between_steps", "carried_comm_s", "carried_s", "cycle_backwards",
        "cycle_draws", "drawn", "dropped", "epoch", "exhausted", "fresh", "is_beside", "living", "loader", "number",
        "place", "position", "queue", "real", "shown", "step", "stepped", "untrained", "wait_s",
    )  # fmt: skip

    def __init__(self, number: int, loader: int = -1, real: int = -1, began_s: float = 0.0) -> None:
        self.number, self.loader, self.began_s = number, loader, began_s
        self.real = real  # its samples that are no padding, which come first; -1: all, or unknown
        self.place, self.is_beside = -1, False  # what draws from it, and whether it never trains
        self.living, self.exhausted = True, False
        self.stepped = False  # a row trained on it
        self.before: Pass | None = None  # the pass that was active when this one was entered
        self.queue: deque[Batch] = deque()
        self.ahead: int | None = None  # batches that are drawn ahead; None: not known yet
        self.epoch = -1
        self.position = self.drawn = self.untrained = 0
        self.shown = 0  # draws of this cycle that are known to be ahead, or left out
        self.fresh = self.cycle_draws = self.cycle_backwards = 0
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Reset what belongs to a row; ``step`` counts from 0."""
        self.step = step
        self.batches = 0
        self.wait_s = self.carried_s = self.carried_comm_s = 0.0
        self.dropped = False
        self.between_steps = False  # its last batch was drawn in an eval mode that began between two steps

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
    """What is usual in a run, of the log so far, or of a whole one."""

    def __init__(self) -> None:
        self.backwards = 0  # passes
        self.parts: Counter[int] = Counter()  # of each loader the backward passes before which it drew
        self.cycles: dict[int, Counter[tuple[int, int]]] = {}  # of each loader (draws, backward passes until the next)
        self.ahead: dict[int, int] = {}  # of each pass the batches drawn ahead
        self.optimizers: set[int] = set()  # that have stepped
        self._modes: dict[int, tuple[int, int]] = {}  # of each loader the commonest cycle
        self._alike: dict[int, int] = {}  # cycles with as many draws as the commonest one
        self._all: Counter[int] = Counter()

    def add_cycle(self, loader: int, draws: int, backwards: int) -> None:
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

    def note_ahead(self, pass_: Pass) -> None:
        """Note how many batches a pass that is over had drawn ahead: the backward passes after its last batch tell."""
        if pass_.loader not in self._modes:
            self.add_cycle(pass_.loader, pass_.cycle_draws, pass_.cycle_backwards)
        draws, backwards = self._modes[pass_.loader]
        whole, rest = divmod(draws, backwards)
        used = pass_.cycle_backwards * whole if not rest else pass_.cycle_backwards // backwards * draws
        if used > draws or pass_.exhausted:
            self.ahead[pass_.number] = max(0, used - draws)


class TrainedBatches:
    """The batches of the running step that a backward pass used.

    usual: of the whole log, where it is known; else it is counted meanwhile (then the first cycles are a guess).
    """

    def __init__(self, usual: Usual | None) -> None:
        self.seen = Usual()
        self.usual = usual or self.seen
        self.taken: dict[Pass, tuple[int, int]] = {}  # samples and other indices, which the next step applies
        self.last: list[Pass] = []  # that the last backward pass trained on
        self.made = 0  # backward passes since the last step
        self.drawn = self.untrained = 0  # batches of passes that trained, and those of them that no step used
        # Places where the ratio of draws to backward passes is not the usual one and nothing shows which batches were
        # trained on (the size of the model's input, gradients that are off).
        self.unclear = 0
        self._zeroed: dict[Pass, tuple[int, int]] = {}
        self._zeroed_by: set[int] = set()
        self._open: list[Pass] = []  # with batches that wait
        self._flag = NO_GRAD  # of the batches that the last backward pass used
        self._fresh: list[Pass] = []  # that drew since the last backward pass
        self._forwards = 0  # since the last backward pass
        self._dimensions = -1, -1  # of the last one's input

    def draw(self, pass_: Pass, batch: Batch) -> None:
        if pass_.cycle_backwards:
            self.seen.add_cycle(pass_.loader, pass_.cycle_draws, pass_.cycle_backwards)
            if (pass_.cycle_draws - pass_.shown, pass_.cycle_backwards) != self.usual.cycle(pass_.loader):
                self.unclear += 1
            pass_.shown = pass_.cycle_draws = pass_.cycle_backwards = 0
        pass_.cycle_draws += 1
        pass_.fresh += 1
        pass_.drawn += 1
        self.drawn += pass_.stepped
        pass_.queue.append(batch)
        if pass_.fresh == 1:
            self._fresh.append(pass_)
            if len(pass_.queue) == 1:
                self._open.append(pass_)

    def forward(self, dimensions: tuple[int, int]) -> None:
        """The wrapped model is called with an input of these first two dimensions."""
        self._forwards += 1
        self._dimensions = dimensions

    def backward(self) -> None:
        self.made += 1
        self.seen.backwards += 1
        self._use_some()

    def _use_some(self) -> None:
        fresh = self._fresh
        is_usual = len(fresh) == 1 and fresh == self.last
        trained = fresh if is_usual else self._accepted(fresh) if fresh else self.last
        for pass_ in fresh:
            self.seen.parts[pass_.loader] += 1
        used = False
        for pass_ in trained:
            samples, others = self._use(pass_, len(trained) == 1)
            if samples + others:
                before = self.taken.get(pass_, (0, 0))
                self.taken[pass_] = before[0] + samples, before[1] + others
                used = True
            pass_.cycle_backwards += 1
        if not used and not self.taken and self._zeroed:  # the same batches again: a second gradient of them
            self.taken, self._zeroed = self._zeroed, {}
        self._forwards = 0
        for pass_ in fresh:
            pass_.fresh = 0
            if pass_ not in trained:
                self._discard(pass_)
        self._leave([pass_ for pass_ in self.last if pass_ not in trained])
        self._fresh, self.last = [], trained
        self._zeroed_by.clear()
        if self._open:
            self._open = [pass_ for pass_ in self._open if pass_.queue]

    def _leave(self, passes: list[Pass]) -> None:
        """Note what passes that are over show of batches that were drawn ahead; what still waits was not trained on."""
        for pass_ in passes:
            if not pass_.living:
                self.seen.note_ahead(pass_)
                self._end_last_cycle(pass_)
                self._discard(pass_)

    def _end_last_cycle(self, pass_: Pass) -> None:
        """Note if the backward passes after the last draw do not use what is left, at the usual ratio."""
        draws, backwards = self.usual.cycle(pass_.loader) or (1, 1)
        number = pass_.cycle_draws - pass_.shown
        is_whole = pass_.exhausted or number == draws
        number += (pass_.ahead or 0) * pass_.exhausted
        usual = backwards * -(-number // draws), backwards * number / draws
        self.unclear += pass_.cycle_backwards > 0 and not (is_whole and pass_.cycle_backwards in usual)

    def _accepted(self, fresh: list[Pass]) -> list[Pass]:
        """Return the passes among those that drew whose batches this backward pass is of."""
        living = {pass_.loader for pass_ in fresh if pass_.living}
        pool = [pass_ for pass_ in fresh if pass_.living or pass_.loader not in living]
        flags = {pass_: min(batch.flag for batch in pass_.queue) for pass_ in pool}
        least = min(flags.values())
        pool = [pass_ for pass_ in pool if flags[pass_] == least]
        parts = self.usual.parts
        most = max(parts[pass_.loader] for pass_ in pool)
        before = max((parts[pass_.loader] for pass_ in self.last), default=0)
        is_waiting = any(pass_.queue and not pass_.fresh for pass_ in self.last)
        if least and (most < LEAST_SHARE * before or is_waiting or least == NO_GRAD > self._flag):
            return self.last  # only a validation drew: the batches before it are used, or used again
        self._flag = least
        accepted = [pass_ for pass_ in pool if parts[pass_.loader] >= LEAST_SHARE * most]
        rare = [pass_ for pass_ in pool if parts[pass_.loader] < most and (pass_.living or pass_ in accepted)]
        self.unclear += bool(rare) or len({pass_.loader for pass_ in pool}) < len(pool)
        return accepted

    def _use(self, pass_: Pass, is_alone: bool) -> tuple[int, int]:
        """Take the batches of a pass that a backward pass uses; return their samples and other indices.

        is_alone: of this pass only.
        """
        cycle = self.usual.cycle(pass_.loader)
        draws, backwards = cycle or (pass_.fresh, 1)
        usual, shown = draws, 0  # what is trained on, by the size of the model's input
        if pass_.fresh:
            if cycle and not self.usual.is_regular(pass_.loader):
                draws, backwards = pass_.fresh, 1
            number = self._of_forward(pass_) if is_alone else 0
            if number and (
                backwards == 1 or number == pass_.fresh
            ):  # several backward passes are of all that was drawn
                draws, backwards, shown = number, 1, number
            if pass_.ahead is None:
                ahead = self.usual.ahead.get(pass_.number)
                pass_.ahead = max(0, len(pass_.queue) - draws) if ahead is None else ahead
                pass_.shown += pass_.ahead
                self.unclear += ahead is None and pass_.ahead > 0  # they may have been skipped as well
            self._skip(pass_, len(pass_.queue) - pass_.ahead - draws)
            if shown and not pass_.ahead:
                pass_.shown = pass_.cycle_draws - usual
        begins = pass_.cycle_backwards % backwards == 0
        number = min(draws // backwards if draws % backwards == 0 else draws * begins, len(pass_.queue))
        # One batch each, as of several that are drawn at once, is usual; gradients of one that are discarded are not.
        self.unclear += not shown and (number > 1 or (number == 1 < usual and bool(self._zeroed)))
        samples = others = 0
        for _ in range(number):
            size, left_out = pass_.take()
            samples += size
            others += left_out
        return samples, others

    def _of_forward(self, pass_: Pass) -> int:
        """Return how many of the batches that wait the model's only input was made of; 0: its size does not show it."""
        if self._forwards != 1 or pass_.fresh < 2:
            return 0
        total, wanted = 0, self._dimensions
        for number, batch in enumerate(reversed(pass_.queue), 1):
            total += batch.size - batch.left_out
            if total in wanted and total > 1:
                return number
        return 0

    def _skip(self, pass_: Pass, number: int) -> None:
        """Drop batches that were drawn and that no backward pass will use: flagged ones first, else the oldest."""
        for _ in range(number):
            flags = [batch.flag for batch in pass_.queue]
            pass_.shown += max(flags) == NO_GRAD
            self.unclear += max(flags) == EVAL_MODE  # a batch that is trained on may be drawn so, too
            pass_.take(flags.index(max(flags)))
            self._drop(pass_, 1)

    def _drop(self, pass_: Pass, number: int) -> None:
        pass_.untrained += number
        self.untrained += number * pass_.stepped

    def _discard(self, pass_: Pass) -> None:
        """Drop all batches of a pass that wait: the backward pass is not of them."""
        self._drop(pass_, len(pass_.queue))
        while pass_.queue:
            pass_.take()

    def zero(self, optimizer: int) -> None:
        """Gradients are discarded. optimizer: -1: of the whole model."""
        if not self.taken:
            return
        self._zeroed_by.add(optimizer)
        known = self.usual.optimizers
        if -1 in self._zeroed_by or (known and known <= self._zeroed_by):
            for pass_ in [pass_ for pass_ in self.taken if pass_.living or pass_.stepped]:
                self._zeroed[pass_] = self.taken.pop(pass_)
            self.unclear += bool(self.taken)  # of a pass without a step: were they copied, or thrown away?

    def discard_taken(self) -> list[Pass]:
        """Drop the batches since the last step, as GradScaler has skipped it; return their passes."""
        dropped = [*self.taken, *self._zeroed]
        for pass_ in dropped:
            self._drop(pass_, 1)
            pass_.batches = 0
            pass_.dropped = True
        self.taken, self._zeroed = {}, {}
        self.made = 0
        return dropped

    @property
    def waiting(self) -> int:
        """Return the number of batches, of passes that trained, that wait for a backward pass."""
        return sum(len(pass_.queue) for pass_ in self._open if pass_.stepped)

    def apply(self, optimizer: int) -> dict[Pass, tuple[int, int]]:
        """A step applies the gradients: return the samples and other indices of each pass that it trains on."""
        self.seen.optimizers.add(optimizer)
        if not self.usual.backwards and (self._fresh or self.last):  # gradients are computed in a way that is not seen
            self._use_some()
        taken, self.taken = self.taken, {}
        for pass_ in self._zeroed:
            pass_.dropped = True
            self._drop(pass_, 1)
        self._zeroed = {}
        return taken

    def is_first_step(self, pass_: Pass) -> bool:
        """Return True once: a step has trained on this pass, whose batches count from now on."""
        if pass_.stepped:
            return False
        pass_.stepped = True
        self.drawn += pass_.drawn
        self.untrained += pass_.untrained
        return True

    def whole(self) -> Usual:
        """Return what is usual, after the last event."""
        self._leave(self.last)
        return self.seen
