"""The patches on torch: each small, each named where it is missing.

Patched are functions below those that a script calls where torch warns with ``stacklevel=2``, so
that the warnings still name the script's own line.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import distributed as ddp_module
from torch.utils.data import dataloader
from torch.utils.data.distributed import DistributedSampler

from ddp_ladder_instrument import loaders
from ddp_ladder_instrument.steps import Loop, Steps

LOOP_ATTRIBUTE = "_ddp_ladder_loop"

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def patch(owner: Any, name: str, wrap: Wrap) -> str | None:
    """Replace ``owner.name``; returns what to say when there is no such thing."""
    original = getattr(owner, name, None)
    if original is None:
        module = owner.__module__ + "." if isinstance(owner, type) else ""
        return f"{module}{owner.__name__}.{name} is missing"
    setattr(owner, name, functools.wraps(original)(wrap(original)))
    return None


def patch_optimizers(steps: Steps) -> str | None:
    """Count every optimizer's steps."""
    # By name: torch.optim deletes its attribute ``optimizer``.
    optimizer = importlib.import_module("torch.optim.optimizer")
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        return "torch.optim.optimizer.register_optimizer_step_post_hook is missing"
    register(steps.after_step)
    return None


def patch_loaders(steps: Steps) -> str | None:
    """Follow every DataLoader of this process."""
    in_loader: set[int] = set()
    single = getattr(dataloader, "_SingleProcessDataLoaderIter", None)
    several = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if single is None or several is None:
        return "torch.utils.data.dataloader._SingleProcessDataLoaderIter is missing"
    return (
        patch(dataloader.DataLoader, "__iter__", lambda original: _iter(original, steps, in_loader))
        or patch(single, "_next_data", lambda original: _next(original, steps, in_loader))
        or patch(several, "_next_data", lambda original: _next(original, steps, in_loader))
        or patch(DistributedSampler, "set_epoch", _set_epoch)
    )


def _iter(original: Callable[..., Any], steps: Steps, in_loader: set[int]) -> Callable[..., Any]:
    def iterate(self: Any) -> Any:
        if threading.get_ident() in in_loader:
            return original(self)
        entered_s = time.perf_counter()
        loop = loaders.new_loop(self)
        steps.enter(loop, entered_s)
        iterator = original(self)
        loop.wait_s += time.perf_counter() - entered_s
        if isinstance(iterator, dataloader._BaseDataLoaderIter):
            setattr(iterator, LOOP_ATTRIBUTE, loop)
        return iterator

    return iterate


def _next(original: Callable[..., Any], steps: Steps, in_loader: set[int]) -> Callable[..., Any]:
    get_thread = threading.get_ident
    clock = time.perf_counter
    batch_size = loaders.batch_size

    def _next_data(self: Any) -> Any:
        thread = get_thread()
        loop: Loop | None = self.__dict__.get(LOOP_ATTRIBUTE)
        # A loader that a dataset of this process reads from is part of the outer one.
        if loop is None or thread in in_loader:
            return original(self)
        entered_s = clock()
        if steps.loop is not loop:
            steps.enter(loop, entered_s)
        in_loader.add(thread)
        try:
            batch = original(self)
        finally:
            in_loader.discard(thread)
        steps.yielded(loop, entered_s, batch_size(batch))
        return batch

    return _next_data


def _set_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_epoch(self: Any, epoch: int) -> Any:
        loaders.EPOCH_SET.add(self)
        return original(self, epoch)

    return set_epoch


def patch_ddp(on_wrapped: Callable[[Any], None]) -> str | None:
    """Tell of every module that is wrapped in DistributedDataParallel, once its reducer exists."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            on_wrapped(self)
            return result

        return _ddp_init_helper

    return patch(ddp_module.DistributedDataParallel, "_ddp_init_helper", wrap)


def patch_process_group(on_initialised: Callable[[float], None]) -> str | None:
    """Tell of every process group initialisation and the seconds it took."""

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
    """Tell the dtype of autocast regions entered for training; returns how to stop watching."""
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
