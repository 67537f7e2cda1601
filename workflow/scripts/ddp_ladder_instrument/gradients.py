"""Whether gradients that were there once have been dropped since: nothing is read from the device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


class Gradient:
    """What one parameter's gradient was: where it lay, and how often it had been written to."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = weakref.ref(parameter)
        self._place = parameter.grad.data_ptr()
        self._version = parameter.grad._version

    @classmethod
    def of(cls, optimizers: Iterable[Any]) -> Gradient | None:
        """The first gradient that these optimizers' parameters have; None where there is none, or none that tells."""
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
        """Whether it is neither gone nor written to; so too where it lies elsewhere now, which tells nothing."""
        parameter = self._parameter()
        if parameter is None:
            return True
        gradient = parameter.grad
        if gradient is None:
            return False
        return bool(gradient.data_ptr() != self._place or gradient._version == self._version)
