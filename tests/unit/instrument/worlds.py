"""Training loops whose truth is known: a script on a simulated clock writes the events that the hooks would write.

A batch is trained if a backward pass used it and a step applied that gradient. A step's seconds are those of the loop's
own stopwatch (tests/scripts/tally.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import Log
from ddp_ladder_instrument.places import Place
from ddp_ladder_instrument.testimony import Drawn, Step, content, training_steps

WAIT_S, FORWARD_S, BACKWARD_S, STEP_S, VALIDATION_S, PAUSE_S = 0.5, 0.25, 1.0, 0.125, 64.0, 1024.0


def place(number: int) -> Place:
    """Return where the script draws from the loader of this number."""
    return f"train.py:{number}", "0a1b2c3d"


class Batch(NamedTuple):
    number: int
    size: int
    padding: int


class Loader:
    """A DataLoader: the sizes of its batches; real: samples that are no padding, -1: all or unknown."""

    def __init__(self, script: Script, sizes: list[int], real: int = -1) -> None:
        self.script, self.sizes, self.real = script, sizes, real
        self.number = script.loaders
        script.loaders += 1

    def __iter__(self) -> Drawing:
        return Drawing(self)


class Drawing:
    """The iterator of a loader. A dropped one ends at once, as Python frees it."""

    def __init__(self, loader: Loader) -> None:
        self.script, self._sizes, self._real = loader.script, iter(loader.sizes), loader.real
        self.script.passes += 1
        self._number, self._place, self._position, self._living = self.script.passes, loader.number, 0, True
        self.script.begun.append(self._number)
        self.script.add(log.PASS, self._number, loader.number, loader.real)
        self.script.add(log.MADE, self._number, seconds=WAIT_S / 4)

    def __iter__(self) -> Drawing:
        return self

    def __next__(self) -> Batch:
        script, size = self.script, next(self._sizes, None)
        if size is None:
            self._end(1)
            raise StopIteration
        if not self._position:
            script.add(log.PLACE, self._number, self._place)
        kind = log.DRAW if script.grad else log.DRAW_NO_GRAD
        script.add(kind, self._number, size, c=log.NO_MARK, seconds=WAIT_S)
        self._position += size
        script.batches += 1
        script.drawn.append(Drawn(self._number, place(self._place), size))
        padding = min(max(self._position - self._real, 0), size) if self._real >= 0 else 0
        return Batch(script.batches, size, padding)

    def _end(self, exhausted: int) -> None:
        if self._living:
            self._living = False
            self.script.add(log.END, self._number, exhausted)

    def __del__(self) -> None:
        self._end(0)


class Script:
    """What a training script does, seen from the hooks; and its own tally."""

    def __init__(self, wrapped: bool = True, visible: bool = True) -> None:
        self.log, self.now_s = Log(), 0.0
        self.wrapped, self.visible = wrapped, visible  # forward, backward passes are seen
        self.grad = True
        self.loaders = self.passes = self.batches = 0
        self.begun: list[int] = []
        self.is_over = self._evaluating = False
        self.is_ambiguous = False
        self._stepped: set[int] = set()
        self.rows: list[tuple[int, int]] = []  # samples and padding of each step
        self.seconds: list[float | None] = []  # of each step; None: its stopwatch was ambiguous
        self.gradients: dict[int, dict[int, Batch]] = {}
        self._trained: set[int] = set()
        self._kept: dict[int, Batch] = {}
        self.drawn: list[Drawn] = []
        self.steps: list[Step] = []  # those of the loop
        self._pending: list[Batch] = []
        self._since_s: float | None = None
        self._spent_s = 0.0
        self.add(log.RANK, 0, 1e9, log.FORMAT)

    def add(self, kind: int, thing: int = 0, a: float = 0, b: float = 0, c: float = 0, seconds: float = 0.0) -> None:
        if not self.is_over:
            begin_s, self.now_s = self.now_s, self.now_s + seconds
            self.log.rows.extend((kind, begin_s, self.now_s, thing, a, b, c))

    # The stopwatch

    def start(self) -> None:
        self._since_s = self.now_s

    def stop(self) -> None:
        if self._since_s is not None:
            self._spent_s += self.now_s - self._since_s
        self._since_s = None

    def leave_epoch(self) -> None:
        self._since_s, self._spent_s = None, 0.0

    # The training

    def forward(self, batches: Iterable[Batch]) -> None:
        self.now_s += FORWARD_S
        if self.wrapped:
            self.add(log.FORWARD, 1, 0, 0, log.SENDS if self.grad else log.NO_GRAD)

    def backward(self, batches: Iterable[Batch], optimizers: Iterable[int] = (0,)) -> None:
        if self.visible:
            self.add(log.BACKWARD, seconds=BACKWARD_S)
        else:
            self.now_s += BACKWARD_S
        for optimizer in optimizers:
            self.gradients.setdefault(optimizer, {}).update((batch.number, batch) for batch in batches)

    def gradient(self, batches: Iterable[Batch], optimizers: Iterable[int] = (0,)) -> None:
        self.forward(batches)
        self.backward(batches, optimizers)

    def zero(self, optimizer: int = 0) -> None:
        self.add(log.ZERO, optimizer)
        self.gradients[optimizer] = {}

    def keep_gradient(self) -> None:
        """The script copies the gradient, and the next steps apply it."""
        self._kept = self.gradients.get(0, {})

    def _apply(self, optimizer: int) -> None:
        kept, self._kept = self._kept, {}
        for batch in [*kept.values(), *self.gradients.get(optimizer, {}).values()]:
            if batch.number not in self._trained:
                self._trained.add(batch.number)
                self._pending.append(batch)
        self._stepped.add(optimizer)
        self._evaluating = False

    def step(self, optimizer: int = 0) -> None:
        self.now_s += STEP_S
        for begun in self.begun:
            self.add(log.EPOCH, begun, -1)
        self.begun.clear()
        self.add(log.STEP, optimizer)
        self._apply(optimizer)

    def skip_step(self) -> None:
        """GradScaler finds gradients that are not finite."""
        self.add(log.SKIP)

    def row(self) -> None:
        """End a step of the loop."""
        size, padding = (sum(batch[k] for batch in self._pending) for k in (1, 2))
        self.rows.append((size - padding, padding))
        self.steps.append(Step(0, {batch.number - 1: float(batch.size) for batch in self._pending}, frozenset()))
        self._pending.clear()
        known = self._since_s is not None and not self.is_ambiguous
        self.seconds.append(self._spent_s + self.now_s - (self._since_s or 0.0) if known else None)
        self._spent_s, self._since_s, self.is_ambiguous = 0.0, self.now_s, False

    def testimony(self) -> dict[str, Any]:
        """Return what a witness sees of the loop."""
        told = content(self.drawn, self.steps, training_steps(self.drawn, self.steps), {}, {})
        return cast("dict[str, Any]", json.loads(json.dumps(told)))

    def places(self) -> list[Place]:
        return [*map(place, range(self.loaders))]

    def capture(self, optimizer: int = 0) -> None:
        self.add(log.CAPTURE, -1)
        self.add(log.CAPTURE, optimizer)

    def replay(self, batches: Iterable[Batch], optimizer: int = 0) -> None:
        """A CUDA graph with forward pass, backward pass and step. The first one of a graph follows its capture."""
        self.add(log.REPLAY, 0, seconds=BACKWARD_S)
        self.gradients[optimizer] = {batch.number: batch for batch in batches}
        self._apply(optimizer)

    # Modes

    def eval(self) -> None:
        """Only a model that is trained as a whole is known: one whose optimizer has stepped."""
        if self._stepped and not self._evaluating:
            self._evaluating = True
            self.add(log.EVAL)

    def train(self) -> None:
        if self._evaluating:
            self._evaluating = False
            self.add(log.TRAIN)

    def over(self) -> Log:
        self.add(log.OVER)
        self.is_over = True
        return self.log


class EarlyEndError(Exception):
    """The script ends in the middle of a pass."""


@dataclass(frozen=True)
class World:
    """How a loop is made. Numbers of batches count from the beginning of the run."""

    count: int = 4  # batches of an epoch
    size: int = 4  # of a batch
    last: int = 0  # size of an epoch's last batch; 0: as the others
    padding: int = 0  # samples at the end of an epoch
    epochs: int = 2
    source: str = "plain"  # how batches come from the loader
    second: str = ""  # how they come from a second loader
    second_size: int = 3
    ahead: int = 0  # batches that are drawn ahead
    stop_at: int = 3  # of an epoch, for the sources that stop
    group: int = 1  # draws that are concatenated
    buffer: int = 1  # items that are drawn before their steps follow
    body: str = "plain"  # what is done with an item
    times: int = 2  # how often
    accumulate: int = 1  # items of a step
    remainder: str = "stepped"  # what becomes of the items after the last whole step
    zero: str = "before"  # where gradients are discarded
    skip_at: str = ""  # where an item is skipped
    skips: int = 0  # which items in a row of ten are: one in 10 bits
    scaler: int = 0  # which steps GradScaler skips, likewise
    validate: str = ""  # where
    val_every: int = 2
    val_grad: bool = False
    val_eval: bool = True
    val_data: str = "loader"
    val_ahead: int = 0
    late_train: bool = False
    eval_training: str = ""
    warm_step: bool = False
    ends_at: int = -1  # the item at which the script ends; -1: none
    fails: bool = False  # ends_at is a step, at which it fails
    wrapped: bool = True
    visible: bool = True


def bit(pattern: int, index: int) -> bool:
    return bool(pattern >> (index % 10) & 1)


def ahead_of(batches: Iterable[Batch], depth: int) -> Iterator[Batch]:
    """A prefetcher: it draws so many batches before it gives the first one; at the end it drains."""
    queue: list[Batch] = []
    for batch in batches:
        queue.append(batch)
        if len(queue) > depth:
            yield queue.pop(0)
    yield from queue


class Loop:
    """Runs a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.script = script = Script(world.wrapped, world.visible)
        sizes = [world.size] * world.count
        if world.last:
            sizes[-1] = world.last
        self.loader = Loader(script, sizes, sum(sizes) - world.padding if world.padding else -1)
        self.second = Loader(script, [world.second_size] * (world.count + 1))
        self.validation = Loader(script, [17, 17, 9])
        self.optimizers = {"gan": [0, 1], "layers": [*range(world.times)]}.get(world.body, [0])
        self.items = self.steps = self.of_epoch = 0
        self.gathered = 0  # items of the running accumulation
        self.is_captured = False
        self.computed = False  # a gradient since the last step
        self.endless: dict[int, Drawing] = {}

    def run(self) -> Script:
        world, script = self.world, self.script
        script.now_s += PAUSE_S
        if world.warm_step:
            script.step(0)
            script.now_s += PAUSE_S
        if world.validate == "first":
            self.validate()
        try:
            for _ in range(world.epochs):
                if world.eval_training == "once":
                    script.eval()
                    script.is_ambiguous = True
                elif not world.late_train:
                    script.train()
                self.epoch()
                script.now_s += PAUSE_S
                if world.validate == "between":
                    self.validate()
                    script.now_s += PAUSE_S
        except EarlyEndError:
            pass
        self.endless.clear()
        script.over()
        if not self.times_are_known():
            script.seconds = [None] * len(script.rows)
        return script

    def times_are_known(self) -> bool:
        """Return False if the events do not show whose time a skipped batch, or one beside a validation, takes."""
        world = self.world
        is_left_out = bool(world.scaler or world.skip_at)
        is_inside = world.validate in IN_STEPS
        is_split = world.accumulate > 1 or world.source == "next_iter" or world.body == "full" or world.buffer > 1
        return not (
            (world.eval_training == "each" and (is_left_out or is_split or is_inside))
            or (is_inside and (is_left_out or world.ahead or world.buffer > 1))
            or (is_left_out and (world.second or world.buffer > 1 or not world.visible))
            or (world.source == "next_iter" and not world.visible)
            # A pass whose one batch is skipped shows the same events as a validation of one batch.
            or (world.source == "next_iter" and world.skip_at in ("draw", "forward"))
        )

    def batches(self) -> Iterator[tuple[Batch, ...]]:
        """Yield what an item of the loop is made of."""
        world = self.world
        if world.source == "next_iter":
            for _ in range(world.stop_at):
                yield (next(iter(self.loader)),)
            return
        if world.second == "zip":
            yield from zip(self.loader, self.second, strict=False)
            return
        if world.second == "endless":
            for batch in self.loader:
                yield batch, self.forever(1, self.second)
            return
        if world.second == "turns":
            for index, batch in enumerate(ahead_of(self.loader, world.ahead)):
                yield (batch,)
                if index % 2:
                    yield (self.forever(1, self.second),)
            return
        drawn = ahead_of(self.loader, world.ahead) if world.ahead else self.loader
        if world.source == "range":
            for batch, _ in zip(drawn, range(world.stop_at), strict=False):
                yield (batch,)
        elif world.source == "break":
            for index, batch in enumerate(drawn):
                if index >= world.stop_at:
                    break
                yield (batch,)
        elif world.source == "cut":
            for index, batch in enumerate(drawn):
                yield (batch,)
                if index + 1 >= world.stop_at:
                    break
        else:
            for batch in drawn:
                yield (batch,)

    def forever(self, key: int, loader: Loader) -> Batch:
        """Draw from a loader that begins anew at its end."""
        for _ in range(2):
            if key not in self.endless:
                self.endless[key] = iter(loader)
            for batch in self.endless[key]:
                return batch
            self.endless[key] = iter(loader)
        raise AssertionError

    def grouped(self, number: int) -> Iterator[tuple[Batch, ...]]:
        items: list[Batch] = []
        for index, item in enumerate(self.batches(), 1):
            items.extend(item)
            if index % number == 0:
                yield tuple(items)
                items = []
        if items:
            yield tuple(items)

    def buffered(self) -> Iterator[tuple[Batch, ...]]:
        buffer: list[tuple[Batch, ...]] = []
        for item in self.grouped(self.world.group):
            buffer.append(item)
            if len(buffer) == self.world.buffer:
                yield from buffer
                buffer = []
        yield from buffer

    def epoch(self) -> None:
        world, script = self.world, self.script
        if world.body == "svrg":
            self.snapshot()
        script.start()
        self.of_epoch = 0
        if world.remainder != "carried":
            self.gathered = 0
        for item in self.buffered():
            if self.items == world.ends_at:
                raise EarlyEndError
            index, self.items = self.items, self.items + 1
            self.of_epoch += 1
            self.item(item, index)
        if world.body == "full" or (self.gathered and world.remainder in ("stepped", "stepped_after")):
            self.step()
        if self.gathered and world.remainder == "dropped":
            for optimizer in self.optimizers:
                script.zero(optimizer)
        if self.computed:  # does the time of the last gradients lead to the next epoch's step?
            is_skipped = bool(world.scaler or world.skip_at == "backward")
            script.is_ambiguous |= bool(world.ahead or world.eval_training or (is_skipped and world.validate))
        script.is_ambiguous |= bool(world.second)  # which of the passes ends the epoch does not show
        if self.computed:
            script.stop()
        else:
            script.leave_epoch()

    def snapshot(self) -> None:
        """SVRG: a full gradient, which all steps of the epoch apply."""
        script = self.script
        script.start()
        script.zero()
        for batch in self.loader:
            script.gradient((batch,))
        script.keep_gradient()
        script.zero()
        script.stop()

    def item(self, item: tuple[Batch, ...], index: int) -> None:
        world, script = self.world, self.script
        is_skipped = bit(world.skips, index)
        if world.validate == "before_use" and index % world.val_every == 1:
            self.interrupt()
        if world.eval_training == "each":
            script.eval()
        elif world.late_train:
            script.train()
        if is_skipped and world.skip_at == "draw":
            return
        if is_skipped and world.skip_at == "forward":
            script.forward(item)
            return
        if world.zero == "before" and not self.gathered and world.body in ("plain", "twice", "parts"):
            self.zero()
        if world.body == "full" and not self.gathered:
            self.zero()
        if world.body == "graph" and index > 0:
            self.replay(item)
            return
        self.work(item)
        if is_skipped and world.skip_at == "backward":
            self.zero()
            self.gathered = 0
            self.computed = True
            return
        self.gathered += 1
        if world.body == "full":
            return
        if self.gathered >= world.accumulate or (world.remainder == "stepped" and self.is_last()):
            self.step()
            if world.validate == "inside" and self.steps % world.val_every == 0:
                self.interrupt()
        elif world.validate == "accumulating" and index % world.val_every == 0:
            self.interrupt()

    def is_last(self) -> bool:
        """Return True at the last item of an epoch, if the script knows their number."""
        world = self.world
        items = -(-world.count // world.group)
        return not world.second and world.source == "plain" and self.of_epoch == items

    def zero(self) -> None:
        if self.world.zero == "model" and self.script._stepped:
            self.script.add(log.ZERO, -1)
            self.script.gradients.clear()
        else:
            for optimizer in self.optimizers:
                self.script.zero(optimizer)

    def work(self, item: tuple[Batch, ...]) -> None:
        """Compute the gradients of an item."""
        world, script = self.world, self.script
        self.computed = True
        if world.body == "gan":
            script.zero(0)
            script.gradient(item, (0,))
            script.step(0)
            script.zero(1)
            script.gradient(item, (0, 1))
        elif world.body == "ppo":
            for number in range(world.times):
                script.zero()
                script.gradient(item)
                if number < world.times - 1:
                    script.step()
        elif world.body == "closure":
            for _ in range(world.times):
                script.zero()
                script.gradient(item)
        elif world.body == "sam":
            script.gradient(item)
            script.zero()
            script.gradient(item)
        elif world.body == "twice":
            script.forward(item)
            script.backward(item)
            script.backward(item)
        elif world.body == "parts" and len(item) > 1:
            for batch in item:
                script.gradient((batch,))
        else:
            script.gradient(item, self.optimizers)

    def replay(self, item: tuple[Batch, ...]) -> None:
        if not self.is_captured:
            self.script.capture()
        self.is_captured = True
        self.script.replay(item)
        self.script.row()
        self.steps += 1
        if self.world.validate == "inside" and self.steps % self.world.val_every == 0:
            self.interrupt()

    def step(self) -> None:
        world, script = self.world, self.script
        self.gathered = 0
        self.steps += 1
        if world.fails and self.steps == world.ends_at:
            raise EarlyEndError
        if bit(world.scaler, self.steps) and world.body not in ("gan", "ppo"):
            for _ in self.optimizers:
                script.skip_step()
            if world.zero in ("after", "model") or world.body in ("layers", "sam"):
                self.zero()
            return
        for optimizer in [1] if world.body == "gan" else self.optimizers:
            script.step(optimizer)
        self.computed = False
        script.row()
        if world.zero in ("after", "model") and world.body in ("plain", "twice", "parts", "layers"):
            self.zero()
        if world.body in ("layers", "sam"):
            self.zero()

    def interrupt(self) -> None:
        self.script.stop()
        self.validate()
        self.script.start()

    def validate(self) -> None:
        world, script = self.world, self.script
        if world.val_eval:
            script.eval()
        script.grad = world.val_grad
        if world.val_data == "loader":
            for index, batch in enumerate(ahead_of(self.validation, world.val_ahead)):
                script.forward((batch,))
                script.now_s += VALIDATION_S
                if index == 1 and world.val_ahead == 0:
                    break
        elif world.val_data == "one":
            script.forward((self.forever(2, self.validation),))
            script.now_s += VALIDATION_S
        else:
            script.now_s += VALIDATION_S
        script.grad = True
        if world.val_eval and not world.late_train:
            script.train()
        is_between = world.validate in ("between", "inside")
        is_seen = (world.val_data == "loader" and not world.val_ahead) or (world.val_eval and is_between)
        script.is_ambiguous |= not is_seen or (world.late_train and world.val_eval)


CHOICES: dict[str, list[Any]] = {
    "count": [5, 6, 7, 8, 9],
    "size": [2, 3, 4, 5, 6],
    "last": [0, 0, 1, 2, 5],
    "padding": [0, 0, 1, 2, 3],
    "epochs": [2, 2, 3, 4],
    "source": ["plain", "plain", "plain", "range", "break", "cut", "next_iter"],
    "second": ["", "", "", "", "zip", "endless", "turns"],
    "second_size": [2, 3, 4, 5],
    "ahead": [0, 0, 0, 1, 2, 3, 4],
    "stop_at": [1, 2, 3, 4, 5, 6],
    "group": [1, 1, 1, 2, 3],
    "buffer": [1, 1, 1, 2, 3],
    "body": ["plain"] * 5 + ["gan", "layers", "ppo", "closure", "sam", "twice", "parts", "full", "svrg", "graph"],
    "times": [2, 3, 4],
    "accumulate": [1, 1, 1, 2, 3, 4],
    "remainder": ["stepped", "stepped_after", "dropped", "carried", "leaks"],
    "zero": ["before", "after", "missing", "model"],
    "skip_at": ["", "", "draw", "forward", "backward"],
    "skips": [0, 1 << 3, 1 << 9, 1 << 4, 0b101, 0b11 << 4, 0b1000100, 0b1001001, 0b1010011, 0b110110],
    "scaler": [0, 0, 1 << 2, 1 << 7, 0b101, 0b110000],
    "validate": ["", "", "", "first", "between", "inside", "before_use", "accumulating"],
    "val_every": [1, 2, 3, 4],
    "val_grad": [False, True],
    "val_eval": [True, False],
    "val_data": ["loader", "loader", "one", "tensor"],
    "val_ahead": [0, 0, 1, 2],
    "late_train": [False, False, True],
    "eval_training": ["", "", "", "", "once", "each"],
    "warm_step": [False, False, False, True],
    "ends_at": [-1, -1, -1, 4, 7, 12],
    "fails": [False, True],
    "wrapped": [True, False],
    "visible": [True, True, True, True, False],
}
ONCE = ("gan", "ppo", "closure", "sam", "full", "svrg", "graph", "layers")
SEVERAL = ("gan", "ppo", "closure", "sam", "twice")
IN_STEPS = ("inside", "before_use", "accumulating")
STOPPED = ("range", "break", "cut")


def combinable(world: World) -> SimpleNamespace:
    """Return the choices of a world, without those that this generator cannot combine."""
    w = SimpleNamespace(**vars(world))
    put = vars(w).update
    if w.last >= w.size:
        put(last=0)
    if w.eval_training:
        put(late_train=False)
    if w.body in ONCE:
        put(accumulate=1, remainder="stepped")
    if w.body in ("full", "svrg", "graph"):
        put(scaler=0, buffer=1, group=1, second="", ahead=0, warm_step=False)
        put(source="plain" if w.source == "next_iter" else w.source)
    return w


def sensible(world: World) -> World:
    """Return the nearest world that somebody may write, and whose truth this module knows."""
    w = combinable(world)
    put = vars(w).update
    if w.body in ONCE:
        put(skip_at="draw" if w.skip_at == "backward" else w.skip_at)
    if w.body in ("full", "svrg"):
        put(skip_at="")  # an epoch of which all is skipped
    if w.body in ("ppo", "gan"):
        put(fails=False)
    if not w.visible:
        put(body="plain", scaler=0, eval_training="", accumulate=1, buffer=1)  # GradScaler takes backward passes
        put(second="" if w.second == "turns" else w.second)
    if w.source in STOPPED:
        put(stop_at=max(w.stop_at, w.accumulate * w.group))  # else it never steps
    # Does the next step apply the gradients of a skipped one?
    if w.zero == "missing" or w.body == "closure" or w.source == "next_iter":
        put(scaler=0)
    if w.scaler and w.remainder == "leaks":
        put(remainder="dropped")
    if w.ends_at >= 0:
        put(warm_step=False)
    # Of batches drawn ahead that are used several times or skipped, too, the loop does not show how many were.
    if w.ahead and (w.body in SEVERAL or w.skip_at or w.validate in IN_STEPS):
        put(ahead=0)
    if w.second == "turns":
        put(buffer=1)
    if w.body in SEVERAL and w.val_data == "one":  # between two backward passes of a batch
        put(val_grad=False)
    # What is drawn with gradients and in training mode is the validation.
    if w.eval_training or w.validate == "first" or w.source == "next_iter":
        put(val_grad=False)
    if not w.skip_at or not w.skips:
        put(skip_at="", skips=0)
    return World(**vars(w))


def ordinary(world: World) -> World:
    """Return the nearest of the loops that most people write: no doubt may be said."""
    w = sensible(world)
    return sensible(
        replace(
            w,
            skip_at="",
            group=w.group
            if w.body == "parts" and w.source == "plain" and not (w.ahead or w.second or w.scaler or w.accumulate > 1)
            else 1,
            accumulate=w.accumulate if w.visible and not w.ahead else 1,
            stop_at=max(w.stop_at, 3),
            buffer=1,
            source="plain" if w.ahead or w.source == "next_iter" else w.source,
            second="" if w.second == "turns" else w.second,
            body="plain" if w.body in ("svrg", "full") or (w.body == "parts" and w.ahead) else w.body,
            val_grad=False,
            eval_training="",
            ends_at=-1,
            warm_step=False,
            remainder="stepped" if w.ahead or w.scaler else w.remainder,
            scaler=0 if w.ahead or w.source in STOPPED else w.scaler,
        )
    )


Nearest = Callable[[World], World]


def drawn(number: int, nearest: Nearest, free: tuple[str, ...]) -> Iterator[World]:
    """Yield so many different worlds, each time the same ones."""
    random, found = Random(number), set[World]()
    while len(found) < number:
        world = nearest(World(**{name: random.choice(CHOICES[name]) for name in free}))
        if world not in found:
            found.add(world)
            yield world


def passes(test: Callable[[World], None], world: World) -> bool:
    try:
        test(world)
    except Exception:
        return False
    return True


def simplest(test: Callable[[World], None], world: World, nearest: Nearest) -> World:
    """Return a world that fails as this one does, with as many defaults as possible."""
    for name in vars(world):
        simpler = nearest(replace(world, **{name: getattr(World, name)}))
        if not passes(test, simpler):
            world = simpler
    return world


def worlds(number: int, nearest: Nearest, *free: str) -> Callable[[Callable[[World], None]], Callable[[], None]]:
    """Run a test with so many different worlds. nearest: makes clear ones, ...; ``free``: the fields that vary."""

    def with_each(test: Callable[[World], None]) -> Callable[[], None]:
        def test_with_each() -> None:
            for world in drawn(number, nearest, free):
                if not passes(test, world):
                    failing = simplest(test, world, nearest)
                    print({name: value for name, value in vars(failing).items() if value != getattr(World, name)})
                    test(failing)

        test_with_each.__doc__ = test.__doc__
        return test_with_each

    return with_each
