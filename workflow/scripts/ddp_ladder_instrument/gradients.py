"""Backward passes, and the detection of gradients that the script has dropped; nothing is read from the device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from ddp_ladder_instrument.loops import Loop, is_remainder


class Gradient:
    """The state of one parameter's gradient: its address and its version, which every write increments."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = weakref.ref(parameter)
        self._place = parameter.grad.data_ptr()
        self._version = parameter.grad._version

    @classmethod
    def of(cls, optimizers: Iterable[Any]) -> Gradient | None:
        """Return the first gradient of these optimizers' parameters; None if there is none, or its state is hidden."""
        for optimizer in list(optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        try:
                            return cls(parameter)
                        except (AttributeError, RuntimeError):
                            return None
        return None

    def is_kept(self) -> bool:
        """Return False if it is gone or was written to in place; a new address proves nothing and counts as kept."""
        parameter = self._parameter()
        if parameter is None:
            return True
        gradient = parameter.grad
        if gradient is None:
            return False
        return bool(gradient.data_ptr() != self._place or gradient._version == self._version)


class BackwardPasses:
    """The backward passes of the running step, and which passes over a DataLoader end without one.

    count: the number of all backward passes; at_step: the same at the last step.
    replays: the same of CUDA graphs, which may contain backward passes.
    optimizers: those whose gradients show whether the script has dropped them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.at_step = 0
        self.replays = self._replays_at_step = 0
        self._between = False  # a pass ended since the last step, and no backward pass followed in another
        self._gradient: Gradient | None = None  # its state at that end

    @property
    def is_seen(self) -> bool:
        """True if gradients may have been computed since the last step."""
        return self.count > self.at_step or self.replays > self._replays_at_step

    def replay(self) -> None:
        """Count the replay of a CUDA graph."""
        self.replays += 1

    def end_pass(self, loop: Loop) -> None:
        """Note the end of a pass with batches for the running step."""
        loop.spent = self.count > self.at_step
        self._between = True
        self.look_at_gradient()

    def begin(self, pending: Sequence[Loop]) -> bool:
        """Count a backward pass that begins; return True if it belongs to a pass that is over."""
        self.count += 1
        if not self._between:
            return False
        living = [loop for loop in pending if loop.living and not loop.without_grad]
        over = [loop for loop in pending if not loop.living]
        if not living:
            for loop in over:
                loop.spent = True
            return True
        lost = self._gradient is not None and not self._gradient.is_kept()
        for loop in over:
            loop.dropped = lost and is_remainder(loop, living)
        self._between = False
        return False

    def look_at_gradient(self) -> None:
        """Note the state of the gradient at the end of a pass, or of its last backward pass."""
        self._gradient = Gradient.of(self.optimizers) if self.count > self.at_step else None

    def drop_untrained(self, pending: Sequence[Loop]) -> None:
        """Drop the rest of a pass for which no backward pass was made, neither before nor after its end."""
        living = [loop for loop in pending if loop.living]
        if living and 0 < self.count - self.at_step <= max(loop.batches for loop in living):
            for loop in pending:
                if not loop.living and not loop.spent:
                    loop.dropped = is_remainder(loop, living)

    def end_step(self) -> None:
        """Begin the next step."""
        self.at_step = self.count
        self._replays_at_step = self.replays
        self._between = False
        self._gradient = None
