"""The state of the training in a link of a chain: before its first step, and at its end.

The parameters by some of their values, and how far the optimizer is. They show whether the next link goes on where this
one ended.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ddp_ladder_instrument.torch_facts import Named, local

MOST_VALUES = 256
MOST_GROUPS = 64
"""Parameter groups of which the learning rate is kept."""


class States:
    """What the steps of the optimizers show.

    named: the parameters of wrapped modules. is_capturing: a CUDA graph is being made, in which nothing may be read.
    on_first: called with the first state once it is complete, after the first step. had_backward: set by the observer.
    """

    def __init__(
        self,
        named: Callable[[], Named],
        is_capturing: Callable[[], bool],
        on_first: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._named, self._is_capturing, self._on_first = named, is_capturing, on_first
        self.had_backward = False
        self.first: dict[str, Any] | None = None
        self._tensors: list[Callable[[], torch.Tensor | None]] = []
        self._optimizers: list[_Optimizer] = []
        self._begun = self._over = False

    def before_step(self, optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the state before the first step, and after it what keeps it; do nothing from then on."""
        if self._over or self._is_capturing():
            return
        if not self._begun:
            # A step without gradients only makes an optimizer's state, into which a checkpoint is then loaded.
            self._begun = self.had_backward or any(map(callable, (*args[1:], *kwargs.values())))
            if self._begun or self.first is None:
                self._begin(optimizer)
        elif all(known.optimizer() is not optimizer for known in self._optimizers):
            self._optimizers.append(_Optimizer(optimizer))
        elif optimizer is self._optimizers[0].optimizer():
            self._over = True
            for known in self._optimizers:
                known.hold()
            self._complete_first(_steps(self._optimizers))
            self._on_first(self.first or {})

    def give_up(self) -> None:
        """Keep nothing of optimizers that are gone, as there is another one."""
        for known in self._optimizers:
            if known.optimizer() is None:
                known.forget()

    def _begin(self, optimizer: Any) -> None:
        known = [tensor for _, tensor in self._named()]
        ids = {id(tensor) for tensor in known}
        own = [tensor for group in optimizer.param_groups for tensor in group["params"] if id(tensor) not in ids]
        tensors = [tensor for tensor in (*known, *own) if tensor.requires_grad]
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._optimizers = [_Optimizer(optimizer)]
        self.first = self._state(tensors)

    def _complete_first(self, steps_now: int | None) -> None:
        """An optimizer has made no step if its state is empty, and none that can be told if it keeps none."""
        if self.first is not None and self.first["optimizer_steps"] is None and steps_now is not None:
            self.first["optimizer_steps"] = 0

    def last(self) -> dict[str, Any] | None:
        """Return the state now, at the end; None without a step."""
        if self.first is None:
            return None
        tensors = [tensor for tensor in (held() for held in self._tensors) if tensor is not None]
        state = self._state(tensors if len(tensors) == len(self._tensors) else [])
        self._complete_first(state["optimizer_steps"])
        return state

    def _state(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        parts = [local(tensor) for tensor in tensors]
        groups = [group for optimizer in self._optimizers for group in optimizer.groups()]
        rates = [float(group["lr"]) for group in groups if group.get("lr") is not None]
        return {
            "optimizer_steps": _steps(self._optimizers),
            "lr": [rate for rate in rates[:MOST_GROUPS] if math.isfinite(rate)],
            "values": [value if math.isfinite(value) else None for value in _values(parts)],
            "count": sum(part.numel() for part in parts),
        }


class _Optimizer:
    """An optimizer, which may be gone at the end: its groups and its counts of steps then tell what it was."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._groups: Sequence[Mapping[str, Any]] = ()
        self._counts: list[Any] = []

    def hold(self) -> None:
        """Keep what is updated in place; not the rest of the state, which may be as large as the model."""
        self._counts = [count for count in self.counts() if isinstance(count, torch.Tensor)]
        self._groups = self.groups()

    def forget(self) -> None:
        self._counts, self._groups = [], ()

    def groups(self) -> Sequence[Mapping[str, Any]]:
        optimizer = self.optimizer()
        return self._groups if optimizer is None else optimizer.param_groups

    def counts(self) -> list[Any]:
        """Return the counts of steps of its parameters, or of its groups."""
        optimizer = self.optimizer()
        if optimizer is None:
            return self._counts
        held = [state for state in (*optimizer.state.values(), *optimizer.param_groups) if isinstance(state, Mapping)]
        return [state["step"] for state in held if state.get("step") is not None]


def _steps(optimizers: Sequence[_Optimizer]) -> int | None:
    """Return the most steps that a parameter has had; None if none is counted."""
    counts = [count for optimizer in optimizers for count in optimizer.counts()]
    found = [int(count) for count in counts if not isinstance(count, torch.Tensor)]
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for count in counts:
        if isinstance(count, torch.Tensor):
            plain = local(count).reshape(())
            by_device.setdefault(plain.device, []).append(plain.double())
    found += [int(torch.stack(each).max()) for each in by_device.values()]
    return max(found, default=None)


def _values(parts: Sequence[torch.Tensor]) -> list[float]:
    """Return some elements of each, evenly spaced; of more tensors than MOST_VALUES, of some of them."""
    parts = [part for part in parts if part.numel()]
    if len(parts) > MOST_VALUES:
        parts = [parts[k * len(parts) // MOST_VALUES] for k in range(MOST_VALUES)]
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for part in parts:
        some = part.reshape(-1)[:: -(-part.numel() // (MOST_VALUES // len(parts)))]
        alike.setdefault((some.device, some.dtype), []).append(some)
    # One copy to the host for each kind; some devices have no float64.
    gathered = [torch.cat(each).cpu() for each in alike.values()]
    return [
        float(value)
        for each in gathered
        for value in (torch.view_as_real(each).reshape(-1)[:MOST_VALUES] if each.is_complex() else each).double()
    ][:MOST_VALUES]
