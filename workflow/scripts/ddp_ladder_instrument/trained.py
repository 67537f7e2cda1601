"""Which batches are trained on: those drawn since the last backward pass, once a step applies the gradients.

Rules of the form of a loop, for runs that no witness has followed, and checked by it where one has. They are plain:

- A backward pass is of what was drawn since the last one; if nothing was, it is one more of the same batches.
- What was drawn in eval mode or with gradients off is validation, unless nothing else was drawn.
- Of several places that draw, those train that have trained before; of several passes, those that go on.
- A step applies the gradients that no zero_grad has discarded. If no backward pass is ever seen (gradients computed in
  a way of their own), a step takes its place.

Where another loop would look the same, that is a doubt: more batches than backward passes, joined or skipped; a place
that draws for some of the backward passes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

MOST_AHEAD = 4
"""Batches that a prefetcher draws before the first step of a pass; the last steps of the pass have none."""
OUTSIDE, AFTER = -1, -2  # numbers of what owns the time of a loop without a DataLoader, and that after a pass


class Drawn(NamedTuple):
    """Batches: their number, samples and other indices (the sampler's padding, and what did not arrive)."""

    batches: int = 0
    samples: int = 0
    others: int = 0

    def plus(self, more: Drawn) -> Drawn:
        return Drawn(self.batches + more.batches, self.samples + more.samples, self.others + more.others)


NOTHING = Drawn()


class Pass:
    """One pass over a DataLoader: its batches that wait, and since the last row what it drew and the time it owns.

    place: the number of what draws; before that is known, and in logs of earlier versions, one of the loader.
    """

    __slots__ = (
        "ahead", "aside", "batches", "before", "began_s", "between_steps", "carried_comm_s", "carried_s", "drawn",
        "dropped", "epoch", "exhausted", "is_beside", "living", "loader", "number", "place", "position", "real", "row",
        "step", "stepped", "untrained", "wait_s", "waiting",
    )  # fmt: skip

    def __init__(self, number: int, loader: int = -1, real: int = -1, began_s: float = 0.0, row: int = -1) -> None:
        self.number, self.loader, self.began_s = number, loader, began_s
        self.row = row  # that it began in
        self.real = real  # its samples that are no padding, which come first; -1: all, or unknown
        self.place, self.is_beside = -2 - loader, False  # what draws from it, and whether it never trains
        self.living, self.exhausted = True, False
        self.stepped = False  # a row trained on it
        self.before: Pass | None = None  # the pass that was active when this one was entered
        self.waiting = self.aside = NOTHING  # since the last backward pass; aside: without gradients or in eval mode
        self.ahead = 0  # batches that its first step has counted for its last ones
        self.epoch = -1
        self.position = self.drawn = self.untrained = 0
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

    def draw(self, size: int, left_out: int, is_aside: bool) -> None:
        """Add a batch. size: samples, with the sampler's padding; left_out: of these, what did not arrive."""
        self.drawn += 1
        self.position += size
        padding = min(max(self.position - self.real, 0), size) if self.real >= 0 else 0
        others = min(padding + left_out, size)
        batch = Drawn(1, size - others, others)
        if is_aside:
            self.aside = self.aside.plus(batch)
        else:
            self.waiting = self.waiting.plus(batch)


class TrainedBatches:
    """The batches of the running step that a backward pass used.

    taken: what the next step applies, by pass. last: passes of the last backward pass. made: backward passes since the
    last step. uses_ahead: the last backward pass was of a batch that had been drawn ahead. drawn, untrained: batches of
    passes that trained, and those of them that no step used.
    """

    def __init__(self) -> None:
        self.taken: dict[Pass, Drawn] = {}
        self.last: list[Pass] = []
        self.made = self.drawn = self.untrained = 0
        self._doubts = 0
        self._fresh: list[Pass] = []  # that drew since the last backward pass, the last one last
        self._is_seen = False  # a backward pass
        self.uses_ahead = False
        self._places: set[int] = set()  # that have trained
        self._newest: dict[int, Pass] = {}  # of each place, the pass that began to train last
        self._alone, self._together = Counter[int](), Counter[int]()  # of each place: backward passes that it drew for
        self._was_left_out = False  # a pass, at the last backward pass: once in a while, it is validation
        self._surplus = self._idle = 0  # since the last step: batches beyond one, and backward passes without any
        self._repeats = False  # some backward passes are further ones of the same batches
        self._thrown_by: set[int] = set()  # optimizers that have discarded the gradients since
        self._optimizers: set[int] = set()  # that have stepped

    @property
    def unclear(self) -> int:
        """Return the number of backward passes and steps for which it does not show what they trained on."""
        skipped = sum(each.ahead for each in self._newest.values() if each.exhausted)
        return self._doubts + skipped + sum(min(self._alone[place], few) for place, few in self._together.items())

    @property
    def waiting(self) -> int:
        """Return the number of batches, of passes that trained, that wait for a backward pass."""
        return sum(each.waiting.batches + each.aside.batches for each in self._fresh if each.stepped)

    def draw(self, pass_: Pass, size: int, left_out: int, is_aside: bool) -> None:
        """Add a batch. is_aside: drawn with gradients off, or in eval mode."""
        self.drawn += pass_.stepped
        pass_.draw(size, left_out, is_aside)
        fresh = self._fresh
        if not fresh or fresh[-1] is not pass_:
            if pass_ in fresh:
                fresh.remove(pass_)
            fresh.append(pass_)

    def backward(self) -> None:
        self.made += 1
        self._is_seen = True
        self._use()

    def _use(self) -> None:
        """Take what was drawn since the last backward pass."""
        fresh, self._fresh = self._fresh, []
        used = self._used(fresh)
        if used and self._are_thrown():
            self._drop_taken()
        self._thrown_by.clear()
        self.uses_ahead = not used and self._is_ahead()
        self._idle += not (used or self.uses_ahead)
        for pass_ in fresh:
            taken = (pass_.waiting if pass_.waiting.batches else pass_.aside) if pass_ in used else NOTHING
            if taken.batches:
                self.taken[pass_] = self.taken.get(pass_, NOTHING).plus(taken)
                self._surplus += taken.batches
            self._drop(pass_, pass_.waiting.batches + pass_.aside.batches - taken.batches)
            pass_.waiting = pass_.aside = NOTHING
        self._surplus -= len({pass_.loader for pass_ in used})
        self.last = used or self.last

    def _used(self, fresh: list[Pass]) -> list[Pass]:
        """Return the passes among those that drew whose batches a backward pass is of.

        Of several, those whose place has trained before; of these, those that go on; of these, those that drew in
        training mode. A new place begins to train in training mode, and unless it is over while the last one goes on.
        """
        if not fresh:
            return []
        clear = [each for each in fresh if each.waiting.batches]
        trains = [each for each in fresh if each.place in self._places or each in self.last]
        goes_on = any(each.living for each in self.last)
        begin = [each for each in clear if each.living or not goes_on] or ([] if self.last else fresh)
        pool = trains or begin
        living = [each for each in pool if each.living] or pool
        used = [each for each in living if each.waiting.batches] or (living if trains else living[-1:])
        left_out = [each for each in clear if each not in used]
        self._doubts += (self._was_left_out and bool(left_out)) or (len(living) > len(used) and not clear)
        self._was_left_out = bool(left_out)
        places = {each.place for each in used}
        (self._together if len(places) > 1 else self._alone).update(places)
        return used

    def _is_ahead(self) -> bool:
        """Return True, once for each, if a backward pass without a new batch is of one that was drawn ahead."""
        ahead = [each for each in self.last if each.exhausted and each.ahead]
        for pass_ in ahead:
            pass_.ahead -= 1
        return bool(ahead)

    def _drop(self, pass_: Pass, batches: int) -> None:
        pass_.untrained += batches
        self.untrained += batches * pass_.stepped

    def _drop_taken(self) -> None:
        for pass_, taken in self.taken.items():
            self._drop(pass_, taken.batches)
            pass_.dropped = True
            self._doubts += not (pass_.living or pass_.stepped)  # were the gradients of a whole pass kept elsewhere?
        self.taken = {}

    def _are_thrown(self) -> bool:
        """Return True if the gradients since the last step are discarded, of all optimizers."""
        return bool(self._thrown_by) and (-1 in self._thrown_by or self._optimizers <= self._thrown_by)

    def zero(self, optimizer: int) -> None:
        """Gradients are discarded. optimizer: -1: of the whole model."""
        if self.taken:
            self._thrown_by.add(optimizer)

    def discard_taken(self) -> list[Pass]:
        """Drop the batches since the last step, as GradScaler has skipped it; return their passes."""
        dropped = [*self.taken]
        self._drop_taken()
        for pass_ in dropped:
            pass_.batches = 0
        self._thrown_by.clear()
        self.made = self._surplus = self._idle = 0
        return dropped

    def apply(self, optimizer: int) -> dict[Pass, Drawn]:
        """A step applies the gradients: return what it trains on."""
        self._optimizers.add(optimizer)
        if not self._is_seen and (self._fresh or self.last):  # gradients are computed in a way that is not seen
            self._use()
        self._thrown_by.clear()
        taken, self.taken = self.taken, {}
        self._places.update(pass_.place for pass_ in taken)
        self._compare(taken)
        return taken

    def _compare(self, taken: Collection[Pass]) -> None:
        """Note a doubt if a step has several batches for a backward pass: were they joined, or some skipped?"""
        surplus, idle = self._surplus, self._idle
        self._surplus = self._idle = 0
        if surplus > idle and surplus <= MOST_AHEAD and not any(pass_.stepped for pass_ in taken):
            for pass_ in taken:
                pass_.ahead = surplus
            return
        self._repeats = self._repeats or (idle > 0 and not surplus)
        self._doubts += surplus > 0 and (surplus != idle or self._repeats)

    def is_first_step(self, pass_: Pass) -> bool:
        """Return True once: a step has trained on this pass, whose batches count from now on."""
        if pass_.stepped:
            return False
        before = self._newest.get(pass_.place)
        self._doubts += before.ahead if before is not None else 0  # not used by its last steps: skipped or left behind
        self._newest[pass_.place] = pass_
        pass_.stepped = True
        self.drawn += pass_.drawn
        self.untrained += pass_.untrained
        return True
