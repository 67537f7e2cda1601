"""Keeps torch.compile out of the hooks: it would compile them like the script's own functions, and warn of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

# In C, and there before the compiler itself is imported, which takes seconds and only some scripts do.
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def patch_compiler() -> str | None:
    """What to say where this torch has no way to be kept out; the hooks work all the same."""
    if not hasattr(_frames, "set_eval_frame") or _skipped() is None:
        return "torch._C._dynamo.eval_frame.skip_code is missing"
    return None


def passed_over(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, marked: neither its own frame is compiled nor is it put into a caller's graph."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip = _skipped()
    if skip is not None:
        skip(function.__code__)
    return function


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``function`` with the compiler turned off for everything below it; 0.2 microseconds."""
    turn: Callable[[Any], Any] = getattr(_frames, "set_eval_frame", lambda callback: None)

    @passed_over
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        before = turn(None)
        try:
            return function(*args)
        finally:
            turn(before)

    return call


def _skipped() -> Callable[[CodeType], Any] | None:
    """What marks a function's code as not to be compiled; it had another name up to torch 2.6."""
    skip: Callable[[CodeType], Any] | None = getattr(_frames, "skip_code", None)
    strategy = getattr(_frames, "set_code_exec_strategy", None)
    if skip is not None or strategy is None:
        return skip
    action = _frames._FrameAction
    return lambda code: strategy(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
