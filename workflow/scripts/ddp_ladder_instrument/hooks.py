"""The patches on torch: each is small, and reports if torch lacks what it patches.

Where torch warns with ``stacklevel=2``, the patched function is one below that which the script calls, so
that the warning still names the script's own line.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import distributed as ddp_module

from ddp_ladder_instrument.compiler import eager, not_compiled
from ddp_ladder_instrument.optimizer_steps import OptimizerSteps
from ddp_ladder_instrument.step_clock import StepClock

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def patch(owner: Any, name: str, wrap: Wrap) -> str | None:
    """Replace ``owner.name``; return a message if it does not exist."""
    original = getattr(owner, name, None)
    if original is None:
        module = owner.__module__ + "." if isinstance(owner, type) else ""
        return f"{module}{owner.__name__}.{name} is missing"
    setattr(owner, name, not_compiled(functools.wraps(original)(wrap(original))))
    return None


def patch_optimizers(clock: StepClock) -> str | None:
    """Count the steps of every optimizer."""
    # Imported by name: torch.optim deletes its attribute ``optimizer``.
    optimizer = importlib.import_module("torch.optim.optimizer")
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        return "torch.optim.optimizer.register_optimizer_step_post_hook is missing"

    register(eager(clock.after_step))
    return None


def patch_new_optimizers(optimizers: OptimizerSteps) -> str | None:
    """Note every optimizer that is made."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            optimizers.existing.add(self)

        return init

    return patch(torch.optim.Optimizer, "__init__", wrap)


def patch_grad_scaler(optimizers: OptimizerSteps, on_skipped: Callable[[], None]) -> str | None:
    """Call ``on_skipped`` after each step that GradScaler skips."""
    skipped = eager(on_skipped)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def _maybe_opt_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = optimizers.calls
            result = original(self, *args, **kwargs)
            if optimizers.calls == before:
                skipped()
            return result

        return _maybe_opt_step

    return patch(torch.amp.GradScaler, "_maybe_opt_step", wrap)


def patch_graph_replay(on_replay: Callable[[], None]) -> str | None:
    """Call ``on_replay`` before each replay of a CUDA graph."""
    called = eager(on_replay)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def replay(self: Any) -> Any:
            called()
            return original(self)

        return replay

    return patch(torch.cuda.CUDAGraph, "replay", wrap)


def patch_ddp(on_wrapped: Callable[[Any], None]) -> str | None:
    """Call ``on_wrapped`` with every module that is wrapped in DistributedDataParallel, once its reducer exists."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            on_wrapped(self)
            return result

        return _ddp_init_helper

    return patch(ddp_module.DistributedDataParallel, "_ddp_init_helper", wrap)


def patch_save(on_saved: Callable[[float], None]) -> str | None:
    """Call ``on_saved`` after each torch.save with the unix time at which it began."""
    saved = eager(on_saved)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            began_s = time.time()
            result = original(*args, **kwargs)
            saved(began_s)
            return result

        return save

    return patch(torch, "save", wrap)


def patch_fsdp(shards: Any) -> str | None:
    """Note the parameters that FSDP1 shards over the ranks; call this once the script has imported it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def shard(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if self.uses_sharded_strategy:
                flat = self.flat_param
                # With use_orig_params the optimizer gets views into the flat parameter, one for each original.
                for parameter in (flat, *(flat._params or ()), *(flat._shared_params or ())):
                    shards[parameter] = True
            return result

        return shard

    module = importlib.import_module("torch.distributed.fsdp._flat_param")
    return patch(module.FlatParamHandle, "shard", wrap)


def patch_process_group(on_initialised: Callable[[float], None]) -> str | None:
    """Call ``on_initialised`` after every initialisation of a process group with the seconds that it took."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            begin_s = time.perf_counter()
            result = original(*args, **kwargs)
            on_initialised(time.perf_counter() - begin_s)
            return result

        return init_process_group

    problem = patch(torch.distributed, "init_process_group", wrap)
    if problem is None:
        # The same function under its other name.
        torch.distributed.distributed_c10d.init_process_group = torch.distributed.init_process_group
    return problem


def watch_autocast(on_dtype: Callable[[torch.dtype], None]) -> Callable[[], None]:
    """Call ``on_dtype`` for every autocast region entered with gradients on; return a function that stops this."""
    autocast = torch.amp.autocast_mode.autocast
    original: Callable[..., Any] = autocast.__enter__

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        dtype = getattr(self, "fast_dtype", None)
        if dtype is not None and getattr(self, "_enabled", False) and torch.is_grad_enabled():
            on_dtype(dtype)
        return original(self)

    def stop() -> None:
        if autocast.__enter__ is enter:
            autocast.__enter__ = original  # type: ignore[method-assign]

    autocast.__enter__ = enter  # type: ignore[method-assign]
    return stop
