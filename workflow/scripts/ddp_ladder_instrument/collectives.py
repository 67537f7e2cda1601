"""The script's collectives: which, for how long the training was in them, with how many bytes and ranks.

DDP times its own exchange of gradients, so neither its reducer nor a communication hook is noted here. Functions that
torch deprecates are not patched: they call the others, and their warning names its caller's line. On a GPU most calls
only put work into a queue, and the training's stream waits for it: a mark on the stream before and after each call.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from ddp_ladder_instrument.contract import BUFFERS, SYNC_BATCH_NORM
from ddp_ladder_instrument.hooks import Around, eager, patch, patch_call, patch_everywhere
from ddp_ladder_instrument.python_hooks import when_imported

Note = Callable[[str, float, float, int, int, int], None]
"""Gets name, begin and end (time.perf_counter), bytes, size of the group and, on a GPU, the mark after the call; the
one before it has the number before. Size 0: a wait for a call noted before."""

NAMES = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "gather"),
    *("gather_into_tensor", "gather_single", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("scatter", "all_to_all", "all_to_all_single", "barrier", "send", "recv", "isend", "irecv"),
    *("batch_isend_irecv", "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)
"""Those that a version of torch lacks are left out."""
FUNCTIONAL = "torch.distributed._functional_collectives"
_FUNCTIONAL_NAMES = (
    *("all_reduce", "broadcast", "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single"),
    *("all_reduce_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"),
)
_BY_MODULE = {
    "torch.nn.modules._functions": SYNC_BATCH_NORM,
    "torch.distributed.algorithms.join": "join",
    "torch.nn.parallel.distributed": "join",  # DDP itself calls these functions only for join()
}
_BY_FUNCTION = {"clip_grad_norm_": "clip_grad_norm_"}
_SET_UP = ("init_process_group", "new_group", "_new_group_with_tag")
_MAIN = threading.main_thread().ident


class Calls:
    """The outermost calls of the training; what they call inside only adds its bytes, and no notes.

    Only one of its threads runs at a time: the main one waits for a backward pass.
    """

    def __init__(self, note: Note, mark: Callable[[], int]) -> None:
        self._note = note
        self._mark = eager(mark)
        self._noted, self._noted_buffers = eager(self._add), eager(self._add_buffers)
        self._inside = False
        self._bytes = 0  # of the calls inside
        self._works: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._sizes: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._functional = ""  # the functional collective that was called last

    def public(self, name: str) -> Around:
        """Return what is called in place of a public function of torch.distributed."""
        inside, ended = eager(self._add_bytes), eager(self._ended)

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                inside(args, kwargs)
                return original(*args, **kwargs)
            if not _is_training():
                return original(*args, **kwargs)
            result, begin_s, end_s = self._timed(original, args, kwargs)
            ended(name, begin_s, end_s, sys._getframe(2), args, kwargs, result)
            return result

        return call

    def wait(self, original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of Work.wait."""
        kind = self._works.get(work) if self._works and not self._inside and _is_training() else None
        if kind is None:
            return original(work, *args, **kwargs)
        result, begin_s, end_s = self._timed(original, (work, *args), kwargs)
        self._noted(kind, begin_s, end_s, 0, 0)
        return result

    def sync_buffers(self, original: Callable[..., Any], module: Any) -> Any:
        """In place of DistributedDataParallel's broadcast of its module's buffers."""
        if self._inside or not _is_training():
            return original(module)
        result, begin_s, end_s = self._timed(original, (module,), {})
        self._noted_buffers(module, begin_s, end_s)
        return result

    def register_comm_hook(
        self, original: Callable[..., Any], reducer: Any, state: Any, hook: Callable[..., Any]
    ) -> Any:
        """In place of the registration of a communication hook, which DDP calls, and times, in its backward pass."""

        @functools.wraps(hook)
        def quiet(*args: Any) -> Any:
            before, self._inside = self._inside, self._inside or _is_training()
            try:
                return hook(*args)
            finally:
                self._inside = before

        return original(reducer, state, quiet)

    def functional(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called in place of a functional collective, or of wait_tensor if the name is empty.

        torch.compile traces these, so it is left to trace through this.
        """

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._inside or not _is_training():
                return original(*args, **kwargs)
            result, begin_s, end_s = self._timed(original, args, kwargs)
            ended(begin_s, end_s, sys._getframe(1), args, kwargs)
            return result

        def noted(begin_s: float, end_s: float, caller: FrameType, args: Any, kwargs: Any) -> None:
            if name:
                self._functional = _kind(name, caller)
            of_call = (_bytes(args, kwargs), _group_size(args, kwargs)) if name else (0, 0)
            if self._functional:
                self._add(self._functional, begin_s, end_s, *of_call)

        ended = eager(noted)
        return call

    def _timed(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> tuple[Any, float, float]:
        self._inside, self._bytes = True, 0
        self._mark()
        begin_s = time.perf_counter()
        try:
            result = original(*args, **kwargs)
        finally:
            self._inside = False
        return result, begin_s, time.perf_counter()

    def _add(self, kind: str, begin_s: float, end_s: float, size: int, ranks: int) -> None:
        self._note(kind, begin_s, end_s, size, ranks, self._mark())

    def _add_buffers(self, module: Any, begin_s: float, end_s: float) -> None:
        self._add(BUFFERS, begin_s, end_s, self._of_buffers(module), module.process_group.size())

    def _add_bytes(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._bytes += _bytes(args, kwargs)

    def _ended(
        self, name: str, begin_s: float, end_s: float, caller: FrameType, args: Any, kwargs: Any, result: Any
    ) -> None:
        """Note a call; of an asynchronous one, remember what the script waits for."""
        kind, size = _kind(name, caller), _group_size(args, kwargs)
        if not kind or not size:
            return
        self._add(kind, begin_s, end_s, max(self._bytes, _bytes(args, kwargs)), size)
        if result is None:
            return
        for work in result if isinstance(result, list) else (result,):
            if isinstance(work, c10d.Work):
                self._works[work] = kind

    def _of_buffers(self, module: Any) -> int:
        """Return the bytes of a module's buffers; they are counted again if their number changes."""
        buffers = module.modules_buffers
        number, size = self._sizes.get(module, (-1, 0))
        if number != len(buffers):
            size = sum(buffer.nbytes for buffer in buffers)
            self._sizes[module] = len(buffers), size
        return size


def patch_collectives(note: Note, mark: Callable[[], int]) -> None:
    """Call ``mark`` before and after each collective that the training calls, and then ``note``."""
    calls = Calls(note, mark)
    _patch_public(calls)
    # The public function warns of its caller's line.
    patch(c10d.ProcessGroup, "monitored_barrier", calls.public("monitored_barrier"))
    patch(c10d.Work, "wait", calls.wait)
    patch(DistributedDataParallel, "_sync_buffers", calls.sync_buffers)
    patch(torch.distributed, "_register_comm_hook", calls.register_comm_hook)
    when_imported(FUNCTIONAL, lambda _took_s: _patch_functional(calls))


def patch_join(note: Callable[[], None]) -> None:
    """Call ``note`` when a Join context of a DistributedDataParallel is entered, as its join() returns one."""

    def entered(_begin_s: float, args: Sequence[Any]) -> None:
        join = args[0]
        if join._enable and any(isinstance(joinable, DistributedDataParallel) for joinable in join._joinables):
            note()

    patch_call(Join, "__enter__", entered)


def _patch_public(calls: Calls) -> None:
    """Patch the functions in torch.distributed, and what torch.compile takes in their place."""
    originals = {getattr(c10d, name): name for name in NAMES if hasattr(c10d, name)}
    arounds = {name: calls.public(name) for public, name in originals.items() if not hasattr(public, "__deprecated__")}
    patch_everywhere(c10d, arounds)
    patched = {original: getattr(c10d, name) for original, name in originals.items() if name in arounds}
    # What torch.compile puts into its graph in place of each.
    traced = getattr(sys.modules.get(FUNCTIONAL), "traceable_collective_remaps", {})
    traced.update({patched[original]: new for original, new in [*traced.items()] if original in patched})


def _is_training() -> bool:
    """Return True in the main thread, and where autograd executes a backward pass: on a GPU, in a thread of its own."""
    return threading.get_ident() == _MAIN or torch._C._current_graph_task_id() != -1


def _patch_functional(calls: Calls) -> None:
    module = sys.modules[FUNCTIONAL]
    for name in _FUNCTIONAL_NAMES:
        if hasattr(module, name):
            setattr(module, name, calls.functional(name, getattr(module, name)))
    module.wait_tensor = calls.functional("", module.wait_tensor)  # type: ignore[attr-defined]


def _kind(name: str, caller: FrameType) -> str:
    """Return the name to note: the function's, or who called it if that is torch; empty in the set-up of a group."""
    module: str = caller.f_globals.get("__name__", "")
    if not module.startswith("torch."):
        return name
    function = caller.f_code.co_name
    if function in _SET_UP:
        return ""
    return _BY_MODULE.get(module) or _BY_FUNCTION.get(function) or name


def _bytes(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Return the bytes of the largest argument: a tensor, or all tensors of a list."""
    most = 0
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            most = max(most, value.nbytes)
        elif isinstance(value, list):
            most = max(most, sum(part.nbytes for part in value if isinstance(part, torch.Tensor)))
    return most


def _group_size(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Return the number of ranks in a call's group, mesh, or mesh and its dimension; 0 if this rank is not in it."""
    group = kwargs.get("group")
    for value in args if group is None else (group,):
        if isinstance(value, (c10d.ProcessGroup, DeviceMesh)):
            return int(value.size())
        if isinstance(value, tuple) and value and isinstance(value[0], DeviceMesh):
            return int(value[0].size(value[1]))
    world = c10d.GroupMember.WORLD
    return 0 if world is None or group is c10d.GroupMember.NON_GROUP_MEMBER else int(world.size())
