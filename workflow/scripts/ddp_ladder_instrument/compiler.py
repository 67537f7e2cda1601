"""Keep torch.compile out of the hooks: it would compile them like the script's own functions, and warn about them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

# This part is in C and needs no import of the compiler, which takes seconds and which few scripts use.
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def patch_compiler() -> str | None:
    """Return a remark if this torch.compile cannot be kept out of the hooks; they work all the same."""
    if not hasattr(_frames, "set_eval_frame") or _code_skipper() is None:
        return "torch._C._dynamo.eval_frame.skip_code is missing"
    return None


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark ``function``: torch.compile neither compiles its frame nor puts it into a caller's graph."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip = _code_skipper()
    if skip is not None:
        skip(function.__code__)
    return function


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function`` to run, with everything that it calls, without the compiler; costs 0.2 microseconds."""
    set_callback: Callable[[Any], Any] = getattr(_frames, "set_eval_frame", lambda callback: None)

    @not_compiled
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        before = set_callback(None)
        try:
            return function(*args)
        finally:
            set_callback(before)

    return call


def _code_skipper() -> Callable[[CodeType], Any] | None:
    """Return torch's function that excludes code from compilation; up to torch 2.6 it had another name."""
    skip: Callable[[CodeType], Any] | None = getattr(_frames, "skip_code", None)
    strategy = getattr(_frames, "set_code_exec_strategy", None)
    if skip is not None or strategy is None:
        return skip
    action = _frames._FrameAction
    return lambda code: strategy(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
