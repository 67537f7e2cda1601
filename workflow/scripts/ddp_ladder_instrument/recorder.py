"""What the hooks notify: it appends to the log, and lets the state machine see what came.

Only the main thread calls it, and autograd's while that one waits for it; the heartbeat's thread reads.
Seconds are from time.perf_counter().
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument import log
from ddp_ladder_instrument.contract import LONG_REST_S
from ddp_ladder_instrument.log import NO_MARK, NOT_MARKED, OTHER_THREAD, Log
from ddp_ladder_instrument.machine import Judged, Machine, judge
from ddp_ladder_instrument.places import Place

if TYPE_CHECKING:
    from ddp_ladder_instrument.accelerator import Marks

NEVER = 2**62
AT_ONCE = 16
"""The machine sees so many steps at once, which costs half of one by one and is too short a pause to be a slow step.
The heartbeat lets it see all each second."""
MOST_PLACES = 100
"""A script that draws at places that it makes itself would fill the memory."""
EARLY_STEPS = 12
"""Batches of these steps are looked at as a whole."""


class Recorder:
    """The log of this rank, and its state machine.

    never_train: places whose batches train nothing, as a witness has seen.
    on_optimizer: called with each optimizer before its first step is counted. epoch_of: the epoch of a pass's
    sampler, -1 if it is not known.
    read_times: called after step ``read_at``; returns the next such step.
    check_limits: called with step and current time at step ``check_at``; returns the next such step.
    marks: on a GPU, its marks.
    joins: this process is in init_process_group().
    machine: sees each step at once, so that all ranks end at the same one. settled: on a GPU, a fused optimizer's step
    once the device tells that GradScaler did not skip it, which nobody waits for; else it is the same machine.
    """

    def __init__(self, samples_per_step: int | None = None, rank: int = 0, never_train: Collection[Place] = ()) -> None:
        self.log = Log()
        self.places: dict[Place, int] = {}  # numbers of those that draw
        self._never_train = never_train
        self.beside: set[int] = set()  # those of them that never train
        self.machine = self.settled = Machine(samples_per_step, beside=self.beside)
        self._samples_per_step = samples_per_step
        self._rank = rank
        self.marks: Marks | None = None
        self.calls = 0
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self.on_optimizer: Callable[[Any], None] = lambda optimizer: None
        self.epoch_of: Callable[[int], int] = lambda number: -1
        self.is_capturing: Callable[[], bool] = lambda: False
        self.read_at = self.check_at = NEVER
        self.read_times: Callable[[int], int] = lambda step: NEVER
        self.check_limits: Callable[[int, float], int] = lambda step, now_s: NEVER
        self.joins = False
        self.on_joins: Callable[..., None] = lambda joins, place=None: None
        self.active = -1  # the pass that drew last and is not over
        self.rests_until_s = math.inf  # after the last step: a first draw that comes later is marked
        self._passes = 0
        self._begun: list[int] = []  # passes that began since the last step
        self._thread = threading.get_ident()
        self._feeding = threading.RLock()
        self._is_feeding = False
        self._steps = 0  # steps that the machine may not have seen yet
        self._fed = 0  # events that the machine has seen
        self._sure = 0  # those that ``settled`` has seen, if that is another one
        self._unsettled: deque[tuple[int, Any]] = deque()  # the mark after each such step, and whether it is skipped
        self._ended = False
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._stepped: set[int] = set()
        self._graphs: dict[int, int] = {}  # numbers of CUDA graphs, by id
        self.collectives: dict[str, int] = {}  # numbers of their names
        self._last: Callable[[], Any] = lambda: None
        self._last_number = -1
        self._is_over = False  # a pass ended since the last step
        self._saved_aside: list[tuple[int, float, float, float]] = []

    def use_device(self, marks: Marks, is_capturing: Callable[[], bool]) -> None:
        """Mark from now on on the device, too, where the owner of the time may change."""
        self.marks, self.is_capturing = marks, is_capturing
        self._mark()

    def begin(self) -> None:
        """Begin the log: what came before is start-up."""
        self.log.begin(self._rank)
        self.feed()

    @property
    def steps(self) -> int:
        return self.machine.table.count

    def totals(self) -> list[float | None] | None:
        """Return contract.TOTALS, None for one that is not known; None before the second step. Any thread may call."""
        with self._feeding:
            self.feed()
            table = self.settled.table
            if table.count < 2:
                return None
            sums = (table.all_samples, table.all_step_s, table.all_wait_s, table.all_collectives_s)
            known = (table.ended_at_s[-1], table.count, *sums, *self.settled.ddp_sums)
        return [round(figure, 6) if math.isfinite(figure) else None for figure in known]

    @property
    def evaluating(self) -> bool:
        """Return True while the trained model is in eval mode, as far as is known; a step shows that it is not."""
        if self._steps:
            self.feed()
            self._steps = 0
        return self.machine.timer.evaluating

    def feed(self, cuts: bool = True) -> None:
        """Let the machine see the events that it has not seen yet; any thread may call this.

        Events may be appended meanwhile: the garbage collector may end a pass in the middle of this, and change the
        mode of a model. The next call sees them. cuts: what was seen may be dropped; False at the end of the log.
        """
        with self._feeding:
            if self._is_feeding:
                return
            self._is_feeding = True
            try:
                start, self._fed = self._fed, len(self.log)
                self.machine.feed(self.log.events(start, self._fed))
                seen = self._fed
                if self.settled is not self.machine:
                    start, self._sure = self._sure, self._settle(cuts)
                    self.settled.feed(self.log.events(start, self._sure))
                    seen = self._sure
                if cuts and threading.get_ident() == self._thread:  # the one that appends
                    self.log.cut(seen, self.machine.calls)
                    if self.log.is_cut and self.marks is not None:
                        self.marks.keep_no_more()
            finally:
                self._is_feeding = False

    def _settle(self, goes_on: bool) -> int:
        """Note of a GPU's steps whether they were skipped, as far as it tells; return how many events are sure.

        At the end of the log, a step of which it does not tell counts.
        """
        while self._unsettled and self.marks is not None:
            number = self.log.first(log.UNSETTLED, self._sure)
            if number is None or number >= self._fed:
                break
            mark, is_skipped = self._unsettled[0]
            is_known = self.marks.read > mark
            if goes_on and not is_known:
                return number
            self.log.settle(number, log.SKIP if is_known and is_skipped else log.STEP)
            self._unsettled.popleft()
        return self._fed

    def counted(self) -> tuple[int, int, float]:
        """Return steps, their samples, and when the last one ended; any thread may call this while another one feeds.

        Raises IndexError before the first step.
        """
        with self._feeding:
            table = self.settled.table
            return table.count, table.all_samples, table.ended_at_s[-1]

    def _note(self, kind: int, thing: float = 0, a: float = 0, b: float = 0, c: float = 0) -> None:
        """Add what happens now."""
        now_s = time.perf_counter()
        self.log.add(kind, now_s, now_s, thing, a, b, c)

    def _mark(self) -> int:
        return NO_MARK if self.marks is None else self.marks.add()

    # Passes

    def new_pass(self, loader: int, real: int, is_main: bool) -> int:
        """Begin a pass over a loader, of so many samples that are no padding (-1: unknown); return its number."""
        self._passes += 1
        number = self._passes
        self._note(log.PASS, number, loader, real, self._mark() if is_main else OTHER_THREAD)
        self._begun.append(number)
        self.active = -1
        return number

    def made(self, number: int, entered_s: float) -> None:
        self.log.add(log.MADE, entered_s, time.perf_counter(), number, 0, 0, self._mark())
        self.active = -1

    def draws_at(self, number: int, place: Place) -> None:
        """Note the place that draws the first batch of a pass."""
        known = self.places
        if place not in known and len(known) < MOST_PLACES:
            known[place] = len(known)
            if place in self._never_train:
                self.beside.add(known[place])
        self._note(log.PLACE, number, known.get(place, -1))

    def drawn(self, number: int, entered_s: float, size: int, left_out: int, with_grad: bool, mark: int) -> None:
        """Note a batch of ``size`` indices, padding included, of which ``left_out`` did not arrive."""
        self.rests_until_s = math.inf
        kind = log.DRAW if with_grad else log.DRAW_NO_GRAD
        self.log.add(kind, entered_s, time.perf_counter(), number, size, left_out, mark)

    def enter(self, number: int) -> int:
        """Make this pass the active one; return the mark of that, or of its draw after a long rest."""
        if self.active == number and time.perf_counter() < self.rests_until_s:
            return NO_MARK
        self.active = number
        return self._mark()

    def ended(self, number: int, exhausted: bool) -> None:
        """Note that a pass is over; the garbage collector may call this in any thread, and at any time."""
        self._note(log.END, number, exhausted, 0, self._mark())
        self._is_over = True
        if self.active == number:
            self.active = -1

    # The training

    def forward(self, module: int, gradients: int) -> None:
        now_s = time.perf_counter()
        self.log.rows.extend((log.FORWARD, now_s, now_s, module, 0, 0, gradients))

    def backward(self, begin_s: float) -> None:
        """Note a backward pass that has ended."""
        if self.is_capturing():
            self.log.add(log.CAPTURE, begin_s, time.perf_counter(), -1)
        else:
            mark = self._mark() if self._is_over else NO_MARK
            self.log.rows.extend((log.BACKWARD, begin_s, time.perf_counter(), 0, 0, 0, mark))

    def zeroed(self, optimizer: Any) -> None:
        """Note that an optimizer discards its gradients; None: the whole model does."""
        now_s = time.perf_counter()
        number = -1 if optimizer is None else self._number(optimizer)
        self.log.rows.extend((log.ZERO, now_s, now_s, number, 0, 0, NO_MARK))

    def skipped(self) -> None:
        """Note a step that GradScaler skips."""
        self._note(log.SKIP)

    def mode(self, is_train: bool) -> None:
        """Note that the trained model is put in another mode."""
        self._note(log.TRAIN if is_train else log.EVAL, 0, 0, 0, self._mark())
        self.active = -1
        self.feed()  # eval and train mode are asked for

    def group_made(self, begin_s: float, end_s: float) -> None:
        self.log.add(log.GROUP, begin_s, end_s, 0, 0, 0, NO_MARK)

    def saved(self, kind: int, begin_s: float, end_s: float, size: float, is_aside: bool) -> None:
        """Note a save of this kind, with its bytes; one that another thread made (is_aside) with the next step."""
        if is_aside:
            self._saved_aside.append((kind, begin_s, end_s, size))
        else:
            self.log.add(log.SAVE, begin_s, end_s, kind, size, 0, NO_MARK)

    def compiled(self, begin_s: float, end_s: float) -> None:
        self.log.add(log.COMPILE, begin_s, end_s)

    def _add_saved_aside(self) -> None:
        while self._saved_aside:
            kind, begin_s, end_s, size = self._saved_aside.pop(0)
            self.log.add(log.SAVE, begin_s, end_s, kind, size, 1, NO_MARK)

    def mark_collective(self) -> int:
        """Mark on the device, if there is one, the begin or the end of a collective.

        NOT_MARKED once the log is cut, and on a stream beside the training's, which may hide what it takes.
        """
        if self.marks is None:
            return NO_MARK
        return NOT_MARKED if self.log.is_cut or self.marks.is_aside() else self.marks.add()

    def collective(self, name: str, begin_s: float, end_s: float, size: int, ranks: int, mark: int) -> None:
        """Note a collective, with its bytes; none is made into a CUDA graph.

        mark: that after it; the one before it has the number before.
        """
        if not self.is_capturing():
            number = self.collectives.setdefault(name, len(self.collectives))
            self.log.add(log.COLLECTIVE, begin_s, end_s, number, size, ranks, mark)

    def joined_unevenly(self) -> None:
        """Note DDP's join(): ranks may make different numbers of steps."""
        self._note(log.UNEVEN)

    def replayed(self, graph: int, begin_s: float) -> None:
        """Note the replay of a CUDA graph; if it contains a step, that is one."""
        number = self._graphs.setdefault(graph, len(self._graphs))
        now_s = time.perf_counter()
        self.log.add(log.REPLAY, begin_s, now_s, number, 0, 0, self._mark())
        self._let_step(now_s)

    def _number(self, optimizer: Any) -> int:
        if self._last() is not optimizer:
            number = self._optimizers.setdefault(optimizer, len(self._optimizers))
            self._last, self._last_number = weakref.ref(optimizer), number
        return self._last_number

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note an optimizer's step; torch calls this after each."""
        now_s = time.perf_counter()
        if self._ended:  # the script caught our SystemExit and continues
            self.check_limits(self.steps, now_s)
        self.calls += 1
        number = self._number(optimizer)
        if number not in self._stepped:
            self._stepped.add(number)
            self.stepped.add(optimizer)
            self.on_optimizer(optimizer)
        if self.is_capturing():  # into a CUDA graph: no step is made
            self.log.add(log.CAPTURE, now_s, now_s, number)
            return
        kind, found_inf = log.STEP, _found_inf(optimizer, kwargs)
        if found_inf is not None and found_inf.device.type == "cpu":
            if found_inf:
                self.skipped()
                return
            found_inf = None
        for begun in self._begun:
            self.log.add(log.EPOCH, now_s, now_s, begun, self.epoch_of(begun))
        self._begun.clear()
        self._is_over = False
        copy = (
            None if found_inf is None else found_inf.to("cpu", non_blocking=True)
        )  # behind the step: it does not wait
        mark = self._mark()
        if copy is not None and mark != NO_MARK and not (self.settled is self.machine and self.log.is_cut):
            kind = log.UNSETTLED
            self._unsettled.append((mark, copy))
            if self.settled is self.machine:
                self.settled = Machine(self._samples_per_step, beside=self.beside)
        self.log.rows.extend((kind, now_s, now_s, number, 0, 0, mark))
        self.rests_until_s = now_s + LONG_REST_S
        self._let_step(now_s)

    def _let_step(self, now_s: float) -> None:
        """Let the machine see what may be a step: at once where something waits for it, else several at a time."""
        if self._saved_aside:
            self._add_saved_aside()
        self._steps += 1
        rows = self.machine.table.count + self._steps  # at most
        is_due = rows >= min(self.read_at, self.check_at)
        if is_due or rows <= EARLY_STEPS or self._steps >= AT_ONCE:
            self.feed()
            self._steps = 0
            if is_due:
                self._call_back(now_s)

    def _call_back(self, now_s: float) -> None:
        steps = self.steps
        if steps >= self.read_at:
            self.read_at = self.read_times(steps)
        # With several optimizers, check only after the last of them has stepped.
        if steps >= self.check_at and self.machine.optimizers.all_stepped:
            self._ended = True  # remains True if the check raises
            self.check_at = self.check_limits(steps, now_s)
            self._ended = False

    def end_measured(self) -> None:
        """Note that the steps that follow are not measured."""
        self._note(log.MEASURED)
        self.feed()

    def end(self) -> None:
        """End the log: the program is over, and the marks that the device has passed are known."""
        self._add_saved_aside()
        self.feed()
        if self.marks is not None:
            for number, passed_s in self.marks.passed_s():
                self.log.add(log.MARK, passed_s, passed_s, number)
        self._note(log.OVER)
        self.feed(cuts=False)  # the marks are kept

    def judged(self) -> Judged:
        found = judge(self.log, self._samples_per_step, self.beside)
        return found.join(self.settled.judged()) if self.log.is_cut else found


def _found_inf(optimizer: Any, kwargs: Any) -> Any:
    """Return the tensor by which an optimizer that GradScaler lets step has skipped it, if it is not 0; None without.

    That of torch's fused ones has an attribute for the time of the step, that of others the scaler as an argument.
    """
    scaler = kwargs.get("grad_scaler")
    if scaler is None:
        return getattr(optimizer, "found_inf", None)
    found = [*scaler._found_inf_per_device(optimizer).values()]
    return found[0] if len(found) == 1 else None
