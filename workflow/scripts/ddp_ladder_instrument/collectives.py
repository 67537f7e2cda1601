"""The calls by which a script sends data itself, and DDP its buffers: what DDP's reducer does not time.

Only the outermost call is noted: object collectives call others inside. Calls of threads other than the main one are
beside the training, except those of a backward pass that the main thread waits for. The exchange of gradients, also by
a communication hook, is timed by DDP itself (module ``ddp``). On a GPU a call returns when it is queued: its seconds
are those that the host waits.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import torch
import torch.distributed
from torch.distributed import distributed_c10d
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from ddp_ladder_instrument.hooks import Wrap, eager, not_compiled, patch
from ddp_ladder_instrument.python_hooks import when_imported

Note = Callable[[str, float, float, int, int], None]
"""Called with name, begin and end (time.perf_counter), bytes and ranks; 0 ranks: a wait for a call noted before."""

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather",
    "gather_object", "gather_single", "irecv", "isend", "recv", "recv_object_list", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "send_object_list",
)  # fmt: skip
FUNCTIONAL = "torch.distributed._functional_collectives"
FUNCTIONAL_COLLECTIVES = (
    "all_gather_into_tensor_coalesced", "all_gather_single", "all_gather_single_autograd",
    "all_gather_single_coalesced", "all_gather_tensor", "all_gather_tensor_autograd", "all_reduce",
    "all_reduce_coalesced", "all_to_all_single",
    "all_to_all_single_autograd", "broadcast", "permute_tensor", "reduce_scatter_single",
    "reduce_scatter_single_autograd", "reduce_scatter_single_coalesced", "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd", "reduce_scatter_tensor_coalesced",
)  # fmt: skip
BUFFERS, SYNC_BATCH_NORM, CLIP_GRAD_NORM, WAIT = "buffers", "sync_batch_norm", "clip_grad_norm", "wait"
"""Names beside those of the functions. wait: for a call of which it is not known which one it was."""


def patch_collectives(note: Note) -> None:
    """Call ``note`` at the end of each call that sends or receives, and of each wait for one that did not block."""
    calls = _Calls(note)
    for name in COLLECTIVES:
        original = getattr(distributed_c10d, name, None)
        # What is deprecated warns of its caller's line, and calls the function that replaces it.
        if original is not None and not hasattr(original, "__deprecated__"):
            place = [*inspect.signature(original).parameters, "group"].index("group")
            _patch_everywhere(name, calls.timing(name, place))
    _patch_everywhere("init_process_group", calls.muting)
    patch(distributed_c10d.ProcessGroup, "monitored_barrier", calls.timing("monitored_barrier", 0))
    patch(distributed_c10d.Work, "wait", calls.timing_wait)
    patch(DistributedDataParallel, "_sync_buffers", calls.timing_buffers)
    patch(DistributedDataParallel, "register_comm_hook", calls.muting_hook)
    when_imported(FUNCTIONAL, eager(lambda _took_s: _patch_functional(sys.modules[FUNCTIONAL], calls)))


def _patch_everywhere(name: str, wrap: Wrap) -> None:
    """Patch a function of torch.distributed under this name, and in each module of torch that has bound it."""
    original = getattr(torch.distributed, name, None) or getattr(distributed_c10d, name)
    patch(distributed_c10d, name, wrap)
    patched = getattr(distributed_c10d, name)
    for module in [each for key, each in sys.modules.items() if key.partition(".")[0] == "torch" and each is not None]:
        for bound in [key for key, value in vars(module).items() if value is original]:
            setattr(module, bound, patched)
    remaps = getattr(sys.modules.get(FUNCTIONAL), "traceable_collective_remaps", {})
    if original in remaps:  # torch.compile finds here by what it replaces this call
        remaps[patched] = remaps[original]


def _patch_functional(module: Any, calls: _Calls) -> None:
    """Patch the functional collectives. torch.compile traces through these: it has to see the original."""
    tracing: Callable[[], bool] = module._are_we_tracing

    def patch_one(name: str, wrap: Wrap) -> None:
        original = getattr(module, name)
        timed = not_compiled(wrap(original))

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if tracing():
                return original(*args, **kwargs)
            return timed(*args, **kwargs)

        setattr(module, name, call)

    for name in FUNCTIONAL_COLLECTIVES:
        original = getattr(module, name, None)
        if original is not None and not hasattr(original, "__deprecated__"):
            place = [*inspect.signature(original).parameters, "group"].index("group")
            patch_one(name, calls.timing(name, place))
    patch_one("wait_tensor", calls.timing_wait)


class _Calls:
    """The calls that are under way. busy: identity of the thread that is in one, or in what is not noted; 0: none."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._main = threading.main_thread().ident
        self._engine: CodeType = torch.autograd.graph._engine_run_backward.__code__
        self._callers = dict.fromkeys(
            (SyncBatchNorm.forward.__code__, SyncBatchNorm.backward.__code__), SYNC_BATCH_NORM
        )
        self._busy = 0
        self._inner_bytes = 0
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # of calls that did not block
        self._buffer_bytes: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()

    def _is_beside(self, thread: int) -> bool:
        """Return True in a thread that does not train: the main one does, and that of the backward pass it waits in."""
        if thread == self._main:
            return False
        if torch._C._current_graph_task_id() == -1:
            return True
        frame = sys._current_frames().get(self._main or 0)
        return frame is None or frame.f_code is not self._engine

    def timing(self, name: str, place: int) -> Wrap:
        """Return the wrapper of a function that sends or receives. place: of the group among its arguments."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @eager
            def inner(values: Iterable[Any]) -> None:
                self._inner_bytes += _bytes(values)

            @eager
            def ended(code: CodeType, begin_s: float, end_s: float, args: Any, kwargs: Any, result: Any) -> None:
                group = args[place] if len(args) > place else kwargs.get("group")
                ranks = _size(group)
                if not ranks:  # the group is gone, or this rank is not in it
                    return
                called = CLIP_GRAD_NORM if "clip_grad" in code.co_name else self._callers.get(code, name)
                size = _bytes(args) if args else 0
                if kwargs:
                    size = max(size, _bytes(kwargs.values()))
                self._note(called, begin_s, end_s, size or self._inner_bytes, ranks)
                if result is not None:
                    for work in result if isinstance(result, list) else (result,):
                        if isinstance(work, distributed_c10d.Work):
                            self._names[work] = called

            def call(*args: Any, **kwargs: Any) -> Any:
                thread = threading.get_ident()
                if self._busy or (thread != self._main and self._is_beside(thread)):
                    if self._busy == thread:
                        inner((*args, *kwargs.values()))
                    return original(*args, **kwargs)
                self._busy, self._inner_bytes = thread, 0
                begin_s = time.perf_counter()
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._busy = 0
                ended(sys._getframe(1).f_code, begin_s, time.perf_counter(), args, kwargs, result)
                return result

            return call

        return wrap

    def timing_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the wait for a call that did not block."""

        @eager
        def ended(work: Any, begin_s: float, end_s: float) -> None:
            if _size(None):
                self._note(self._names.get(work, WAIT), begin_s, end_s, 0, 0)

        # Named as the method: where C++ calls a method of a class in Python, it knows this frame and stops.
        def wait(self_: Any, *args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if self._busy or (thread != self._main and self._is_beside(thread)):
                return original(self_, *args, **kwargs)
            self._busy = thread
            begin_s = time.perf_counter()
            try:
                result = original(self_, *args, **kwargs)
            finally:
                self._busy = 0
            ended(self_, begin_s, time.perf_counter())
            return result

        return wait

    def timing_buffers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap DDP's broadcast of a module's buffers."""

        @eager
        def ended(module: Any, begin_s: float) -> None:
            end_s, buffers = time.perf_counter(), module.modules_buffers
            count, size = self._buffer_bytes.get(module, (-1, 0))
            if count != len(buffers):
                size = _bytes((buffers,))
                self._buffer_bytes[module] = len(buffers), size
            self._note(BUFFERS, begin_s, end_s, size, module.process_group.size())

        def _sync_buffers(self_: Any) -> Any:
            thread = threading.get_ident()
            if self._busy or thread != self._main:
                return original(self_)
            self._busy = thread
            begin_s = time.perf_counter()
            try:
                result = original(self_)
            finally:
                self._busy = 0
            ended(self_, begin_s)
            return result

        return _sync_buffers

    def muting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function whose calls are not noted."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            before, self._busy = self._busy, threading.get_ident()
            try:
                return original(*args, **kwargs)
            finally:
                self._busy = before

        return call

    def muting_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the registration of a communication hook: DDP times what it sends."""

        def register_comm_hook(self_: Any, state: object, hook: Callable[..., Any]) -> Any:
            muted = functools.wraps(hook)(self.muting(hook)) if hasattr(hook, "__name__") else hook
            return original(self_, state, muted)

        return register_comm_hook


def _size(group: Any) -> int:
    """Return the number of ranks of a group, of the default one for None; 0: there is none, or it is not known."""
    if group is None:
        group = distributed_c10d.GroupMember.WORLD
    if isinstance(group, (list, tuple)):
        if len(group) == 2 and hasattr(group[0], "get_group"):  # a mesh and one of its dimensions
            return int(group[0].size(group[1]))
        return len(group)
    if isinstance(group, str):
        group = distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined]
    return int(group.size()) if hasattr(group, "size") else 0


def _bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the largest of these: a tensor, or the tensors of a list."""
    return max((sum(each.nbytes for each in _tensors(value)) for value in values), default=0)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            tensor = getattr(each, "tensor", each)  # a P2POp has one
            if isinstance(tensor, torch.Tensor):
                yield tensor
