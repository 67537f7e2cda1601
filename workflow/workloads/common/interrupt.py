"""Stop on SIGTERM or SIGUSR1, which schedulers send before the time limit: all ranks stop after the same step.

    #SBATCH --signal=USR1@120    # two minutes before the end, to every process that srun has started

torchrun passes SIGTERM on. SIGUSR1 kills it, unless it is new enough for --signals-to-handle and that is set to
SIGTERM,SIGINT,SIGUSR1. Its own exit code is then 1, whatever the ranks' exit codes are.
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
    """Record of the signals, and agreement of the ranks on when to stop.

    A signal may reach one rank earlier than another, or only one of them, but a step needs all ranks. So after each
    step they sum up who has received one. The sum is read after the next step, so that no rank waits for it.
    """

    def __init__(self, world: World) -> None:
        self.stopped = False
        self._signalled = False
        self._alone = world.size == 1
        self._sum = torch.zeros(1)
        self._pending: Any = None
        # The sum is one number on the host, so Gloo is enough and the GPU does not wait.
        self._group: Any = None if self._alone else dist.new_group(backend="gloo")

    def note(self, signum: int, frame: object) -> None:
        """Handle the signal."""
        self._signalled = True

    def agreed(self) -> bool:
        """Return True if all ranks must stop now. Every rank has to call this after every step."""
        if self._alone:
            self.stopped = self._signalled
            return self.stopped
        self.stopped = self._answer()
        self._sum = torch.tensor([float(self._signalled)])
        self._pending = dist.all_reduce(self._sum, group=self._group, async_op=True)
        return self.stopped

    def finish(self) -> None:
        """Wait for the pending sum."""
        self._answer()

    def _answer(self) -> bool:
        if self._pending is None:
            return False
        self._pending.wait()
        self._pending = None
        return bool(self._sum.item() > 0)


@contextlib.contextmanager
def stop_request(world: World, can_save: bool) -> Iterator[Callable[[], bool]]:
    """Handle the signals, and yield ``stop()``, which every rank has to call after every step.

    can_save: if False, because there is no place for checkpoints, signals keep their default and it returns False.
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
        if not request.stopped:  # else another signal, which several senders may give, must not end it as it saves
            for signum, handler in before.items():
                signal.signal(signum, handler)
