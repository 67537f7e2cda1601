"""The log of a rank: what happened in its main thread, in the order in which it ended; nothing is decided here.

A log is one array of doubles, COLUMNS of them for an event: kind, begin, end, thing and three amounts. Times are
seconds of one monotonic clock (time.perf_counter). The first event is RANK. ranks/rank<k>.log has these bytes,
little-endian.

The events of the first WHOLE_STEPS steps are kept; what follows, the state machine has seen live.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Iterator

WHOLE_STEPS = 20_000
WHOLE_EVENTS = 80_000  # with the marks of a device 9 MB
COLUMNS = 7
FORMAT = 1

RANK = 1  # thing: the rank; amounts: the unix time at this moment, format of the log
GROUP = 2  # init_process_group, from its begin to its end
PASS = 3  # a pass begins: thing: the pass; amounts: its loader, samples of it that are no padding (-1: all, or unknown)
MADE = 4  # thing: the pass whose iterator is made
DRAW = 5  # thing: the pass; amounts: indices (padding included), those of them that did not arrive
DRAW_NO_GRAD = 6  # the same, with gradients off
END = 7  # thing: the pass; amount: 1 if it is exhausted, 0 if it is abandoned
EPOCH = 8  # thing: the pass; amount: the epoch of its sampler (-1: unknown)
FORWARD = 9  # of a module that DDP wraps; thing: the module; last amount: NO_GRAD, SENDS (its backward pass exchanges
# gradients) or NO_SYNC. The others, in logs of earlier versions: first two dimensions of its input
BACKWARD = 10
STEP = 11  # thing: the optimizer
SKIP = 12  # GradScaler skipped a step
ZERO = 13  # gradients are discarded; thing: the optimizer (-1: those of the whole model)
CAPTURE = 14  # thing: the optimizer whose step was captured into a CUDA graph; -1: a backward pass was
REPLAY = 15  # thing: the CUDA graph
EVAL = 16  # the trained model is put in eval mode, or TRAIN: in training mode
TRAIN = 17
COLLECTIVE = 18  # thing: number of its name; amounts: bytes, ranks (0: a wait for an earlier call)
SAVE = 19  # thing: TORCH_SAVE, ...; 0 in logs of earlier versions, which know no more. Amounts: bytes (NaN: not known),
# 1 if another thread than the main one saved
DDP = 20  # DDP's times of one pass of the step in which ``end`` is; begin, a, b, c: forward, backward, comm, overlap
MARK = 21  # thing: the mark, which the device passed at ``end``
MEASURED = 22  # the measured steps are over: what follows is only traced
UNEVEN = 23  # DistributedDataParallel.join(): ranks may make different numbers of steps
OVER = 25  # the program has ended. Logs of earlier versions have events 24, which nothing reads
PLACE = 27  # thing: the pass that begins to draw; amount: the number of the place that draws (-1: of one too many)
COMPILE = 28  # torch.compile has compiled
UNSETTLED = 26  # STEP or SKIP: the device does not tell yet. In no file

NO_MARK = -1
NOT_MARKED = -3  # in place of a COLLECTIVE's mark, on a GPU: its time is not known
OTHER_THREAD = -2  # in place of a PASS's mark: made by another thread, whose time is not the training's
NO_GRAD, SENDS, NO_SYNC = 0, 1, 2
TORCH_SAVE, CHECKPOINT, ASYNC_CHECKPOINT = 1, 2, 3  # torch.save; torch.distributed.checkpoint's save and async_save


Event = tuple[float, float, float, float, float, float, float]
"""Kind, begin, end, thing, a, b, c. c: of PASS, MADE, DRAW, END, BACKWARD, STEP, EVAL and TRAIN the mark that was
recorded with it, on a GPU; of COLLECTIVE the mark after it, which follows the one before it."""


class Log:
    """An event log in memory. rows: its doubles.

    The number of an event, counted from 0, stays the same. Once the whole part is full, the oldest of those after it
    may be gone: ``_place`` says where the others are.
    """

    def __init__(self, rows: array[float] | None = None) -> None:
        self.rows = array("d") if rows is None else rows
        self._whole = sys.maxsize  # events of the whole part, once it is full
        self._dropped = 0  # events after it that are gone

    def __len__(self) -> int:
        """Return the number of events so far, those that were dropped included."""
        return len(self.rows) // COLUMNS + self._dropped

    @property
    def is_cut(self) -> bool:
        """True if not all steps are there event by event."""
        return self._dropped > 0

    def _place(self, number: int) -> int:
        """Return where in ``rows`` the event of this number is; of one that is gone, where the next one is."""
        return COLUMNS * min(number, max(self._whole, number - self._dropped))

    def begin(self, rank: int) -> None:
        """Begin the log of a rank, with the pair of clock and unix time."""
        now_s = time.perf_counter()
        self.add(RANK, now_s, now_s, rank, time.time(), FORMAT)

    def add(
        self, kind: int, begin_s: float, end_s: float, thing: float = 0, a: float = 0.0, b: float = 0.0, c: float = 0.0
    ) -> None:
        self.rows.extend((kind, begin_s, end_s, thing, a, b, c))

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """Yield the events from this number on that are kept, up to another number or to the last."""
        last = len(self) if stop is None else stop
        values = iter(self.rows[self._place(start) : self._place(last)])
        return zip(*[values] * COLUMNS)

    def first(self, kind: int, start: int) -> int | None:
        """Return the number of the first event of a kind, from a number on that is kept; None if there is none."""
        kinds = self.rows[self._place(start) :: COLUMNS]
        return start + kinds.index(kind) if kind in kinds else None

    def settle(self, number: int, kind: int) -> None:
        """Give an event, which is kept, its kind."""
        self.rows[self._place(number)] = kind

    def cut(self, seen: int, steps: int) -> None:
        """Drop the events after the whole part, once it is full, among those that were seen: the first ``seen`` ones.

        steps: so many steps of optimizers are among them.
        """
        if self._whole < sys.maxsize:
            first, after = self._place(self._whole), self._place(seen)
            self._dropped += (after - first) // COLUMNS
            del self.rows[first:after]
        elif steps >= WHOLE_STEPS or (steps and seen >= WHOLE_EVENTS):
            self._whole = seen

    def to_bytes(self) -> bytes:
        rows = array("d", self.rows)
        if sys.byteorder == "big":
            rows.byteswap()
        return rows.tobytes()


def read_log(data: bytes) -> Log:
    """Return the log in a file. Raises ValueError if it is not one, or of another format."""
    rows = array("d")
    if not data or len(data) % (COLUMNS * rows.itemsize):
        raise ValueError(f"it has {len(data)} bytes, which is no number of events")
    rows.frombytes(data)
    if sys.byteorder == "big":
        rows.byteswap()
    if (rows[0], rows[5]) != (RANK, FORMAT):
        raise ValueError(f"it does not begin as a log of format {FORMAT} does")
    return Log(rows)
