"""The patches on torch: each is small, and reports if torch lacks what it patches. torch.compile is kept out of them.

Where torch warns with ``stacklevel=2``, the patched function is one below that which the script calls, so that the
warning still names the script's own line.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from ddp_ladder_instrument import host
from ddp_ladder_instrument.contract import HOOK
from ddp_ladder_instrument.files import FAILED_HOOKS
from ddp_ladder_instrument.log import NO_GRAD, NO_SYNC, SENDS
from ddp_ladder_instrument.python_hooks import refuse_rank, when_imported
from ddp_ladder_instrument.recorder import Recorder
from ddp_ladder_instrument.torch_facts import FSDP_SHARDS

# This part is in C and needs no import of the compiler, which takes seconds and which few scripts use.
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
COMPILATION = "torch._dynamo.callback"
FIRST_STEPS = 3
"""Autocast regions are watched during the first steps only."""


def patch_compiler() -> None:
    """Raise AttributeError if this torch.compile cannot be kept out of the hooks; they work all the same."""
    if not hasattr(_frames, "set_eval_frame") or _code_skipper() is None:
        raise AttributeError("torch._C._dynamo.eval_frame.skip_code is missing")


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark ``function``: torch.compile neither compiles its frame nor puts it into a caller's graph."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip = _code_skipper()
    if skip is not None:
        skip(function.__code__)
    return function


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a hook to run, with everything that it calls, without the compiler; costs 0.2 microseconds.

    It never fails the training: a hook that raised is noted, and from then on does nothing and returns None. Only exits
    pass: EndOfMeasurement, Ctrl-C.
    """
    set_callback: Callable[[Any], Any] = getattr(_frames, "set_eval_frame", lambda callback: None)

    @not_compiled
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        nonlocal function
        before = set_callback(None)
        try:
            return function(*args)
        except Exception as error:
            function = _disarmed(function, error)
        finally:
            set_callback(before)

    return call


def _disarmed(hook: Callable[..., Any], error: Exception) -> Callable[..., None]:
    """Note that this hook failed, and return what replaces it; raise what a signal's handler in the script raised."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error
    FAILED_HOOKS.note(f"{HOOK}{getattr(hook, '__qualname__', hook)}", error)
    return lambda *args: None


def _code_skipper() -> Callable[[CodeType], Any] | None:
    """Return torch's function that excludes code from compilation; up to torch 2.6 it had another name."""
    skip: Callable[[CodeType], Any] | None = getattr(_frames, "skip_code", None)
    strategy = getattr(_frames, "set_code_exec_strategy", None)
    if skip is not None or strategy is None:
        return skip
    action = _frames._FrameAction
    return lambda code: strategy(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))


Around = Callable[..., Any]
"""Is called in place of a function of torch: with that function, then the arguments of the call."""


def patch(owner: Any, name: str, around: Around) -> None:
    """Let ``around`` be called in place of ``owner.name``. Raises AttributeError if that does not exist."""
    original = getattr(owner, name)
    not_compiled(getattr(around, "__func__", around))

    @not_compiled
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, call)


def patch_everywhere(owner: Any, arounds: Mapping[str, Around]) -> None:
    """Patch these functions of ``owner``, also where another module has bound them by name before."""
    originals = {name: getattr(owner, name) for name in arounds}
    for name, around in arounds.items():
        patch(owner, name, around)
    replaced = {id(original): getattr(owner, name) for name, original in originals.items()}
    for names in host.modules():
        for name, value in [*names.items()]:
            if id(value) in replaced:
                names[name] = replaced[id(value)]


def patch_compilation(notify: Callable[[float, float], None]) -> None:
    """Call this with begin and end of each compilation by torch.compile, once torch._dynamo is imported.

    Torch 2.4 does not tell of backward passes that it compiles at their first call.
    """
    begun_s: list[float] = []
    ended = eager(notify)

    def begins(original: Callable[..., Any], *args: Any) -> Any:
        begun_s.append(time.perf_counter())
        return original(*args)

    def ends(original: Callable[..., Any], *args: Any) -> Any:
        if begun_s:
            ended(begun_s.pop(), time.perf_counter())
        return original(*args)

    def imported(_took_s: float) -> None:
        handler = sys.modules[COMPILATION].CompilationCallbackHandler
        patch(handler, "run_start_callbacks", begins)
        patch(handler, "run_end_callbacks", ends)

    when_imported(COMPILATION, imported)


def patch_optimizers(notify: Callable[..., None]) -> None:
    """Call this after every step of every optimizer."""
    # Imported by name: torch.optim deletes its attribute ``optimizer``.
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(eager(notify))


def patch_before_steps(notify: Callable[..., None]) -> None:
    """Call this before every step of every optimizer."""
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(eager(notify))


def patch_grad_scaler(recorder: Recorder) -> None:
    """Note each step that GradScaler skips. Of fused optimizers it does not skip it: the recorder looks at these."""
    skipped = eager(recorder.skipped)

    def step(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = recorder.calls
        result = original(*args, **kwargs)
        if recorder.calls == before:
            skipped()
        return result

    patch(torch.amp.GradScaler, "step", step)


def patch_call(owner: Any, name: str, after: Callable[[float, Sequence[Any]], None]) -> None:
    """Call ``after`` with the time at which each call of ``owner.name`` began, and its arguments."""
    called = eager(after)

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begin_s = time.perf_counter()
        result = original(*args, **kwargs)
        called(begin_s, args)
        return result

    patch(owner, name, call)


def patch_captures(graphs: type, note: Callable[[bool], None]) -> None:
    """Call ``note`` with True before a CUDA graph is captured, and with False afterwards."""

    def begins(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        note(True)
        try:
            return original(*args, **kwargs)
        except BaseException:
            note(False)
            raise

    def ends(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            note(False)

    patch(graphs, "capture_begin", begins)
    patch(graphs, "capture_end", ends)


def patch_forward(note: Callable[[int, int], None], modules: weakref.WeakKeyDictionary[Any, int]) -> None:
    """Note each forward pass of a module that DDP wraps: its number, and what it sends.

    modules: the wrapped modules with their numbers.
    """

    @eager
    def begin(module: Any) -> None:
        number = modules.get(module)
        if number is not None:
            sends = SENDS if module.require_backward_grad_sync else NO_SYNC
            note(number, sends if torch.is_grad_enabled() else NO_GRAD)

    def forward(original: Callable[..., Any], module: Any, *inputs: Any, **options: Any) -> Any:
        begin(module)
        return original(module, *inputs, **options)

    patch(DistributedDataParallel, "_pre_forward", forward)


def patch_fsdp(module: Any) -> None:
    """Note the parameters that FSDP1 shards over the ranks."""
    patch_call(module.FlatParamHandle, "shard", _note_shards)


def _note_shards(_begin_s: float, args: Sequence[Any]) -> None:
    handle = args[0]
    if handle.uses_sharded_strategy:
        flat = handle.flat_param
        # With use_orig_params the optimizer gets views into the flat parameter, one for each original.
        for parameter in (flat, *(flat._params or ()), *(flat._shared_params or ())):
            FSDP_SHARDS[parameter] = True


def patch_process_group(on_joins: Callable[..., None], on_initialised: Callable[[float], None]) -> None:
    """Tell when a process joins a process group, and where, and when no more; afterwards when it began to.

    A process that was forked may have a group of its own, alone.
    """
    process, joins, initialised = os.getpid(), eager(on_joins), eager(on_initialised)

    def init(original: Callable[..., Any], *args: Any, **options: Any) -> None:
        if os.getpid() != process:
            size = options.get("world_size", -1)
            size = int(os.environ.get("WORLD_SIZE") or 1) if size < 0 else size
            if size > 1:
                refuse_rank(options.get("rank", os.environ.get("RANK")), size)
        begin_s = time.perf_counter()
        given = {**dict(zip(("backend", "init_method", "timeout", "world_size", "rank", "store"), args)), **options}
        joins(True, None if given.get("store") else host.rendezvous(given.get("init_method")))
        try:
            original(*args, **options)
        finally:
            joins(False)
        initialised(begin_s)

    patch_everywhere(torch.distributed, {"init_process_group": init})


def refuse_spawn() -> None:
    """Let torch.multiprocessing.spawn and start_processes raise: they start ranks."""

    def start(original: Any, fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **options: Any) -> None:
        refuse_rank(0, nprocs)

    for module in ("torch.multiprocessing", "torch.multiprocessing.spawn"):
        patch(importlib.import_module(module), "start_processes", start)


def watch_autocast(on_dtype: Callable[[torch.dtype], None], steps: Callable[[], int]) -> None:
    """Call ``on_dtype`` for every autocast region entered with gradients on during the first steps.

    steps: returns the number of steps made so far.
    """
    autocast = torch.amp.autocast_mode.autocast
    original: Callable[..., Any] = autocast.__enter__
    entered = eager(on_dtype)

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        dtype = getattr(self, "fast_dtype", None)
        if steps() >= FIRST_STEPS:
            if autocast.__enter__ is enter:
                autocast.__enter__ = original  # type: ignore[method-assign]
        elif dtype is not None and getattr(self, "_enabled", False) and torch.is_grad_enabled():
            entered(dtype)
        return original(self)

    autocast.__enter__ = enter  # type: ignore[method-assign]


class Trained:
    """The modules that are trained as a whole, as opposed to their parts and to other models."""

    def __init__(self, optimizers: Collection[Any]) -> None:
        self._optimizers = optimizers  # that have stepped
        self._known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Look again, as there is another optimizer."""
        self._known.clear()

    def holds(self, module: Any) -> bool:
        """Return True if ``module`` is trained as a whole: it has an optimizer's first and last parameter."""
        known = self._known.get(module)
        if known is None:
            held = {id(parameter) for parameter in module.parameters()}
            stepped = [
                [p for group in optimizer.param_groups for p in group["params"]] for optimizer in self._optimizers
            ]
            known = any({id(tensors[0]), id(tensors[-1])} <= held for tensors in stepped if tensors)
            self._known[module] = known
        return known


def patch_modes(recorder: Recorder, trained: Trained) -> None:
    """Note eval() and train() on a model that is trained as a whole."""
    holds, note = eager(trained.holds), eager(recorder.mode)

    def train(original: Callable[..., Any], module: Any, mode: bool = True) -> Any:  # eval() is train(False)
        if not mode and not recorder.evaluating and holds(module):
            note(False)
        result = original(module, mode)
        if mode and recorder.evaluating and holds(module):
            note(True)
        return result

    patch(torch.nn.Module, "train", train)


def patch_zero_grad(note: Callable[[Any], None], trained: Trained) -> None:
    """Note where gradients are discarded: with the optimizer, or None if it is those of the whole model."""
    patch_call(torch.optim.Optimizer, "zero_grad", lambda _begin_s, args: note(args[0]))
    patch_call(torch.nn.Module, "zero_grad", lambda _begin_s, args: note(None) if trained.holds(args[0]) else None)
