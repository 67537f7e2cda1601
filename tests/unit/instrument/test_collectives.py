"""What collectives notes of the calls by which ranks send data, with real ranks connected by Gloo."""

from __future__ import annotations

import inspect
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_ladder_instrument import collectives
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tests.rank_support import on_ranks

MB = 250_000  # floats
SLOW_S = 0.2
Noted = tuple[str, float, float, int, int]


def noted(script: Callable[[], object]) -> tuple[list[Noted], Any]:
    """Run a script on this rank with the patches; return what they noted, and what the script returned."""
    calls: list[Noted] = []
    collectives.patch_collectives(lambda *call: calls.append(call))
    dist.init_process_group("gloo")
    returned = script()
    dist.destroy_process_group()
    return calls, returned


def of_ranks(script: Callable[[], object], size: int = 2) -> tuple[list[list[Noted]], list[Any]]:
    calls, returned = zip(*on_ranks(size, noted, script), strict=True)
    return list(calls), list(returned)


def names(calls: Sequence[Noted]) -> Counter[str]:
    return Counter(call[0] for call in calls)


def named(calls: Sequence[Noted], name: str) -> list[Noted]:
    return [call for call in calls if call[0] == name]


def own_collectives() -> tuple[float, list[object], str]:
    tensor = torch.full((MB,), 1.0 + dist.get_rank())
    dist.all_reduce(tensor)
    gathered = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(gathered, torch.full((2,), float(dist.get_rank())))
    dist.broadcast(tensor, src=0)
    objects: list[object] = [None, None]
    dist.all_gather_object(objects, {"rank": dist.get_rank(), "much": "x" * 1000})
    dist.broadcast_object_list([1, 2], src=0)
    if dist.get_rank():
        dist.recv(torch.zeros(10), src=0)
    else:
        dist.send(torch.zeros(10), dst=1)
    dist.distributed_c10d.all_reduce(tensor)
    dist.monitored_barrier()
    return float(tensor[0]), objects, str(inspect.signature(dist.all_reduce))


def test_own_calls_are_noted_once_with_their_bytes() -> None:
    calls, returned = of_ranks(own_collectives)
    assert names(calls[1]) == {
        "all_reduce": 2, "all_gather": 1, "broadcast": 1, "all_gather_object": 1, "broadcast_object_list": 1, "recv": 1,
        "monitored_barrier": 1,
    }  # fmt: skip
    sizes = {name: size for name, _, _, size, _ in calls[0]}
    assert (sizes["all_reduce"], sizes["all_gather"], sizes["send"]) == (4 * MB, 16, 40)
    assert sizes["all_gather_object"] > 2000  # of those inside
    assert {ranks for *_, ranks in calls[0]} == {2}
    assert all(begin <= end for _, begin, end, _, _ in calls[0])
    total, objects, signature = returned[0]
    assert total == 6.0
    assert [each["rank"] for each in objects] == [0, 1]
    assert signature == str(inspect.signature(dist.all_reduce))


def late_rank() -> None:
    dist.barrier()
    if dist.get_rank():
        time.sleep(SLOW_S)
    dist.barrier()


def test_the_rank_that_waits_has_the_seconds() -> None:
    calls, _ = of_ranks(late_rank)
    seconds = [[end - begin for _, begin, end, _, _ in named(each, "barrier")] for each in calls]
    assert seconds[0][1] > 0.8 * SLOW_S
    assert seconds[1][1] < 0.5 * SLOW_S


def asynchronous() -> None:
    dist.barrier()
    if dist.get_rank():
        time.sleep(SLOW_S)
    work = dist.all_reduce(torch.zeros(MB), async_op=True)
    assert work is not None
    work.wait()


def test_an_asynchronous_call_counts_at_once_and_its_wait_later() -> None:
    calls, _ = of_ranks(asynchronous)
    begun, waited = named(calls[0], "all_reduce")
    assert (begun[3], begun[4]) == (4 * MB, 2)
    assert begun[2] - begun[1] < 0.5 * SLOW_S
    assert (waited[3], waited[4]) == (0, 0)
    assert waited[2] - waited[1] > 0.8 * SLOW_S


class WithBuffers(torch.nn.Module):
    def __init__(self, exchanges: bool = False) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)
        for k in range(4):
            self.register_buffer(f"table{k}", torch.zeros(60 * MB // 4))
        self.exchanges = exchanges

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.exchanges:  # as SyncBatchNorm does, which has no kernels for CPUs
            dist.all_gather([torch.zeros(8) for _ in range(2)], inputs.mean(0).detach())
        found: torch.Tensor = self.linear(inputs)
        return found


def train(model: DistributedDataParallel, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def with_buffers() -> None:
    train(DistributedDataParallel(WithBuffers(exchanges=True)))


def test_buffers_are_sent_before_each_forward_pass() -> None:
    calls, _ = of_ranks(with_buffers)
    assert names(calls[0]) == {"buffers": 3, "all_gather": 3}
    assert {(size, ranks) for _, _, _, size, ranks in named(calls[0], "buffers")} == {(60_000_000, 2)}
    assert all(end - begin > 1e-4 for _, begin, end, _, _ in named(calls[0], "buffers"))


def without_broadcast() -> None:
    train(DistributedDataParallel(WithBuffers(), broadcast_buffers=False))


def test_gradients_alone_are_not_noted() -> None:
    assert [*map(len, of_ranks(without_broadcast)[0])] == [0, 0]


def with_hook() -> str:
    def averaged(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / 2)

    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    model.register_comm_hook(None, averaged)
    train(model)
    return str(model._get_ddp_logging_data()["comm_hook"])


def test_a_communication_hook_is_timed_by_ddp() -> None:
    calls, returned = of_ranks(with_hook)
    assert [*map(len, calls)] == [0, 0]
    assert returned[0].endswith("averaged")


def clip_grad_norm_of_script(total: torch.Tensor) -> None:
    dist.all_reduce(total)


def clipping_and_threads() -> None:
    clip_grad_norm_of_script(torch.zeros(1))
    thread = threading.Thread(target=dist.all_reduce, args=(torch.zeros(1),))
    thread.start()
    thread.join()


def test_clipping_has_a_name_and_other_threads_are_beside_the_training() -> None:
    assert names(of_ranks(clipping_and_threads)[0][0]) == {"clip_grad_norm": 1}


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        dist.all_reduce(gradients)
        return gradients


def in_backward() -> None:
    Exchange.apply(torch.ones(3, requires_grad=True)).sum().backward()


def test_a_call_in_a_backward_pass_is_noted() -> None:
    assert names(of_ranks(in_backward)[0][0]) == {"all_reduce": 1}


def failing() -> tuple[str, list[str]]:
    try:
        dist.all_reduce("no tensor")
    except Exception as error:
        raised = type(error).__name__
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.monitored_barrier(timeout=5.0)  # type: ignore[arg-type]
        dist._all_gather_base(torch.zeros(4), torch.zeros(2))
        dist.all_reduce(torch.zeros(1))
    return raised, [warning.filename for warning in caught]


def test_exceptions_and_the_places_of_warnings_stay() -> None:
    calls, returned = of_ranks(failing)
    assert len(named(calls[0], "all_reduce")) == 1  # the failed one is not noted, the next one is
    assert len(calls[0]) == 3
    raised, places = returned[0]
    assert raised == "TypeError"
    assert not [place for place in places if "ddp_ladder_instrument" in place]
    assert __file__ in places


def functional() -> float:
    from torch.distributed import _functional_collectives

    total = _functional_collectives.all_reduce(torch.ones(MB), "sum", dist.group.WORLD)
    return float(total.sum())


def test_functional_collectives_are_noted_with_their_wait() -> None:
    calls, returned = of_ranks(functional)
    assert names(calls[0]) == {"all_reduce": 1, "wait": 1}
    assert named(calls[0], "all_reduce")[0][3:] == (4 * MB, 2)
    assert returned == [2.0 * MB] * 2


def compiled() -> tuple[float, int]:
    from torch.distributed import _functional_collectives

    @torch.compile(backend="eager", fullgraph=True)
    def double(inputs: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(inputs)
        return _functional_collectives.all_reduce(inputs, "sum", dist.group.WORLD) * 2

    return float(double(torch.ones(4)).sum()), len(torch._dynamo.utils.counters["graph_break"])


def test_torch_compile_traces_collectives_as_before() -> None:
    calls, returned = of_ranks(compiled)
    assert returned == [(32.0, 0)] * 2
    assert names(calls[0]) in ({}, {"wait": 1})  # the last wait is outside of the graph


def cost() -> float:
    tensor = torch.zeros(1)
    function = collectives._Calls(lambda *call: None).timing("all_reduce", 2)(lambda *args, **kwargs: None)

    def each_s(call: Callable[..., object]) -> float:
        begin_s = time.perf_counter()
        for _ in range(2000):
            call(tensor)
        return (time.perf_counter() - begin_s) / 2000

    return min(each_s(function) for _ in range(10)) - min(each_s(lambda *args, **kwargs: None) for _ in range(10))


@pytest.mark.parametrize("size", [1])
def test_a_call_costs_little(size: int) -> None:
    _, returned = of_ranks(cost, size)
    assert returned[0] < 10e-6  # about 2 on an idle machine
    print(f"{1e6 * returned[0]:.2f} us")
