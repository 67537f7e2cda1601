"""The FLOPs of training steps, counted from the shapes of the operators that torch dispatches.

Some steps of the warm-up are counted, which no figure contains: a script may have none after the measured ones. They
are several, so that it shows if steps differ; then more are counted, up to the end of the warm-up. Matrix products and
convolutions count, as in torch.utils.flop_counter, whose formulas are used; attention counts in full also where it is
causal. What recomputes activations in the backward pass (torch.utils.checkpoint, or a function of the script's own) is
kept apart, as it is no work of the model.

Nothing is counted where that could change the run, or where kernels hide their products; the record then says why.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_ladder_instrument import accelerator, torch_facts
from ddp_ladder_instrument.files import one_line
from ddp_ladder_instrument.recorder import NEVER, Recorder

STEPS = 3
FIRST = 2  # the first steps compile, choose kernels and show which batches are drawn ahead
SHORT_WARMUP = f"measure.warmup_steps is less than {FIRST + 1}, and steps of the warm-up are counted"
COMPILED = "torch.compile: its graphs hide their operators"
GRAPHS = "CUDA graphs are replayed as a whole"
MODE = "the script uses a dispatch mode of its own"
NO_STEPS = "none of the steps to count was like the others: the script validated, or GradScaler skipped its step"
NO_SAMPLES = "no samples were counted in these steps"
UNEVEN = "its optimizers do not all step at each step"
MOST_UNEVEN = 0.02
ALIKE = 0.02  # of the FLOPs per sample: steps that differ by less are alike
MOST_ERROR = 0.2  # standard error of the mean of the steps, of it
PRECISIONS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
OWN_KERNELS = (
    "flash_attn_2_cuda", "flash_attn_interface", "transformer_engine_torch", "selective_scan_cuda", "natten",
    "causal_conv1d_cuda", "grouped_gemm_backend", "megablocks_ops", "fused_dense_cuda",
)  # fmt: skip
"""Modules whose kernels torch's dispatcher does not see in all versions."""
NAMESPACES = re.compile(r"(aten|prims?|profiler|fsdp|_?c10d\w*|_dtensor|inductor|torchvision)::(?!deform_conv)")
HIDDEN = re.compile(r"_rnn$|_rnn_(layer|backward)|attention|_mm|addmm|addbmm|^_trilinear|cdist|encoder_layer")
"""Operators of aten that contain matrix products; those without a formula are not counted."""
OF_SUBCLASSES = re.compile(r"(sym_)?(is_contiguous|size|stride|storage_offset|numel|dim|layout)|is_strides_like_format")
"""What a mode is asked only for tensors that answer it themselves (nested ones)."""

RECOMPUTE = tuple(os.path.join("torch", *path) for path in (("utils", "checkpoint.py"), ("autograd", "function.py")))

aten = torch.ops.aten
ON_CPU = aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention_for_cpu_backward
Key = tuple[str, torch.dtype, bool]
"""Phase (forward, backward, recomputed), data type, True for a convolution."""


def _of_convolution(x: Any, weight: Any, out: Any, transposed: bool) -> int:
    """Return its FLOPs: each weight meets each place of the output, or of the input if it is transposed."""
    places = (x if transposed else out).shape
    return int(2 * places[0] * math.prod(places[2:]) * weight.numel())


def _convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
                 *_: Any, out_val: Any) -> int:  # fmt: skip
    return _of_convolution(x, weight, out_val, transposed)


def _convolution_backward(grad: Any, x: Any, weight: Any, *more: Any, out_val: Any) -> int:
    """Return its FLOPs: as many as forward for each of both gradients. torch's formula ignores groups."""
    return int(_of_convolution(x, weight, grad, more[4]) * sum(more[-1][:2]))


def formulas() -> dict[Any, Callable[..., int]]:
    """Return the formula of each operator that counts."""
    from torch.utils.flop_counter import flop_registry

    flash = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward
    return {
        **flop_registry,
        aten.convolution: _convolution,
        aten.convolution_backward: _convolution_backward,
        aten.mv: lambda matrix, *_, **__: 2 * matrix.numel(),
        ON_CPU[0]: lambda q, k, v, *_, out_val, **__: flop_registry[flash[0]](q, k, v, out_val=out_val),
        ON_CPU[1]: lambda grad, q, k, v, *_, out_val, **__: flop_registry[flash[1]](grad, q, k, v, out_val=out_val),
    }


class FlopCounter(TorchDispatchMode):
    """Counts the FLOPs of the operators that run in this thread, and in the backward passes that it begins.

    torch's own mode also hooks every module, which is not needed here.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._formulas = formulas()
        self._decomposes: dict[Any, bool] = {}
        self.flops: Counter[Key] = Counter()
        self.uncounted: dict[str, None] = {}  # operators that could not be counted, in order
        self.off = False
        self._leave_triton = _watch_triton(self.uncounted)

    def stop(self) -> None:
        """Stop counting, in whatever thread or forked process this is."""
        if self.off:
            return
        self.off = True
        self._leave_triton()
        depth = torch._C._len_torch_dispatch_stack()
        if depth and torch._C._get_dispatch_stack_at(depth - 1) is self:
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and count it; raises only what the operator does."""
        kwargs = kwargs or {}
        if self.off:
            return func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            self.uncounted[str(func)] = None
            return func(*args, **kwargs)
        packet = func._overloadpacket
        formula = self._formulas.get(packet)
        if formula is None:
            if OF_SUBCLASSES.fullmatch(packet.__name__):
                return NotImplemented
            if self._is_composite(func):  # under torch.inference_mode nothing has taken it apart yet
                with self:
                    return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        name = func._schema.name
        try:
            if formula is not None:
                self._count(packet, formula(*args, **kwargs, out_val=out), args)
            elif not NAMESPACES.match(name) or HIDDEN.search(name.partition("::")[2]):
                self.uncounted[name] = None
        except Exception:  # a formula for other arguments: never the training's problem
            self.uncounted[name] = None
        return out

    def _is_composite(self, func: Any) -> bool:
        known = self._decomposes.get(func)
        if known is None:
            key = torch._C.DispatchKey.CompositeImplicitAutograd
            known = self._decomposes[func] = func is not torch.ops.prim.device.default and (
                key in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
            )
        return known

    def _count(self, packet: Any, flops: int, args: Any) -> None:
        phase = "forward"
        if torch._C._current_graph_task_id() != -1:
            phase = "recomputed" if torch.is_grad_enabled() and _in_checkpoint() else "backward"
        if packet.__name__.endswith("attention_backward") or packet is ON_CPU[1]:
            flops = flops * 4 // 5  # one of the five products computes the scores again
        dtype = next(operand.dtype for operand in args if isinstance(operand, torch.Tensor))
        self.flops[phase, dtype, "conv" in packet.__name__] += flops


def _watch_triton(launched: dict[str, None]) -> Callable[[], None]:
    """Add the names of kernels of Triton that are launched, which no dispatcher sees; return what ends that."""
    kernels = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    if kernels is None:
        return lambda: None
    original = kernels.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched[f"Triton's {getattr(self, '__name__', 'kernel')}"] = None
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


class CountedStep(NamedTuple):
    """The FLOPs of one step."""

    samples: int
    flops: Counter[Key]

    @property
    def of_model(self) -> float:
        """Return those of a sample, without what is recomputed."""
        return sum(flops for (phase, _, _), flops in self.flops.items() if phase != "recomputed") / self.samples


class StepFlops:
    """Counts the FLOPs of STEPS steps in the second half of the warm-up, or of more.

    A counted step lasts from one row of the table to the next, so it has one step of each optimizer.
    """

    def __init__(self, recorder: Recorder, warmup_steps: int) -> None:
        self._recorder = recorder
        self._warmup_steps = warmup_steps
        self._counter: FlopCounter | None = None
        self._steps: list[CountedStep] = []
        self._disturbed_by = (0, 0)
        # Why nothing is counted; None: something is.
        self.why: str | None = None if warmup_steps > FIRST else SHORT_WARMUP
        if self.why is None:
            recorder.count_at = max(FIRST, warmup_steps // 2)
            recorder.count_flops = self._next

    def _next(self, step: int) -> int:
        """End a counted step and begin the next one; return the number of steps at its end."""
        try:
            if self._counter is None:
                self.why = self._obstacle()
                if self.why is None:
                    self._counter = FlopCounter()
                    # A loader's worker would be slow, and stay so.
                    os.register_at_fork(after_in_child=self._counter.stop)
                    self._counter.__enter__()  # type: ignore[no-untyped-call]
            elif not self._recorder.machine.table.last_samples:
                self.why = NO_SAMPLES
            elif self._disturbances == self._disturbed_by:
                self._steps.append(CountedStep(self._recorder.machine.table.last_samples, self._counter.flops))
            enough = len(self._steps) >= STEPS and self._spread <= ALIKE
            if self._counter is None or self.why or enough or step >= self._warmup_steps:
                self.stop()
                return NEVER
            self._counter.flops = Counter()
            self._disturbed_by = self._disturbances
            return step + 1
        except Exception as error:  # never the training's problem
            self.why = one_line(error)
            self.stop()
            return NEVER

    @property
    def _disturbances(self) -> tuple[int, int]:
        """Validations and skipped steps so far: a step with one is not like the others."""
        return self._recorder.machine.phases.evaluations, self._recorder.machine.skips

    def _obstacle(self) -> str | None:
        """Return why counting would miss something, or change the run; None if it would not."""
        if torch_facts.compiled_graphs():
            return COMPILED
        if self._recorder.machine.replays:
            return GRAPHS
        if torch._C._len_torch_dispatch_stack():
            return MODE
        if "torch.nn.attention.flex_attention" in sys.modules and not hasattr(
            TorchDispatchMode, "supports_higher_order_operators"
        ):
            return "this version of torch does not let flex_attention be counted"
        return next(
            (f"{name} has kernels that hide their products" for name in OWN_KERNELS if name in sys.modules), None
        )

    def stop(self) -> None:
        if self._counter is not None:
            self._counter.stop()

    def summary(self, on_gpu: bool) -> dict[str, Any]:
        """Return the record's ``flops``: the mean of the counted steps."""
        self.stop()
        why = self.why or self._why_not()
        if why is not None:
            return {"why": why}
        samples = sum(step.samples for step in self._steps)
        phases: Counter[str] = Counter()
        precisions: Counter[str] = Counter()
        try:
            products = accelerator.float32_products(on_gpu)
        except Exception:  # their number is known all the same
            products = None
        for (phase, dtype, is_convolution), flops in sum((step.flops for step in self._steps), Counter()).items():
            phases[phase] += flops
            if phase != "recomputed":
                precisions[_precision(dtype, is_convolution, products, on_gpu)] += flops
        return {
            **{phase: phases[phase] / samples for phase in ("forward", "backward", "recomputed")},
            "precisions": {name: flops / sum(precisions.values()) for name, flops in precisions.items()},
            "steps": len(self._steps),
            "spread": self._spread,
        }

    @property
    def _spread(self) -> float:
        """Return (most - least) / mean of the FLOPs per sample of the counted steps."""
        flops = [step.of_model for step in self._steps]
        return (max(flops) - min(flops)) / (statistics.fmean(flops) or 1.0)

    def _why_not(self) -> str | None:
        """Return why the counted steps give no figure."""
        machine = self._recorder.machine
        if self._counter is None:
            return "the run ended before the steps to count"
        if self._counter.uncounted:
            return f"kernels that hide their products: {', '.join([*self._counter.uncounted][:3])}"
        if machine.replays:
            return GRAPHS
        if torch_facts.compiled_graphs():
            return COMPILED
        if not self._steps:
            return NO_STEPS
        rows, calls = machine.table.count, machine.calls
        optimizers = round(calls / rows)
        if abs(calls - optimizers * rows) > MOST_UNEVEN * calls + optimizers:
            return UNEVEN
        flops, number = [step.of_model for step in self._steps], len(self._steps)
        if not any(flops):
            return "no matrix product was seen"
        if number > 1 and statistics.stdev(flops) / math.sqrt(number) > MOST_ERROR * statistics.fmean(flops):
            return f"the FLOPs per sample of {number} steps differ by {100 * self._spread:.0f} %: too much for a mean"
        return None


def _precision(dtype: torch.dtype, is_convolution: bool, products: str | None, on_gpu: bool) -> str:
    """Return ``bf16``, ``tf32``...; products: accelerator.float32_products, None if that could not be read."""
    name = str(dtype).partition(".")[2]
    if name != "float32" or not on_gpu or not accelerator.has_tf32():
        return PRECISIONS.get(name, name)
    if products is None:
        return "fp32 or tf32"
    allowed = "TF32 convolutions" in products if is_convolution else not products.startswith("highest")
    return "tf32" if allowed else "fp32"
