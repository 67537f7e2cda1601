"""SIGTERM and SIGUSR1, with which schedulers say that time is nearly up: all ranks stop after the same step.

    #SBATCH --signal=USR1@120    # two minutes before the end, to every process that srun has started

torchrun passes SIGTERM on, but dies of SIGUSR1, unless it is new enough for --signals-to-handle and has been given
SIGTERM,SIGINT,SIGUSR1 there. Its own exit code is then 1, whatever that of the ranks.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from common.distributed import World

INTERRUPTED = 75
"""Exit code of a run that saved its state and can be resumed: EX_TEMPFAIL of sysexits.h, "try again"."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Notes the signals, and lets the ranks agree on when to stop.

    A signal may reach one rank earlier than another, or only one of them, while a step needs them all. So after each
    step they add up who was told to. The sum is read after the next step: nobody waits for it.
    """

    def __init__(self, world: World) -> None:
        self._told = False
        self._alone = world.size == 1
        self._sum = torch.zeros(1)
        self._under_way: Any = None
        # One number on the host: no reason to keep the GPU waiting for it.
        self._group: Any = None if self._alone else dist.new_group(backend="gloo")

    def note(self, signum: int, frame: object) -> None:
        """The signal handler."""
        self._told = True

    def agreed(self) -> bool:
        """Whether all ranks are to stop now. Every rank has to call it after every step."""
        if self._alone:
            return self._told
        stop = self._answer()
        self._sum = torch.tensor([float(self._told)])
        self._under_way = dist.all_reduce(self._sum, group=self._group, async_op=True)
        return stop

    def finish(self) -> None:
        """Wait for what is still under way."""
        self._answer()

    def _answer(self) -> bool:
        if self._under_way is None:
            return False
        self._under_way.wait()
        self._under_way = None
        return bool(self._sum.item() > 0)


@contextlib.contextmanager
def stop_request(world: World, can_save: bool) -> Iterator[Callable[[], bool]]:
    """Listen to the signals, and give what every rank has to ask after every step: ``stop()``.

    can_save: without a place for checkpoints the signals keep their meaning, and the answer is always no.
    """
    if not can_save:
        yield lambda: False
        return
    request = StopRequest(world)
    before = {signum: signal.signal(signum, request.note) for signum in SIGNALS}
    try:
        yield request.agreed
        request.finish()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
