"""The FLOPs of a training, from the shapes of the operators that a witness sees.

Matrix products and convolutions count, by the formulas of torch.utils.flop_counter; attention counts in full also
where it is causal. Each operator is of the batches that its inputs depend on, so that what is done with batches that
train nothing is left out. What recomputes activations in the backward pass (torch.utils.checkpoint, or a function of
the script's own) is kept apart, as it is no work of the model. Where kernels hide their products, that is said.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from ddp_ladder_instrument import accelerator
from ddp_ladder_instrument.testimony import Step

MOST_ERROR = 0.2  # standard error of the mean of the batches, of it
PRECISIONS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
OWN_KERNELS = (
    "flash_attn_2_cuda", "flash_attn_interface", "transformer_engine_torch", "selective_scan_cuda", "natten",
    "causal_conv1d_cuda", "grouped_gemm_backend", "megablocks_ops", "fused_dense_cuda",
)  # fmt: skip
"""Modules whose kernels torch's dispatcher does not see in all versions."""
NAMESPACES = re.compile(r"(aten|prims?|profiler|fsdp|_?c10d\w*|_dtensor|inductor|torchvision)::(?!deform_conv)")
HIDDEN = re.compile(r"_rnn$|_rnn_(layer|backward)|attention|_mm|addmm|addbmm|^_trilinear|cdist|encoder_layer")
"""Operators of aten that contain matrix products; those without a formula are not counted."""
RECOMPUTE = tuple(os.path.join("torch", *path) for path in (("utils", "checkpoint.py"), ("autograd", "function.py")))

aten = torch.ops.aten
ON_CPU = aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention_for_cpu_backward
Key = tuple[str, torch.dtype, bool]
"""Phase (forward, backward, recomputed), data type, True for a convolution."""
NO_BATCH = -1
"""In place of a batch: gradients, of what depends on none."""


def _of_gradients(grad: Any, x: Any, weight: Any, *more: Any, out_val: Any) -> int:
    """Return the FLOPs of a convolution's two gradients, each as many as forward: torch's formula ignores groups."""
    places = (x if more[4] else grad).shape
    return int(2 * places[0] * math.prod(places[2:]) * weight.numel() * sum(more[-1][:2]))


def formulas() -> dict[Any, Callable[..., int]]:
    """Return the formula of each operator that counts."""
    from torch.utils.flop_counter import flop_registry

    flash = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward
    return {
        **flop_registry,
        aten.convolution_backward: _of_gradients,
        aten.mv: lambda matrix, *_, **__: 2 * matrix.numel(),
        ON_CPU[0]: lambda q, k, v, *_, out_val, **__: flop_registry[flash[0]](q, k, v, out_val=out_val),
        ON_CPU[1]: lambda grad, q, k, v, *_, out_val, **__: flop_registry[flash[1]](grad, q, k, v, out_val=out_val),
    }


class BatchFlops:
    """The FLOPs of each batch, so far."""

    def __init__(self) -> None:
        self._formulas = formulas()
        self._of: dict[int, dict[Key, float]] = {}
        self._uncounted: dict[str, set[int]] = {}  # operators that could not be counted, and their batches
        self._on_gpu = False
        self._leave_triton: Callable[[], None] | None = None

    def stop(self) -> None:
        if self._leave_triton is not None:
            self._leave_triton()

    def _note(self, name: str, batches: AbstractSet[int]) -> None:
        self._uncounted.setdefault(name, set()).update(batches)

    def add(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, batches: AbstractSet[int]
    ) -> None:
        """Add an operator that has run, whose inputs depend on these batches."""
        if self._leave_triton is None and (triton := sys.modules.get("triton.runtime.jit")) is not None:
            self._leave_triton = _watch(triton.JITFunction, lambda name: self._note(f"Triton's {name}", {NO_BATCH}))
        packet, name = func._overloadpacket, func._schema.name
        formula = self._formulas.get(packet)
        is_backward = torch._C._current_graph_task_id() != -1
        if not batches and (torch.is_grad_enabled() or is_backward):
            batches = {NO_BATCH}
        if formula is None:
            if not NAMESPACES.match(name) or HIDDEN.search(name.partition("::")[2]):
                self._note(name, batches)
            return
        try:
            flops = formula(*args, **kwargs, out_val=out)
        except Exception:  # a formula for other arguments: never the training's problem
            self._note(name, batches)
            return
        is_again = is_backward and torch.is_grad_enabled() and _in_checkpoint()
        phase = "recomputed" if is_again else "backward" if is_backward else "forward"
        if packet.__name__.endswith("attention_backward") or packet is ON_CPU[1]:
            flops = flops * 4 // 5  # one of the five products computes the scores again
        operand = next(each for each in args if isinstance(each, torch.Tensor))
        self._on_gpu = self._on_gpu or operand.device.type != "cpu"
        key = phase, operand.dtype, "conv" in packet.__name__
        for batch in batches:
            known = self._of.setdefault(batch, {})
            known[key] = known.get(key, 0.0) + flops / len(batches)

    def summary(self, steps: Sequence[Step]) -> dict[str, Any]:
        """Return the FLOPs of a sample that the training's steps were shown; or why they are not known."""
        self.stop()
        shown: Counter[int] = Counter()
        for step in steps:
            shown.update(step.samples)
        used = {*shown, *(batch for step in steps for batch in step.targets)}
        each = [_of_model(self._of.get(batch, {})) / shown[batch] for batch in shown if shown[batch]]
        if why := self._why_not(used, each):
            return {"why": why}
        samples = sum(shown.values())
        phases: dict[str, float] = dict.fromkeys(("forward", "backward", "recomputed"), 0.0)
        precisions: dict[str, float] = {}
        try:
            products = accelerator.float32_products(self._on_gpu)
        except Exception:  # their number is known all the same
            products = None
        for batch in {*used, NO_BATCH} & set(self._of):
            for (phase, dtype, is_convolution), flops in self._of[batch].items():
                phases[phase] += flops
                if phase != "recomputed":
                    name = _precision(dtype, is_convolution, products, self._on_gpu)
                    precisions[name] = precisions.get(name, 0.0) + flops
        return {
            **{phase: flops / samples for phase, flops in phases.items()},
            "precisions": {name: flops / sum(precisions.values()) for name, flops in precisions.items()},
            "steps": len(steps),
            "spread": (max(each) - min(each)) / statistics.fmean(each),
        }

    def _why_not(self, used: AbstractSet[int], each: Sequence[float]) -> str:
        """each: FLOPs of each batch, per sample."""
        hidden = [name for name, batches in self._uncounted.items() if batches & {*used, NO_BATCH}]
        if hidden:
            return f"kernels that hide their products: {', '.join(hidden[:3])}"
        if loaded := next((name for name in OWN_KERNELS if name in sys.modules), None):
            return f"{loaded} has kernels that hide their products"
        if not any(each):
            return "no matrix product was seen in a step"
        if len(each) > 1 and statistics.stdev(each) / math.sqrt(len(each)) > MOST_ERROR * statistics.fmean(each):
            return f"the FLOPs per sample of {len(each)} batches differ by too much for a mean"
        return ""


def _of_model(flops: Mapping[Key, float]) -> float:
    return sum(number for (phase, _, _), number in flops.items() if phase != "recomputed")


def _watch(kernels: Any, note: Callable[[str], object]) -> Callable[[], None]:
    """Note kernels of Triton that are launched, which no dispatcher sees; return what ends that."""
    original = kernels.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(getattr(self, "__name__", "kernel"))
        return original(self, *args, **kwargs)

    kernels.run = run
    return lambda: setattr(kernels, "run", original)


def _in_checkpoint() -> bool:
    """Return True if torch.utils.checkpoint called this, or an autograd function (those of DeepSpeed and Megatron).

    In a backward pass only a recomputation has gradients on, or one that is differentiated again.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith(RECOMPUTE):
            return True
        frame = frame.f_back
    return False


def _precision(dtype: torch.dtype, is_convolution: bool, products: str | None, on_gpu: bool) -> str:
    """Return ``bf16``, ``tf32``...; products: accelerator.float32_products, None if that could not be read."""
    name = str(dtype).partition(".")[2]
    if name != "float32" or not on_gpu or not accelerator.has_tf32():
        return PRECISIONS.get(name, name)
    if products is None:
        return "fp32 or tf32"
    allowed = "TF32 convolutions" in products if is_convolution else not products.startswith("highest")
    return "tf32" if allowed else "fp32"
