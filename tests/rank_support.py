"""Run a function on several ranks, connected by Gloo, each in its own process.

A fork server imports torch once, so a rank starts in milliseconds and inherits nothing from the test's process.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from patience import SILENT_S, Patience

TICK_S = 1.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "torchvision", "numpy"])


class RankFailed(Exception):
    """The exceptions of the ranks, with their tracebacks."""


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` on ``size`` ranks with torchrun's environment; return the results in rank order.

    Raises RankFailed for exceptions, and for a rank that ends without returning.
    """
    # The store is here, as in torchrun's agent, so that no rank has to find a free port.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        receiver, sender = _CONTEXT.Pipe(duplex=False)
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "CUDA_VISIBLE_DEVICES": "",
        }
        process = _CONTEXT.Process(target=_rank, args=(sender, env, function, arguments))
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    try:
        patience = Patience(*(process.pid for process in processes))
        answers = [_answer(pipe, patience) for pipe in pipes]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
            process.join()
    failures = [text for kind, text in answers if kind == "failed"]
    if failures:
        raise RankFailed("\n".join(failures))
    return [value for _, value in answers]


def _answer(pipe: Connection, patience: Patience) -> tuple[str, Any]:
    try:
        while not pipe.poll(TICK_S):
            if patience.is_over:
                return "failed", f"a rank did not answer, and none computed for {SILENT_S:g} s"
        answer: tuple[str, Any] = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return "failed", "a rank ended without returning"
    return answer


def _rank(pipe: Connection, env: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    for name in [name for name in os.environ if name.startswith(("DDP_LADDER", "SLURM_"))]:
        del os.environ[name]
    os.environ.update(env)
    try:
        answer = ("returned", function(*arguments))
    except BaseException:
        answer = ("failed", f"rank {env['RANK']}:\n{traceback.format_exc()}")
    # Plain pickle: with multiprocessing's own, the receiver would fetch tensors from a process that has ended.
    pipe.send_bytes(pickle.dumps(answer))
    pipe.close()
