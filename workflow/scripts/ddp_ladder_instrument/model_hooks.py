"""The patches on torch.nn.Module: they detect when the trained model enters and leaves eval mode."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ddp_ladder_instrument.compiler import eager
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.pass_timer import PassTimer


class Trained:
    """The modules that are trained as a whole, as opposed to their parts and to other models."""

    def __init__(self) -> None:
        self._ends: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []
        self._known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def add(self, optimizer: Any) -> None:
        """Add the modules that hold all parameters of this optimizer."""
        parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        self._ends = [ends for ends in self._ends if ends[0]() is not None]
        if parameters:
            self._ends.append((weakref.ref(parameters[0]), weakref.ref(parameters[-1])))
            self._known.clear()

    def holds(self, module: Any) -> bool:
        """Return True if ``module`` is trained as a whole: it has an optimizer's first and last parameter."""
        if not self._ends:
            return False
        known = self._known.get(module)
        if known is None:
            held = {id(parameter) for parameter in module.parameters()}
            known = any(id(first()) in held and id(last()) in held for first, last in self._ends)
            self._known[module] = known
        return known


def patch_modes(timer: PassTimer, trained: Trained) -> str | None:
    """Notify the timer of eval() and train() on a model that is trained as a whole."""

    holds, eval_mode, train_mode = eager(trained.holds), eager(timer.eval_mode), eager(timer.train_mode)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def train(self: Any, mode: bool = True) -> Any:  # eval() is train(False)
            if not mode and not timer.evaluating and holds(self):
                eval_mode()
            result = original(self, mode)
            if mode and timer.evaluating and holds(self):
                train_mode()
            return result

        return train

    return patch(torch.nn.Module, "train", wrap)
