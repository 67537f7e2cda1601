"""Detection of gradients that the script has dropped; nothing is read from the device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


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
