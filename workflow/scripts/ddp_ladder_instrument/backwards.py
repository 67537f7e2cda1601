"""Facts from backward passes: samples of the loss, and the dtypes of the model's matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ddp_ladder_instrument.compiler import eager
from ddp_ladder_instrument.hooks import patch
from ddp_ladder_instrument.parameters import dtype_name

MOST_LOSSES = 64
GRAPHS = 2
"""Number of backward passes whose graph is searched: the first ones, in the warm-up."""
MOST_NODES = 20_000
PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Linear", "Convolution", "ScaledDotProduct", "CudnnRnn", "Addmv")


class Backwards:
    """Examines a backward pass when ``wanted`` is set; nothing is read from the device before the end.

    step: returns the number of steps made so far.
    on_backward: called before each backward pass; if it returns a function, that is called after the pass.
    """

    def __init__(
        self,
        step: Callable[[], int],
        unmeasured: list[str],
        on_backward: Callable[[], Callable[[], None] | None] = lambda: None,
    ) -> None:
        self.wanted = True
        self.product_dtypes: set[str] = set()
        self._step = step
        self._unmeasured = unmeasured
        self._on_backward = on_backward
        self._graphs_left = GRAPHS
        self._losses: list[tuple[int, torch.Tensor]] = []

    def install(self) -> str | None:
        """Patch torch.autograd.backward, which Tensor.backward calls too."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            look, on_backward = eager(self._look), eager(self._on_backward)

            def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                if self.wanted:
                    self.wanted = False
                    look(tensors)
                after = on_backward()
                result = original(tensors, *args, **kwargs)
                if after is not None:
                    after()
                return result

            return backward

        return patch(torch.autograd, "backward", wrap)

    def _look(self, tensors: Any) -> None:
        loss = tensors[0] if isinstance(tensors, Sequence) and len(tensors) else tensors
        if not isinstance(loss, torch.Tensor) or (loss.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        try:
            if loss.numel() == 1:
                # A copy: the script, or the next replay of a CUDA graph, may overwrite the loss itself.
                with torch.no_grad():
                    self._losses.append((self._step() + 1, loss.detach().clone()))
                if len(self._losses) > MOST_LOSSES:
                    del self._losses[1::2]
            if self._graphs_left:
                self._graphs_left -= 1
                self._look_at_graph(loss.grad_fn)
        except Exception as error:
            self._unmeasured.append(f"loss: {type(error).__name__}: {error}")
            self._graphs_left = 0

    def _look_at_graph(self, root: Any) -> None:
        if root is not None and not hasattr(root, "_input_metadata"):
            self._unmeasured.append(f"product_dtypes: Node._input_metadata is missing in torch {torch.__version__}")
            self._graphs_left = 0
            return
        self.product_dtypes |= product_dtypes(root)

    def losses(self) -> dict[str, Any] | None:
        """Return the record's ``loss``; steps count from 1. None when no backward pass was seen."""
        if not self._losses:
            return None
        values = [(step, float(loss)) for step, loss in self._losses]
        return {
            "samples": len(values),
            "first": _finite(values[0][1]),
            "last": _finite(values[-1][1]),
            "last_step": values[-1][0],
            "not_finite_steps": [step for step, value in values if not math.isfinite(value)],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def product_dtypes(root: Any) -> set[str]:
    """Return the dtypes of the results of matrix products and convolutions in the graph below ``root``.

    They come from each node's metadata. Its saved tensors are not touched: unpacking them may compute
    them again (activation checkpointing). Compiled graphs contain no such nodes.
    """
    found: set[str] = set()
    seen = {root}
    left = [root] if root is not None else []
    while left and len(seen) < MOST_NODES:
        node = left.pop()
        if node.name().startswith(PRODUCTS):
            found |= {dtype_name(result.dtype) for result in node._input_metadata[:1]}
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                left.append(below)
    return found
