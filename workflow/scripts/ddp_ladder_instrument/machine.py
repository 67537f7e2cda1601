"""The state machine that turns a rank's events (module ``log``) into steps, phases and doubts. Pure.

It is fed online, for progress, limits and the hang watch, and once more at the end with the whole log, for the record:
then it knows on a GPU the times of the device. The same log gives the same record at any later time; RULES is the
version of what this module and ``trained`` decide.

A step ends with an optimizer's step. A further step of an optimizer belongs to the same row

- if no gradient was computed since the last one (an optimizer that another one calls for each group of parameters);
- if another optimizer than the first one of the row makes it, and no batch was trained on since (a GAN's second one);
- if no batch was drawn since, from a pass that goes on: several steps on one batch are one step of the training.

Steps before the first batch and the first backward pass are no steps of the training.

A step's time is that of its training passes: validation is another pass. The time between two passes, or between the
model's ``eval()`` and ``train()``, belongs to no step. But eval mode is training if the step's batch had been drawn and
no pass begins meanwhile (adversarial examples, a rollout on the batch). A step between the end of a pass and the next
pass (its last batch was drawn ahead, or ends an accumulation) gets the time since that end. A training loop without a
DataLoader gets the time that belongs to no pass.

From a step to the next draw, a rank may do what is beside the training: validate without eval() and loader, save, log.
What this takes longer than usual (``timer``) is in no step.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import Event, Log
from ddp_ladder_instrument.table import DdpTimes, Phases, StepTable
from ddp_ladder_instrument.timer import OptimizerSteps, PassTimer, UsualTurn
from ddp_ladder_instrument.trained import Drawn, Pass, TrainedBatches

RULES = 7
"""Version of the rules: a record made by another one is made anew from the log."""
MOST_STEPS = 1000
"""Steps of one optimizer on one batch in a row: a pass that is not over may yield no further batch."""


class Machine:
    """Steps, phases and doubts of one rank, from its events so far.

    samples_per_step: replaces counted samples, for loops without a DataLoader. beside: places whose batches never
    train: their passes are validations. turn: what is usual in the whole log, if that is known. on_pass: called with
    the number of each training pass at its first step.
    """

    def __init__(
        self, samples_per_step: int | None = None, beside: Collection[int] = (), turn: UsualTurn | None = None
    ) -> None:
        self.table = StepTable()
        self.phases = Phases()
        self.timer = PassTimer(self.table, self.phases, turn)
        self.trained = TrainedBatches()
        self.optimizers = OptimizerSteps()
        self.samples_per_step = samples_per_step
        self.beside = beside
        self.places: dict[int, list[int]] = {}  # of each that draws: batches, their samples, and those trained on
        self.on_pass: Callable[[int], object] = lambda number: None
        self.first_pass = -1
        self.pass_over_at = -1  # the number of steps when a pass last ended
        self.calls = 0
        self._empty = 0  # steps without a batch, also none that was drawn ahead
        self._again = 0
        self.uneven = False
        self.first_step_ended_s: float | None = None
        self.collectives: dict[float, list[float]] = {}  # calls, bytes, seconds, from the second step on
        self._of_step: dict[float, list[float]] = {}  # the same of the running step
        self.epochs: dict[int, Counter[int]] = {}  # of each loader that trains: epochs of its passes
        self.whole: Counter[int] = Counter()  # of each of these loaders: passes that went to the end
        self._newest: Pass | None = None  # the pass that began to train last
        self._passes: dict[float, Pass] = {}
        self._over: list[float] = []  # passes that are over since the last step
        self._pending: list[Pass] = []  # drew since the last row
        self._last_row: list[Pass] = []
        self._skipped = False
        self._drew = False, False  # the row before the last one, if any, drew a batch; so did the last one
        self._row_had_gradients = False
        self._module = 0.0  # that DDP times: the one that was wrapped last
        self._made = self._sent = 0  # forward passes of it in the running row, and those that send gradients
        self._backwards = 0  # of the running row
        self._offset_s = 0.0  # of unix time
        self._measured: StepTable | None = None  # the rows when the measured steps were over
        self._captured: list[float] = []
        self._graphs: dict[float, list[float]] = {}
        self.marks: dict[float, float] = {}
        self._lag_s = 0.0  # what the device is behind the host
        self._ddp: list[tuple[float, DdpTimes]] = []  # with the time at which they ended
        self._ddp_module = 0.0
        self.ddp_sums = [0.0, 0.0, 0.0, 0.0, 0.0]  # steps that DDP timed, and its times of them
        self._comm: list[tuple[float, float, float, float, float]] = []  # since the last draw: collectives
        self._handlers: dict[float, Callable[..., None]] = {
            log.RANK: self._on_rank, log.GROUP: self._on_group, log.PASS: self._on_begin, log.MADE: self._on_made,
            log.PLACE: self._on_place, log.DRAW: self._on_draw, log.DRAW_NO_GRAD: self._on_draw_aside,
            log.END: self._on_end, log.EPOCH: self._on_epoch,
            log.FORWARD: self._on_forward, log.BACKWARD: self._on_backward,
            log.STEP: self._on_step, log.UNSETTLED: self._on_step, log.SKIP: self._on_skip, log.ZERO: self._on_zero,
            log.CAPTURE: self._on_capture,
            log.REPLAY: self._on_replay, log.EVAL: self._on_eval, log.TRAIN: self._on_train,
            log.COLLECTIVE: self._on_collective, log.SAVE: self._on_save, log.DDP: self._on_ddp,
            log.COMPILE: self._on_compile, log.MEASURED: self._on_measured, log.UNEVEN: self._on_uneven,
            log.OVER: self._on_over,
        }  # fmt: skip

    def feed(self, events: Iterator[Event]) -> None:
        handlers = self._handlers
        for event in events:
            handler = handlers.get(event[0])
            if handler is not None:
                handler(*event[1:])

    @property
    def phase(self) -> str:
        """What the rank does now: starting, training, evaluating, between passes, or unknown (without a DataLoader)."""
        count, timer = self.table.count, self.timer
        if not count:
            return "starting"
        if timer.evaluating:
            return "evaluating"
        if count in (timer.paused_at, self.pass_over_at):
            return "between passes"
        return "unknown" if timer.without_loader else "training"

    def unix_s(self, clock_s: float) -> float:
        """Return the unix time at a time of the log's clock."""
        return clock_s + self._offset_s

    def clock_s(self, unix_s: float) -> float:
        """Return the time of the log's clock at a unix time."""
        return unix_s - self._offset_s

    def _time_s(self, mark: float, host_s: float) -> float:
        """Return when the device passed an event's mark; without one, or with none known, the host's time."""
        if not self.marks:
            return host_s
        device_s = self.marks.get(mark)
        if device_s is not None:
            self._lag_s = max(0.0, device_s - host_s)
        return host_s + self._lag_s

    def _on_rank(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self._offset_s = a - end_s
        self.timer.restart(end_s)

    def _on_group(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.timer.restart(end_s)

    def _on_begin(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        now_s = self._time_s(c, begin_s)
        pass_ = self._passes[thing] = Pass(int(thing), int(a), int(b), now_s, self.table.count)
        if c != log.OTHER_THREAD:
            self.timer.enter(pass_, now_s)

    def _on_made(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        pass_ = self._passes[thing]
        self.timer.leave(pass_, self._time_s(c, end_s))  # its first batch may be drawn much later
        pass_.wait_s += end_s - begin_s

    def _on_place(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        if pass_ := self._passes.get(thing):
            pass_.place, pass_.is_beside = int(a), a in self.beside

    @property
    def _is_beside(self) -> bool:
        """Return True in a validation: a pass that never trains, and does not go on from step to step."""
        owner, timer = self.timer.owner, self.timer
        return owner is not None and owner.is_beside and (timer.is_rare(owner) or timer.ends_in_step(owner))

    def _on_draw(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self._draw(begin_s, end_s, thing, a, b, c, self.timer.evaluating)

    def _on_draw_aside(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self._draw(begin_s, end_s, thing, a, b, c, True)

    def _draw(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float, is_aside: bool) -> None:
        pass_ = self._passes.get(thing)
        if pass_ is None or not pass_.living:
            return
        timer, count = self.timer, self.table.count
        counts = self.places.setdefault(pass_.place, [0, 0, 0])
        counts[0] += 1
        counts[1] += int(a)
        now_s, is_beside = self._time_s(c, begin_s), pass_.is_beside
        is_rare = (is_beside or is_aside) and timer.draws_rarely(pass_)
        pass_.drawn += is_beside
        is_in_step = timer.owner is not None and timer.owner.is_drawn(count)
        if is_beside and is_in_step and not (is_rare and timer.ends_in_step(pass_)):
            return  # it is a part of that step
        if not self._pending and count:
            timer.end_rest(now_s if self._is_timed(c) else None)
        if timer.owner is not pass_:
            timer.enter(pass_, now_s)
        if self._skipped and not is_beside:
            self._end_skipped()
        if pass_.step != count:
            pass_.begin_step(count)
        is_first = all(each is pass_ or each.between_steps for each in self._pending)
        if not pass_.batches:
            self._pending.append(pass_)
        pass_.batches += 1
        pass_.between_steps = (timer.evaluating and timer.between_steps) or (is_first and is_rare)
        if is_beside:
            return
        self.trained.draw(pass_, int(a), int(b), is_aside)
        pass_.wait_s += end_s - begin_s
        while self._comm and self._comm[-1][0] >= begin_s:  # made by the loader: they are a wait for data
            _, seconds, name, size, ranks = self._comm.pop()
            timer.communicate(-seconds)
            self._count_collective(name, -int(ranks > 0), -size, -seconds)

    def _is_timed(self, mark: float) -> bool:
        """Return True if a draw's time is the device's, or there is no device."""
        return mark in self.marks or (mark == log.NO_MARK and not self.marks)

    def _on_end(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        pass_ = self._passes.get(thing)
        if pass_ is None:
            return
        self._over.append(thing)
        if pass_.drawn:
            count = self.pass_over_at = self.table.count
            if not pass_.stepped:
                self.timer.note_end(pass_)
            if count and not pass_.stepped:
                self.phases.end_pass(pass_, self._time_s(c, end_s))
        pass_.living, pass_.exhausted = False, a == 1
        self.whole[pass_.loader] += pass_.exhausted and pass_.stepped
        self.timer.leave(pass_, self._time_s(c, end_s))

    def _on_epoch(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        pass_ = self._passes.get(thing)
        if pass_ is not None:
            pass_.epoch = int(a)

    def _on_forward(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        if not c or self._is_beside:  # with gradients off
            return
        if thing > self._module:
            self._module, self._made, self._sent = thing, 0, 0
        if thing == self._module:
            self._made += 1
            self._sent += c == log.SENDS

    def _on_backward(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        if self._is_beside:
            return
        self._backwards += 1
        self.trained.backward()
        used = self.trained.last
        if used and not any(each.living for each in used):
            self.timer.give_after_to(used[-1], self._time_s(c, end_s))

    def _on_zero(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.trained.zero(int(thing))

    def _on_skip(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self._skipped = True

    def _end_skipped(self) -> None:
        """Discard the batches since the last step: no step trains on them. Their time belongs to the next one."""
        for each in self._pending:
            each.batches = 0
        dropped = [each for each in self._pending if each.dropped]  # by the skipped step before this one
        self._pending = [*dict.fromkeys([*dropped, *self.trained.discard_taken()])]
        self._skipped = False

    def _on_capture(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self._captured.append(thing)

    def _on_replay(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        """A CUDA graph does again what was captured into it: backward passes and steps."""
        if thing not in self._graphs:
            self._graphs[thing], self._captured = self._captured, []
        captured = self._graphs[thing]
        if -1 in captured:
            self._on_backward(begin_s, end_s, thing, a, b, c)
        for optimizer in captured:
            if optimizer >= 0:
                self._on_step(begin_s, end_s, optimizer, a, b, c)
        if not captured:
            self.trained.made += 1  # gradients may have been computed

    def _on_eval(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.timer.eval_mode(self._time_s(c, end_s))

    def _on_train(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.timer.train_mode(self._time_s(c, end_s))

    def _on_collective(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        seconds = end_s - begin_s if c == log.NO_MARK else self._device_s(c - 1, c)
        self._comm.append((begin_s, seconds, thing, a, b))
        self.timer.communicate(seconds)
        self._count_collective(thing, int(b > 0), a, seconds)  # of no ranks: a wait for an earlier call

    def _device_s(self, before: float, after: float) -> float:
        """Return the seconds from mark to mark; NaN if the device has not passed both, or that is not known yet."""
        return max(self.marks.get(after, math.nan) - self.marks.get(before, math.nan), 0.0)  # NaN stays, as the first

    def _count_collective(self, name: float, calls: int, size: float, seconds: float) -> None:
        sums = self._of_step.setdefault(name, [0, 0, 0.0])
        sums[0] += calls
        sums[1] += size
        sums[2] += seconds

    def _end_collectives(self, is_counted: bool) -> None:
        """Add the collectives of a step to the sums, unless it was the first one."""
        for name, figures in self._of_step.items() if is_counted else ():
            before = self.collectives.get(name, [0, 0, 0.0])
            self.collectives[name] = [sum(pair) for pair in zip(before, figures)]
        self._of_step.clear()

    def _on_save(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.phases.add_save(begin_s, end_s, int(thing), a, b > 0)

    def _on_compile(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.phases.compiles_s.append((begin_s, end_s))

    def _on_ddp(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        if thing != self._ddp_module:  # another module was wrapped since
            self._ddp.clear()
            self._ddp_module = thing
        table, times = self.table, DdpTimes(begin_s, a, b, c)
        row = bisect_left(table.host_ended_s, end_s)
        if table.block == 1 or row < table.single:
            self._ddp.append((end_s, times))
        if table.count:
            last_whole = len(table.samples) - (1 if table.block == 1 else 2)
            of_step = self._of_whole_step(times, min(row, last_whole))
            self.ddp_sums = [known + more for known, more in zip(self.ddp_sums, (1.0, *of_step))]

    def _of_whole_step(self, times: DdpTimes, row: int) -> DdpTimes:
        """Return the times of a step from those of one of its passes, which stands for all of them."""
        table = self.table
        size = 1 if row < table.single else table.block
        made, sent = (max(1.0, each[row] / size) for each in (table.made, table.sent))
        return DdpTimes(made * times.forward_s, made * times.backward_s, sent * times.comm_s, sent * times.overlap_s)

    def _on_measured(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self._measured = self.table.copy()

    def _on_uneven(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.uneven = True

    def _on_step(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        """Add a row, or extend the last one."""
        optimizers, trained, timer = self.optimizers, self.trained, self.timer
        optimizers.last = int(thing)
        self.calls += 1
        now_s = self._time_s(c, end_s)
        if timer.evaluating:
            timer.trained_in_eval_mode()
        taken = trained.apply(int(thing))
        if not taken and self.table.count and self._continues_row():
            self._extend_row(end_s, now_s)
        else:
            self._add_row(taken, end_s, now_s)
        self._pending = []
        timer.begin_rest(now_s)
        self._skipped = False
        self._comm.clear()
        for number in self._over:
            self._passes.pop(number, None)
        self._over.clear()
        trained.made = 0

    def _continues_row(self) -> bool:
        """Return True if this step, for which no batch was trained on, belongs to the last row."""
        steps = self.optimizers.in_row
        if self.optimizers.is_another():
            return True
        if self._row_had_gradients and not self.trained.made:
            return steps < MOST_STEPS
        if self.samples_per_step is not None and not all(self._drew):
            return False
        if any(each.living for each in self._last_row):
            return steps < MOST_STEPS
        return steps < self.optimizers.in_row_before  # the last batch of a pass

    def _add_row(self, taken: dict[Pass, Drawn], host_s: float, now_s: float) -> None:
        table, timer, passes = self.table, self.timer, [*taken]
        dropped = [each for each in self._pending if each.dropped]
        if passes and timer.owner is timer.outside:
            timer.give_after_to(passes[-1], now_s)
        samples = padding = 0
        for each, (_, real, others) in taken.items():
            samples += real
            padding += others
            self.places[each.place][2] += real + others
        wait_s = 0.0
        for each in [*passes, *(each for each in dropped if each not in taken)]:
            if each.step == table.count:
                wait_s += each.wait_s
        seconds, comm_s = timer.collect(self._owners(passes, dropped), now_s)
        if self.samples_per_step is not None:
            samples, padding = self.samples_per_step, 0
        self._end_collectives(table.count > 0 and self._measured is None)
        if table.count == 1 and self._is_before_training(taken):
            table.clear()
            self._empty = 0
            self.collectives.clear()
            for each in self._pending:  # they count for the row that is the first now
                each.begin_step(0)
        self._empty += not (samples or padding or self.trained.uses_ahead)
        unix_s, counts = self.unix_s(now_s), (self._backwards, self._made, self._sent)
        table.add(samples, padding, max(0.0, seconds), wait_s, unix_s, comm_s, *counts, host_s)
        if table.count == 1:
            self.first_step_ended_s = now_s
            self.phases.forget_saves()
        self._first_steps_of(passes)
        self._row_had_gradients = self.trained.made > 0
        self._backwards = self._made = self._sent = 0
        if passes:
            self._last_row = passes
            timer.without_loader = False
        self._drew = (self._drew[1] or table.count == 1, bool(passes))
        self.optimizers.end_row()

    def _is_before_training(self, taken: dict[Pass, Drawn]) -> bool:
        """Return True if the only row so far had no batch and no backward pass, and the second one has."""
        return bool(taken or self._backwards) and not (self._last_row or self._row_had_gradients)

    def _first_steps_of(self, passes: Sequence[Pass]) -> None:
        """Note the epoch, and the pass, if this step is the first of a training pass."""
        for each in passes:
            if self.trained.is_first_step(each):
                self.phases.add_epoch(self.table.count)
                self.first_pass = each.number if self.first_pass < 0 else self.first_pass
                counts = self.epochs.pop(each.loader, Counter())
                counts[each.epoch] += 1
                self.epochs[each.loader] = counts
                self.whole[each.loader] += each.exhausted
                self._newest = each
                self.on_pass(each.number)

    def _owners(self, passes: list[Pass], dropped: list[Pass]) -> list[Pass]:
        """Return the passes whose time a step gets; if loaders alternate, the previous one has the time until this."""
        if (
            passes
            and passes == self._last_row == self._pending
            and self.timer.owner is not self.timer.after
            and not dropped
        ):
            return passes  # as in most loops
        before = [each for each in self._last_row if each not in passes and (each.living or not passes)]
        beside = self._beside(passes)
        return [*dict.fromkeys([*before, *dropped, *beside, *(passes or [self.timer.outside]), self.timer.after])]

    def _beside(self, passes: Sequence[Pass]) -> list[Pass]:
        """Return the other passes that yielded for a step and go on: what followed their batches leads to the step."""
        return [each for each in self._pending if each not in passes and each.living and not each.between_steps]

    def _extend_row(self, host_s: float, now_s: float) -> None:
        table, last = self.table, self._last_row
        self._again += bool(last) and self.trained.made > 0 and not self.optimizers.is_another()
        owners = [*(last or [self.timer.outside]), *self._beside(last), self.timer.after]
        seconds, comm_s = self.timer.collect(owners, now_s)
        unix_s, counts = self.unix_s(now_s), (self._backwards, self._made, self._sent)
        table.extend(0, 0, seconds, 0.0, unix_s, comm_s, *counts, host_s)
        self._backwards = self._made = self._sent = 0
        self._end_collectives(self._measured is None)
        self.optimizers.in_row += 1

    def _on_over(self, begin_s: float, end_s: float, thing: float, a: float, b: float, c: float) -> None:
        self.phases.end_evaluation(None, self._time_s(c, end_s))

    def judged(self) -> Judged:
        """Return what the events mean: with DDP's times, and without the rows that are only traced."""
        table, trained = self.table if self._measured is None else self._measured, self.trained
        for ended_s, times in self._ddp:
            row = bisect_left(table.host_ended_s, ended_s)
            if row < table.single:
                table.ddp[row] = self._of_whole_step(times, row)
        first_s = self.first_step_ended_s
        whole, newest = self.whole.copy(), self._newest
        if newest is not None and not newest.exhausted:  # the end of the run cut it short
            whole[newest.loader] += 1
        return Judged(
            table,
            self.phases.summary(self.unix_s),
            None if first_s is None else self.unix_s(first_s),
            self.epochs,
            whole,
            self.first_pass,
            {int(name): (int(calls), int(size), seconds) for name, (calls, size, seconds) in self.collectives.items()},
            Batches(
                trained.drawn,
                trained.untrained + trained.waiting,
                trained.unclear + self._empty,
                self._again,
            ),
            self.uneven,
            {number: counts for number, counts in self.places.items() if number >= 0},
        )


class Batches(NamedTuple):
    """What a reader of the counts should know.

    drawn, untrained: batches of the passes that trained, and those of them that no backward pass and step used.
    unclear: backward passes and steps for which it does not show what they trained on. again: further optimizer steps
    on batches that had been drawn for an earlier one, and are parts of its row.
    """

    drawn: int = 0
    untrained: int = 0
    unclear: int = 0
    again: int = 0


class Judged(NamedTuple):
    """What a log means. phases: the record's. first_step_ended_at_s: unix time.

    epochs: of each loader that trained, the number of passes with each epoch; the one that trained last is last.
    whole: of each of these, the passes that were not abandoned before another one began.
    first_pass: the first that trained. collectives: by the number of their name calls, bytes and seconds from the
    second step on. is_uneven: DDP.join() was used: ranks may make different numbers of steps. places: of each that
    draws the number of batches, of their samples, and of those that the rows count; padding included.
    """

    table: StepTable
    phases: dict[str, Any]
    first_step_ended_at_s: Optional[float]
    epochs: dict[int, Counter[int]]
    whole: Counter[int]
    first_pass: int
    collectives: dict[int, tuple[int, int, float]]
    batches: Batches
    is_uneven: bool
    places: dict[int, list[int]]

    def join(self, live: Judged) -> Judged:
        """Add what followed these rows, as it was judged live: of a long run the log keeps the first steps alone.

        The last of these rows is taken as it was judged live: a further step of it may be missing here.
        """
        first = min(max(self.table.single - 1, 0), live.table.single)
        edge_s = self.table.ended_at_s[first - 1] if first else -math.inf
        self.table.continue_with(live.table, first)
        spans = {
            name: [
                *(span for span in self.phases[name] if span[0] < edge_s),
                *(span for span in live.phases.get(name, ()) if span[0] >= edge_s),
            ]
            for name in ("validations_s", "without_a_pass_s", "saves_s", "rests_s", "compiles_s")
        }
        before = (step for step in self.phases["epoch_steps"] if step <= first)
        epochs = [*before, *(step for step in live.phases.get("epoch_steps", ()) if step > first)]
        first_s = live.first_step_ended_at_s if self.first_step_ended_at_s is None else self.first_step_ended_at_s
        phases = {"epoch_steps": epochs, **spans, "saves": live.phases.get("saves")}  # live, all were seen
        return live._replace(table=self.table, phases=phases, first_step_ended_at_s=first_s)


def judge(events: Log, samples_per_step: int | None, beside: Collection[int] = ()) -> Judged:
    """Return what a whole log means: it is read twice, as the usual turn of a step shows only at its end.

    beside: places whose batches never train.
    """
    marks = {event[3]: event[2] for event in events.events() if event[0] == log.MARK}
    turn: UsualTurn | None = None
    for _ in range(2):
        machine = Machine(samples_per_step, beside, turn)
        machine.marks = marks
        machine.feed(events.events())
        turn = machine.timer.usual_turn()
    return machine.judged()
