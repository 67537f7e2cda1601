"""The recorded collectives of real Gloo ranks, compared with the script's own counts and clock."""

from __future__ import annotations

import importlib
import os
import threading
import time
import warnings
from collections import defaultdict
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_ladder_instrument.collectives import FUNCTIONAL, patch_collectives
from rank_support import on_ranks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
BUFFERS_BYTES = 4_000_000
LATE_S = 0.2

Totals = dict[str, tuple[int, int, float, set[int]]]


class Notes(list[tuple[str, float, float, int, int, int]]):
    """What was noted. marks: made so far."""

    marks = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def note(self, *noted: Any) -> None:
        self.append(noted)  # type: ignore[arg-type]

    def totals(self) -> Totals:
        """Return calls, bytes, seconds and sizes of the groups by name."""
        found: Totals = defaultdict(lambda: (0, 0, 0.0, set()))
        last = 0
        for name, begin_s, end_s, size, ranks, mark in self:
            assert mark >= last + 2  # nothing was marked inside of a call
            last = mark
            calls, sizes, seconds, groups = found[name]
            is_call = ranks > 0
            found[name] = calls + is_call, sizes + size, seconds + end_s - begin_s, groups | ({ranks} - {0})
        return dict(found)


def ranked(patched: bool = True) -> tuple[int, Notes]:
    """Join the process group with the patches installed; return the rank and the notes."""
    notes = Notes()
    os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")  # torch 2.4 wants it
    if patched:
        patch_collectives(notes.note, notes.mark)
    dist.init_process_group("gloo")
    assert notes == []
    return dist.get_rank(), notes


def model_with_buffers() -> torch.nn.Module:
    model = torch.nn.Linear(8, 8)
    model.register_buffer("table", torch.ones(BUFFERS_BYTES // 4))
    return model


def trained(model: torch.nn.Module) -> None:
    for _ in range(STEPS):
        model(torch.ones(2, 8)).sum().backward()


def buffers_of_ddp(broadcast: bool) -> Totals:
    _, notes = ranked()
    model = DistributedDataParallel(model_with_buffers(), broadcast_buffers=broadcast)
    notes.clear()
    trained(model)
    return notes.totals()


def test_buffers_that_ddp_broadcasts_before_each_forward_pass() -> None:
    for totals in on_ranks(2, buffers_of_ddp, True):
        assert {*totals} == {"buffers"}
        calls, sent, seconds, groups = totals["buffers"]
        assert (calls, sent, groups) == (STEPS, STEPS * BUFFERS_BYTES, {2})
        assert seconds > STEPS * BUFFERS_BYTES / 50e9
    assert on_ranks(2, buffers_of_ddp, False) == [{}, {}]


def communication_hook(name: str) -> Totals:
    _, notes = ranked()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    model.register_comm_hook(None, getattr(default_hooks, name))
    trained(model)
    return notes.totals()


@pytest.mark.parametrize("name", ["allreduce_hook", "fp16_compress_hook"])
def test_what_ddp_times_itself_is_not_noted(name: str) -> None:
    assert on_ranks(2, communication_hook, name) == [{}, {}]


def late_rank() -> tuple[Totals, float]:
    """Let rank 1 come late to an all-reduce, a barrier and the wait for an asynchronous all-reduce."""
    rank, notes = ranked()
    tensor, own_s = torch.ones(250_000), 0.0
    dist.barrier()
    notes.clear()

    def late() -> float:
        time.sleep(LATE_S * rank)
        return time.perf_counter()

    for call in (lambda: dist.all_reduce(tensor), dist.barrier):
        begin_s = late()
        call()
        own_s += time.perf_counter() - begin_s
    begin_s = late()
    work = dist.all_reduce(tensor, async_op=True)
    own_s += time.perf_counter() - begin_s
    time.sleep(0.05)  # the script's own work
    begin_s = time.perf_counter()
    assert work.wait() is True
    own_s += time.perf_counter() - begin_s
    return notes.totals(), own_s


def test_seconds_are_what_the_script_waits() -> None:
    for rank, (totals, own_s) in enumerate(on_ranks(2, late_rank)):
        assert [(name, of[:2], of[3]) for name, of in totals.items()] == [
            ("all_reduce", (2, 2_000_000), {2}),
            ("barrier", (1, 0), {2}),
        ]
        seconds = sum(of[2] for of in totals.values())
        assert seconds == pytest.approx(own_s, abs=2e-3)
        assert (seconds > 2.5 * LATE_S) == (rank == 0)


class Exchange(torch.autograd.Function):
    """The exchange of SyncBatchNorm, which itself needs a GPU: a gather in the forward, a sum in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, value)
        return value - torch.stack(parts).mean()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradient := gradient.clone())
        return gradient


def every_kind() -> tuple[Totals, Any]:
    rank, notes = ranked()
    half = dist.new_group([0])
    ones, pair = torch.ones(4), [torch.empty(4), torch.empty(4)]
    notes.clear()
    Exchange.apply(torch.ones(4, requires_grad=True)).sum().backward()
    results: list[Any] = [None, None]
    dist.all_gather_object(results, ("a", rank))  # a tuple, which no group is
    dist.broadcast(ones, 0)
    dist.reduce(ones, 0)
    dist.gather(ones, pair if rank == 0 else None)
    dist.scatter(ones, pair if rank == 0 else None)
    dist.broadcast_object_list([rank])
    dist.monitored_barrier()
    requests = [dist.isend(ones, 1 - rank), dist.irecv(pair[0], 1 - rank)]
    for request in requests:
        request.wait()
    if rank == 0:
        dist.all_reduce(torch.ones(4), group=half)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = torch.empty(8)
        dist.all_gather_into_tensor(output, ones)  # newer versions of torch warn of it
    assert not [each for each in caught if "ddp_ladder" in each.filename]
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        dist.all_reduce("text")  # type: ignore[arg-type]
    return notes.totals(), (results, output.shape)


def test_every_kind_is_named_as_it_is_called_and_objects_count_once() -> None:
    for rank, (totals, results) in enumerate(on_ranks(2, every_kind)):
        assert results == ([("a", 0), ("a", 1)], torch.Size([8]))
        gathered = totals.pop("all_gather_into_tensor", None) or totals.pop("all_gather_single")
        assert gathered[:2] == (1, 32)
        calls = {name: of[0] for name, of in totals.items()}
        assert calls.pop("all_reduce") == 2 - rank  # rank 1 is not in the other group
        assert calls == dict.fromkeys(
            ("all_gather", "all_gather_object", "broadcast", "reduce", "gather", "scatter", "broadcast_object_list",
             "monitored_barrier", "isend", "irecv"),
            1,
        )  # fmt: skip
        assert totals["all_gather"][1] == 32
        assert totals["all_gather_object"][1] > 30
        assert totals["all_reduce"][3] == ({1, 2} if rank == 0 else {2})


def in_other_threads() -> Totals:
    """As on a GPU, where autograd executes a backward pass in threads of its own; and beside the training."""
    _, notes = ranked()
    loss = Exchange.apply(torch.ones(4, requires_grad=True)).sum()
    loss = DistributedDataParallel(torch.nn.Linear(1, 1))(loss.reshape(1, 1)).sum()
    notes.clear()
    for work in (loss.backward, lambda: dist.all_reduce(torch.ones(8))):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return notes.totals()


def test_of_other_threads_those_count_in_which_autograd_executes() -> None:
    for totals in on_ranks(2, in_other_threads):
        assert [(name, of[:2]) for name, of in totals.items()] == [("all_reduce", (1, 16))]


def monitored(patched: bool) -> tuple[list[str], Totals]:
    _, notes = ranked(patched)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.monitored_barrier(timeout=5.0)  # type: ignore[arg-type]  # newer versions of torch warn of the float
    dist.destroy_process_group()
    return [warning.filename for warning in caught], notes.totals()


def test_a_warning_names_the_line_that_it_names_without_us() -> None:
    without, with_us = on_ranks(2, monitored, False)[0], on_ranks(2, monitored, True)[0]
    assert without[0] == with_us[0] != []
    assert with_us[1]["monitored_barrier"][0] == 1


def clipped_norm() -> Totals:
    """Call as torch's SyncBatchNorm and FSDP's clip_grad_norm_ do."""
    _, notes = ranked()
    for module, function in (
        ("torch.nn.modules._functions", "forward"),
        ("torch.distributed.fsdp.fully_sharded_data_parallel", "clip_grad_norm_"),
        ("__main__", "clip_grad_norm_"),
        ("torch.distributed.distributed_c10d", "new_group"),
    ):
        names = {"__name__": module, "dist": dist, "torch": torch}
        exec(f"def {function}(): dist.all_reduce(torch.ones(4))", names)
        names[function]()  # type: ignore[operator]
    return notes.totals()


def test_torchs_own_callers_give_the_name() -> None:
    for totals in on_ranks(2, clipped_norm):
        assert {name: of[0] for name, of in totals.items()} == {
            "SyncBatchNorm": 1,
            "clip_grad_norm_": 1,
            "all_reduce": 1,
        }


def compiled(imported: bool) -> tuple[list[float], Totals]:
    if imported:
        importlib.import_module(FUNCTIONAL)
    _, notes = ranked()
    functional = importlib.import_module(FUNCTIONAL)

    def whole(value: torch.Tensor) -> torch.Tensor:
        value = value * 2
        dist.all_reduce(value)
        other = functional.wait_tensor(functional.all_reduce(value, "sum", dist.group.WORLD))
        return value + other

    result = torch.compile(whole, backend="eager", fullgraph=True)(torch.ones(1))  # raises if the graph breaks
    assert not notes
    whole(torch.ones(1))
    return result.tolist(), notes.totals()


@pytest.mark.parametrize("imported", [False, True])
def test_torch_compile_has_them_in_its_graph_as_without_us(imported: bool) -> None:
    for result, totals in on_ranks(2, compiled, imported):
        assert result == [12.0]
        assert {name: of[:2] for name, of in totals.items()} == {"all_reduce": (2, 8)}
