"""The cause of a failed run: raw files and logs of several ranks, with genuine output of torch, NCCL, Gloo and Slurm.

Causes come before consequences: what agents saw of their ranks, against what the ranks say themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory, read_json, write_json
from ddp_ladder.diagnosis.signatures import TRACEBACK
from ddp_ladder.records.record import Evidence, Failure, Record
from ddp_ladder_instrument.contract import AT_ITS_END
from make_records import make_spec
from make_runs import (
    STARTED_AT_S,
    edit,
    edit_agent,
    edit_part,
    edit_rank,
    failure_of,
    read_steps,
    reassemble,
    write_run,
    write_steps,
)
from make_stalls import agent_stall, rank_stall

Change = Callable[[RunDirectory], Any]
AT_S = STARTED_AT_S + 9

LOST = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer "
    "[127.0.0.1]:2472. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
    "before reporting an error. GLHF! 🏖️"
)
NCCL_LOST = (
    "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3356, unhandled system "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5 ncclSystemError: System call (e.g. socket, "
    "malloc) or external library call failed or device error."
)
WAITED = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
STAYED_AWAY = "Rank 3 failed to pass monitoredBarrier in 8000 ms"
WATCHDOG = "[rank0]:[E1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL()"
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/cache'"
TOO_LARGE = (
    "  what():  [enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:464] "
    "op.preamble.length <= op.nbytes. 204 vs 4. Received data size doesn't match expected size. Is there a distributed "
    "collective mismatch in your code?"
)
OTHER_MODEL = (
    "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has inconsistent 2 "
    "params."
)
NO_INTERFACE = "node1:1812:1812 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found"
RETRIES = "node1:1812:1830 [0] misc/socket.cc:50 NCCL INFO Call to connect failed: No space left on device, retrying"
CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WORKER = "RuntimeError: DataLoader worker (pid(s) 4081) exited unexpectedly"
SHM = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
OVER_MEMORY = "slurmstepd-node1: error: Step 7.1 exceeded memory limit (3000000 > 2000), being killed"
LAUNCH_FAILED = (
    "srun: error: Task launch for StepId=20.3 failed on node node1: Communication connection failure\n"
    "srun: error: Application launch failed: Communication connection failure\n"
    "srun: error: node0: task 0: Killed\n"
)
OUT_OF_TIME = "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-20T17:25:48 DUE TO TIME LIMIT ***"
OWN_PORT = (
    "DistNetworkError: The server socket has failed to listen on any local network address. port: 29517, useIpv6: "
    "false, code: -98, name: EADDRINUSE, message: address already in use"
)
OF_PORT = f"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/ada/train.py", line 4, in main
[rank0]:     dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29517", rank=0, world_size=1)
[rank0]:   File "/opt/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 215, in _create_c10d_store
[rank0]:     return TCPStore(
[rank0]: torch.distributed.{OWN_PORT}
"""
NODE_FAILURE = "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-20T17:22:38 DUE TO NODE FAILURE ***"
# What torchrun and the ranks of two nodes print, torch 2.13, shortened to the frames of the script.
OF_NODE_0 = f"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/ada/train.py", line 25, in main
[rank0]:     model(x).mean().backward()
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[rank0]:     torch.autograd.backward(
[rank0]: {LOST}
W1122 11:15:58.190000 1814 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal
"""
OF_NODE_1 = """\
epoch 1: accuracy 0.97
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/ada/train.py", line 20, in main
[rank1]:     batch = batches[number]
[rank1]:             ~~~~~~~^^^^^^^^
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataset.py", line 9, in __getitem__
[rank1]:     raise KeyError(index)
[rank1]: IndexError: index 61 is out of range
E1122 11:15:56.233000 1809 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_11:15:52
  rank      : 1 (local_rank: 0)
  exitcode  : 1 (pid: 1850)
"""


def at_its_end(rank: int, line: int) -> str:
    """What the agent writes of a rank that a signal ended."""
    library = (
        '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_reduce'
    )
    lines = (f"{AT_ITS_END} (most recent call first):", library, f'  File "/home/ada/train.py", line {line} in train')
    return "".join(f"[rank{rank}]: {each}\n" for each in lines)


IN_SAVE = f"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/ada/train.py", line 26, in save
[rank0]:     dist.barrier()
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 6371, in barrier
[rank0]:     work.wait()
[rank0]: {LOST}
"""
IN_WORKER = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/ada/train.py", line 34, in train_epoch
[rank1]:     for step, (x, y) in enumerate(loader):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/_utils.py", line 803, in reraise
[rank1]:     raise exception
[rank1]: ValueError: Caught ValueError in DataLoader worker process 0.
[rank1]: Original Traceback (most recent call last):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in <listcomp>
[rank1]:     data = [self.dataset[idx] for idx in possibly_batched_index]
[rank1]:             ~~~~~~~~~~~~^^^^^
[rank1]:   File "/home/ada/train.py", line 26, in __getitem__
[rank1]:     raise ValueError('damaged picture 177')
[rank1]: ValueError: damaged picture 177
"""


@pytest.fixture
def pair(tmp_path: Path) -> RunDirectory:
    """Two nodes with a rank each, and their logs."""
    directory = write_run(tmp_path, make_spec("2x1"))
    both(prints(0, OF_NODE_0), prints(1, OF_NODE_1))(directory)
    return directory


@pytest.fixture
def four(tmp_path: Path) -> RunDirectory:
    """Two nodes with two ranks each."""
    return write_run(tmp_path, make_spec("2x2"))


def both(*changes: Change) -> Change:
    return lambda run: [change(run) for change in changes]


def in_rank(number: int, **values: Any) -> Change:
    return lambda run: edit_rank(run, number, **values)


def in_agent(node: int, **values: Any) -> Change:
    return lambda run: edit_agent(run, node, **values)


def in_end(**values: Any) -> Change:
    return lambda run: edit(run.ended, lambda end: end.update(values))


def node_of(run: RunDirectory, rank: int) -> tuple[int, int]:
    """Node and local rank."""
    return divmod(rank, read_json(run.run)["spec"]["gpus_per_node"])


def raised(
    rank: int, exception: str | None, at_s: float = AT_S, exit_code: int = 1, after_training: bool = False
) -> Change:
    def change(run: RunDirectory) -> None:
        end = {"exit_code": exit_code, "ended_by": "exception", "exception": exception, "ended_at_s": at_s}
        edit_rank(run, rank, **end, after_training=after_training)
        edit_agent(run, node_of(run, rank)[0], exit_code=1)

    return change


def seen(rank: int, signal: str | None, at_s: float = AT_S - 1, exit_code: int = 1) -> Change:
    """Its agent saw the rank fail."""

    def change(run: RunDirectory) -> None:
        node, local = node_of(run, rank)
        end = {"rank": rank, "local_rank": local, "pid": 7, "signal": signal}
        end |= {"exit_code": exit_code, "ended_at_s": at_s}
        edit(run.agent_end(Agent(node)), lambda agent: agent.setdefault("failed_ranks", []).append(end))
        edit_agent(run, node, exit_code=1)

    return change


def without(*ranks: int) -> Change:
    return lambda run: [(run.ranks / f"rank{rank}.json").unlink() for rank in ranks]


def died(rank: int, signal: str | None, at_s: float = AT_S - 1, exit_code: int = -9) -> Change:
    return both(seen(rank, signal, at_s, exit_code), without(rank))


def prints(node: int, text: str) -> Change:
    return lambda run: run.agent_log(Agent(node), 2).write_text(text)


def srun(text: str) -> Change:
    return lambda run: run.launcher_log.write_text(text)


# What srun prints of `scancel 4.1`, Slurm 22.05.
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
STEP_CANCELLED = "slurmstepd-node1: error: *** STEP 4.1 ON node1 CANCELLED AT 2026-11-28T23:03:56 ***\n"
TASK_KILLED = "srun: error: node1: task 0: Killed\n"


def of_job(job_id: str) -> Change:
    def change(run: RunDirectory) -> None:
        for path in (run.run, run.ended, *run.ranks.glob("*.json"), *run.nodes.glob("*.json")):
            edit(path, lambda file: file["job"].update(id=job_id))

    return change


def unended(run: RunDirectory) -> None:
    run.ended.unlink()


def told(node: int, at_s: float, **changes: Any) -> Change:
    end = {"exit_code": -15, "signal": "SIGTERM", "told": {"signal": "SIGTERM", "at_s": at_s}}
    return in_agent(node, **{**end, **changes})


def gone(node: int) -> Change:
    return lambda run: run.agent_end(Agent(node)).unlink()


def stops(rank: int, steps: int) -> Change:
    return lambda run: write_steps(run, rank, read_steps(run, rank)[:steps])


def in_words(found: Failure) -> str:
    lines = "".join(f"\n{each.speaker}: {each.line}" for each in found.evidence)
    return f"{found.verdict} ({found.place}): {found.why}; {found.next}{lines}"


def check(run: RunDirectory, change: Change, begin: str, *words: str) -> None:
    change(run)
    said = in_words(failure_of(run))
    assert said.startswith(begin)
    assert [word for word in words if word not in said] == [], said


def looks(node: int, elsewhere: int | None) -> Change:
    """The agent's last look at its ranks, all of which but one wait in a barrier."""
    frame = 'Stack (most recent call first):\n  File "train.py", line 7 in prepare'
    waits = frame.replace("train.py", "torch/distributed/distributed_c10d.py").replace("prepare", "barrier")

    def change(run: RunDirectory) -> None:
        usual = {"stuck": False, "phase": "starting", "steps": 0, "step_s": None, "silent_s": 90.0, "sequence": None}
        numbers = (2 * node, 2 * node + 1)
        ranks = [rank_stall(k, frame if k == elsewhere else waits, **usual) for k in numbers]
        head = {key: read_json(run.ended)[key] for key in ("spec_hash", "job")}
        write_json(run.look(Agent(node)), agent_stall(node, *ranks, found_at_s=AT_S - 9, **head).model_dump())

    return change


KILLED = "a rank was killed (rank 3 on node1): rank 3 (node 1, node1): ended by SIGKILL"


def silent(node: int) -> dict[str, Any]:
    return {"node_rank": node, "local_rank": None, "silent_s": 45.0, "has_begun": True}


SILENT = in_end(outcome="silent agent", found_at_s=AT_S + 40, silent=[silent(1)])
ORPHAN = in_agent(1, exit_code=-15, signal="SIGTERM", orphaned=True, ended_at_s=AT_S)
INTERRUPTED = in_end(outcome="interrupted", found_at_s=AT_S, job_signal="SIGTERM")
LAUNCHER = both(in_agent(1, exit_code=-9, signal="SIGKILL"))
TORCH_MISSING = (
    "python: Error while finding module specification for 'torch.distributed.run' "
    "(ModuleNotFoundError: No module named 'torch')\n"
)
PORT = "DistNetworkError: The server socket has failed. port: 20001, useIpv6: false, code: -98, name: EADDRINUSE"
TOLD = both(in_agent(0, exit_code=-15, signal="SIGTERM"), in_agent(1, exit_code=-15, signal="SIGTERM"))
OF_FOUR: dict[str, tuple[Any, ...]] = {
    # A rank that died, against those that lost it, by clocks that differ.
    "killed": (
        both(*(raised(k, LOST, AT_S - 5) for k in (0, 1, 2)), died(3, "SIGKILL")), KILLED, "out-of-memory killer",
    ),
    "killed in a container, or not": (
        died(3, "SIGKILL", exit_code=137),
        f"{KILLED}, or by itself with exit code 137: the container does not tell them apart",
    ),
    "killed before another failed": (both(raised(0, "ValueError: bad batch"), died(3, "SIGKILL")), KILLED),
    "killed after another failed": (
        both(raised(0, "ValueError: bad batch"), died(3, "SIGKILL", AT_S + 1)),
        "the script raised an exception (rank 0 on node0): rank 0: ValueError: bad batch",
    ),
    # An abort and a SIGTERM may be consequences: of NCCL's watchdog, of Slurm and torchrun.
    "aborted": (
        both(died(3, "SIGABRT", AT_S - 3), *(raised(k, LOST) for k in (0, 1, 2))),
        "a rank aborted (rank 3 on node1): rank 3 (node 1, node1): ended by SIGABRT",
    ),
    "received too much": (
        both(died(3, "SIGABRT"), without(0, 1, 2), prints(1, f"terminate called\n{TOO_LARGE}\n")),
        "the ranks made different collective calls (): rank 3 received more than its call had room for: it or the",
        "give all ranks equally many batches",
        f"\nrank 3 (node1): {TOO_LARGE.strip()}",
    ),
    "crashed, with the line at which it stood": (
        both(died(3, "SIGSEGV"), prints(1, at_its_end(3, 15))),
        "a rank crashed (rank 3 on node1): rank 3 (node 1, node1): ended by SIGSEGV; 1. see what the script does",
        '\nrank 3 (node1): File "/home/ada/train.py", line 15, in train',
    ),
    "aborted by NCCL's watchdog, stand-in": (
        both(died(3, "SIGABRT", AT_S - 3), prints(1, WATCHDOG.replace("rank0", "rank3") + "\n")),
        "a collective call timed out (): another rank is late, gone", "\nrank 3 (node1): [E1 ProcessGroupNCCL.cpp:607]",
    ),
    "told to end": (
        both(died(3, "SIGTERM", AT_S - 3), *(raised(k, LOST) for k in (0, 1, 2))),
        "a rank was told to end (rank 3 on node1): rank 3 (node 1, node1): ended by SIGTERM",
    ),
    # Ranks that left the others.
    "left": (
        both(raised(0, LOST), stops(1, 50)),
        "a rank left the others (rank 1 on node0): rank 1 ended after 50 steps, rank 2 ended after 60 steps, rank 3 "
        "ended after 60 steps; rank 0 had made 60 and waited for it",
        "let every rank make the same number of steps",
    ),
    "trains alone, and left": (
        both(raised(0, LOST), stops(0, 0), in_rank(1, ddp=None)),
        "a rank left the others (rank 1 on node0): rank 1 ended after 60 steps",
        "rank 0 had made 0 and waited for it; its model was not wrapped in DistributedDataParallel",
        "on every rank, after torch.distributed.init_process_group(), wrap the model",
    ),
    "waited for each other": (
        both(*(raised(k, WAITED) for k in range(4))),
        f"the ranks waited for each other (): rank 0 after 60 steps: {WAITED}; rank 1 after 60 steps: {WAITED}",
    ),
    "left long before the time limit": (
        both(without(0), in_end(outcome="time limit", ended_at_s=AT_S + 600), in_rank(1, ended_at_s=AT_S)),
        "a rank left the others (rank 1 on node0): rank 1 ended after 60 steps",
        "rank 0 had not ended and waited for it",
    ),
    "time limit": (
        both(without(0), in_end(outcome="time limit", ended_at_s=AT_S + 5)),
        "time limit (): the job of scale 2x2 reached its stages.stage3.runtime, or the end of its allocation; the run "
        "had made 60 steps; raise stages.stage3.runtime or ask for a longer allocation, or set measure.max_steps below "
        "60",
    ),
    "time limit of the stage": (
        both(without(0, 1, 2, 3), in_end(outcome="time limit", asked_min=20, slurm_s=1190)),
        "time limit (): the job of scale 2x2 reached its stages.stage3.runtime (20 min); raise stages.stage3.runtime "
        "(now 20), or shorten the run with measure.max_steps",
    ),
    "time limit of Slurm": (
        both(without(0, 1, 2, 3), TOLD, srun(f"{OUT_OF_TIME}\n")),
        "time limit (node1): the job's time was up before the ladder ended the run itself",
    ),
    "time limit of the allocation": (
        both(without(0, 1, 2), stops(3, 12), in_end(outcome="time limit", asked_min=20, slurm_s=50)),
        "time limit (): when the job of scale 2x2 began, Slurm had left it 50 s, less than its stages.stage3.runtime "
        "(20 min); the run had made 12 steps; ask for a longer allocation",
    ),
    "time limit, standing still": (
        both(in_end(outcome="time limit"), without(0, 1, 2, 3), *(looks(node, 3) for node in (0, 1))),
        "time limit (): the job of scale 2x2 reached its stages.stage3.runtime",
        '; before that it stood still: rank 3 (node 1, node1) after 0 steps: File "train.py", line 7, in prepare; ',
        "if it hung, see why it does not go on at that line; else raise stages.stage3.runtime",
    ),
    # Exit code 75; the launcher's own is 1, and a peer that lost the connection meanwhile is none of the cause.
    "saved its state, and a peer was lost": (
        both(*(in_rank(k, exit_code=75) for k in (1, 2, 3)), raised(0, LOST)),
        "stopped by a signal, saved its state (): ranks 1-3: exit code 75 after 60 steps", "start snakemake again",
    ),
    "told to end, and ended well": (
        both(*(in_agent(k, exit_code=1, told={"signal": "SIGUSR1", "at_s": AT_S + 60}) for k in (0, 1))),
        "stopped by a signal (): SIGUSR1 came after ", "ranks 0-3 then ended with exit code 0, after 60 steps",
        "exit code 75", "raise stages.stage3.runtime",
    ),
    "failed, and the other node was then told to end": (
        both(
            in_agent(0, exit_code=1),
            in_agent(1, exit_code=-15, told={"signal": "SIGTERM", "at_s": AT_S}),
            prints(0, at_its_end(1, 15)),  # which the agent has written
        ),
        "the launcher failed (node0): node 0: exit code 1; read ",
    ),
    # A call that timed out while a rank was elsewhere: none of those that waited, or were aborted for it, is the cause.
    "kept waiting": (
        both(raised(0, WAITED), raised(1, WAITED), without(2, 3), *(looks(node, 3) for node in (0, 1))),
        'a rank kept the others waiting (rank 3 on node1): rank 3 (node 1, node1) after 0 steps: File "train.py", line '
        "7, in prepare; ranks 0-2 waited in barrier(); no rank made progress for 1 min 30 s; then their call timed",
        "workload.prepare", "init_process_group(timeout=...)",
    ),
    "kept waiting, until NCCL's watchdog": (
        both(
            *(died(k, "SIGABRT") for k in (0, 1, 2)),
            without(3),
            prints(0, f"{WATCHDOG}\n"),
            *(looks(node, 3) for node in (0, 1)),
        ),
        "a rank kept the others waiting (rank 3 on node1)",
    ),
    "all waited": (
        both(raised(0, WAITED), without(1, 2, 3), *(looks(node, None) for node in (0, 1))),
        "the ranks lost each other ()",
    ),
    "all but one waited until their call timed out": (
        both(*(raised(k, WAITED) for k in (0, 1, 3)), without(2)),
        "a rank kept the others waiting (rank 2): rank 2 did not come to a call within its timeout; rank 0 on",
        "hang.at_least_s",
    ),
    "a monitored barrier": (
        both(raised(0, LOST, AT_S - 1), raised(1, f"RuntimeError: [Rank 0]: {STAYED_AWAY}"), without(2, 3)),
        "a rank kept the others waiting (rank 3)",
    ),
    # Launchers and nodes.
    "launcher killed": (
        both(raised(0, LOST), without(2, 3), LAUNCHER),
        "a launcher was killed (node1): the launcher of node 1 (node1): ended by SIGKILL", "dmesg",
    ),
    "node gone": (
        both(raised(0, LOST), without(2, 3), gone(1)),
        "a node was lost (node1): node 1 (node1) left no end record: its agent was killed, or the node is gone; rank 0",
        "slurm.exclude in cluster.yaml",
    ),
    "node gone before the others missed it": (  # Slurm tells the other agents to end at once: they are no cause
        both(without(0, 1, 2, 3), gone(1), in_agent(0, exit_code=-15, signal="SIGTERM")),
        "a node was lost (node1)",
        "or the node is gone; the others were then ended by SIGTERM",
    ),
    # Agents, and Slurm's processes above them. Ranks that lose others by it, or are then told to end, are no cause.
    "agent stopped": (
        both(raised(0, LOST, AT_S + 30), without(2, 3), gone(1), SILENT),
        "an agent gave no sign of life (node1): the agent of node 1 (node1) gave no sign of life for 45 s: it is",
        "SIGSTOP", "slurm.exclude in cluster.yaml",
    ),
    "step daemon killed": (
        both(of_job("812"), raised(0, LOST), without(2, 3), ORPHAN),
        "a step daemon died (node1): the slurmstepd of node 1 (node1), the parent of its agent, died during the run",
        "slurmd's log on node1",
    ),
    "srun killed": (
        both(without(0, 1, 2, 3), TOLD, in_end(outcome="srun ended", found_at_s=AT_S, srun_signal="SIGKILL")),
        "srun was killed (node0): the run's srun on node0 was ended by SIGKILL; its job step was then ended", "dmesg",
    ),
    # Who ended it comes before what broke, and before files that are missing.
    "the job's process killed": (
        both(unended, without(0, 1, 2, 3), told(0, AT_S, orphaned=True), told(1, AT_S, orphaned=True)),
        "the job was killed (): job local-2x2 left no end record of the run: its process was killed, or its node went "
        "down; its agents were then ended by SIGTERM; ",
        "start snakemake again: only failed runs are repeated",
    ),
    "a rank failed, and then the job was killed": (
        both(unended, raised(0, "ValueError: bad batch", AT_S - 6), without(1, 2, 3), told(1, AT_S)),
        "the script raised an exception (rank 0 on node0)",
    ),
    "the job was told to end": (
        both(INTERRUPTED, without(0, 1, 2, 3), told(0, AT_S), told(1, AT_S)),
        "ended from outside (): the job got SIGTERM; if it was not you",
    ),
    "the job was told to end, and the ranks saved": (
        both(INTERRUPTED, *(in_rank(k, exit_code=75) for k in range(4)), told(0, AT_S), told(1, AT_S)),
        "stopped by a signal, saved its state (): ranks 0-3: exit code 75",
    ),
    "the job step was told to end": (
        both(of_job("812"), without(0, 1, 2, 3), told(0, AT_S), told(1, AT_S)),
        "ended from outside (): its job step got SIGTERM, which the ladder did not send",
    ),
    "the job step cancelled": (
        both(without(0, 1, 2, 3), gone(0), gone(1), srun(f"{ABORTED}{STEP_CANCELLED}{TASK_KILLED}")),
        "ended from outside (): its job step was cancelled, as with scancel, and not by the ladder",
    ),
    "a task killed, after which srun cancels its step": (
        both(without(0, 1, 2, 3), gone(0), gone(1), srun(f"{TASK_KILLED}{ABORTED}{STEP_CANCELLED}")),
        "the launcher failed ()",
    ),
    "an agent told to end, and the job told the other": (
        both(without(0, 1, 2, 3), told(0, AT_S + 1), told(1, AT_S)),
        "ended from outside (): the agent of node 1 (node1) got SIGTERM, which the ladder did not send",
    ),
    "an agent killed without Slurm": (
        both(
            without(0, 1, 2, 3),
            gone(1),
            in_end(outcome="agent ended", found_at_s=AT_S, agent_signal="SIGKILL"),
            told(0, AT_S),
        ),
        "an agent was killed (node0): the agent of node 1 (node0) was ended by SIGKILL, and the processes",
    ),
    "no step began": (
        both(without(0, 1, 2, 3), gone(0), gone(1)), "the launcher failed (): no agent left an end record; read ",
        "train.log",
    ),
    "srun refused": (
        both(
            without(0, 1, 2, 3),
            gone(0),
            gone(1),
            srun("srun: job 7\nsrun: error: Unable to create step for job 7: No\n"),
        ),
        "srun could not start the agents (): Slurm refused the job step: No",
    ),
    "no network": (
        in_agent(1, exit_code=1, error="network.interface: no interface ib7 on node1; there are lo, eth0", argv=[]),
        "software or network could not be set up (node1): node 1 (node1): network.interface: no interface ib7 on node1",
        "correct network.interface in cluster.yaml or in the variant",
    ),
    "no disk": (
        both(
            without(1), lambda run: write_json(run.ranks / "rank1.unwritten", {"host": "node0", "error": "OSError: No"})
        ),
        "the records could not be written (): rank 1 (node0): OSError: No",
        "df -h",
    ),
    # Exit codes, with the last line that was printed.
    "exit code without a record": (
        both(died(3, None, exit_code=3), prints(1, "done\ndataset is missing\n")),
        "the script failed (rank 3 on node1): rank 3 (node 1, node1): exit code 3, without an end record; the last "
        "line that was printed: dataset is missing",
    ),
    "the script's own port": (
        both(raised(0, OWN_PORT), raised(1, LOST), prints(0, OF_PORT)),
        "the script's own port is taken (rank 0 on node0): another process listens on port 29517, which the script "
        "names itself; the launcher gave it port 20001; its line: dist.init_process_group",
        "1. let the script call init_process_group() without init_method",
    ),
    "the script's own port, which torch 2.4 does not name": (
        both(raised(0, OWN_PORT.replace(" port: 29517,", "")), in_rank(0, own_rendezvous="localhost:29517")),
        "the script's own port is taken (rank 0 on node0): another process listens on port 29517, which the script",
    ),
    "out of memory": (
        both(raised(0, LOST), srun(f"{OVER_MEMORY}\nsrun: error: node1: task 0: Killed\n")), "out of memory (node1)",
        f": {OVER_MEMORY}", "node.memory_mb",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_FOUR)
def test_the_cause_among_four_ranks(four: RunDirectory, name: str) -> None:
    check(four, *OF_FOUR[name])


IN_WORKER_0 = "Caught FileNotFoundError in DataLoader worker process 0."
HANDLED = "During handling of the above exception, another exception occurred:"
LED = f"{TRACEBACK}:\n{CUDA_OOM}\n\n{HANDLED}\n\n{TRACEBACK}:\nRuntimeError: training failed"
OF_PAIR: dict[str, tuple[Any, ...]] = {
    "an exception that nobody knows is shown verbatim with its statement": (
        both(raised(1, "IndexError: index 61 is out of range"), raised(0, LOST, AT_S - 5)),
        "the script raised an exception (rank 1 on node1): rank 1: IndexError: index 61 is out of range; read ",
        '\nrank 1 (node1): File "/home/ada/train.py", line 20, in main\nrank 1 (node1): batch = batches[number]\n'
        "rank 1 (node1): IndexError: index 61 is out of range",
    ),
    "what any of the ranks may report": (
        both(raised(1, OTHER_MODEL), raised(0, LOST)),
        "the ranks built different models (): DDP expects same model across all ranks, but Rank 1",
        f"rank 1 (node1): {OTHER_MODEL}",
    ),
    "a file that a worker of the loader misses": (
        both(raised(1, f"FileNotFoundError: {IN_WORKER_0} {MISSING}"), raised(0, LOST, AT_S - 5)),
        "a file is missing (rank 1 on node1): node1 has no /data/cache; 1. ",
        f"\nrank 1 (node1): FileNotFoundError: {IN_WORKER_0} {MISSING}",
        "software.container.binds",
        "start snakemake",
    ),
    "where a worker of the loader raised": (
        both(
            raised(1, "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: damaged picture 177"),
            raised(0, LOST, AT_S - 5),
            prints(1, IN_WORKER),
        ),
        "the script raised an exception (rank 1 on node1): ",
        '\nrank 1 (node1): File "/home/ada/train.py", line 26, in __getitem__\nrank 1 (node1): raise ValueError(',
        "\nrank 1 (node1): ValueError: damaged picture 177",
    ),
    "a log names the cause": (
        both(
            raised(0, NCCL_LOST),
            raised(1, NCCL_LOST),
            prints(1, f"{NO_INTERFACE}\n[rank1]: torch.distributed.{NCCL_LOST}"),
        ),
        "NCCL found no network interface (rank 1 on node1)",
        f"\nrank 1 (node1): {NO_INTERFACE}",
    ),
    "waited in a call that the other rank does not make": (
        both(raised(0, LOST), prints(0, IN_SAVE)),
        "a rank left the others (rank 1 on node1): rank 1 ended after 60 steps; rank 0 had made 60 and waited for it; "
        "let every rank make the same collective calls",
        '\nrank 0 (node0): File "/home/ada/train.py", line 26, in save\nrank 0 (node0): dist.barrier()',
    ),
    "waited in the pass of another step": (
        both(
            raised(0, LOST),
            prints(0, IN_SAVE.replace("in barrier", "in _engine_run_backward")),
            in_rank(1, batches={"drawn": 61, "untrained": 1}),
        ),
        "a rank left the others (rank 1 on node1): ",
        "; rank 1 made no step with 1 of its 61 batches; let every rank make the same number of steps",
    ),
    "what NCCL tries again is no failure": (
        both(
            raised(1, NCCL_LOST),
            lambda run: (run.nodes / "nccl.node1.1001.log").write_text(f"{RETRIES}\n{NO_INTERFACE}\n"),
        ),
        "NCCL found no network interface (rank 1 on node1)",
    ),
    "why a worker died": (both(raised(1, WORKER), prints(1, f"{SHM}\n{OF_NODE_1}")), "/dev/shm is full"),
    "a launcher that could not start the ranks": (
        both(without(0, 1), in_agent(0, exit_code=1), in_agent(1, exit_code=1), prints(0, TORCH_MISSING)),
        "a Python package is missing (rank 0 on node0)",
    ),
    "a cause inside the traceback of another exception": (
        both(
            raised(1, "RuntimeError: training failed"),
            prints(1, "\n".join(f"[rank1]: {line}" for line in LED.split("\n"))),
        ),
        "CUDA out of memory (rank 1 on node1)",
        f"\nrank 1 (node1): {CUDA_OOM}\nrank 1 (node1): RuntimeError: training failed",
    ),
    "the scheduler, before the ranks that it killed": (
        both(raised(0, LOST), died(1, "SIGKILL"), srun(f"{NODE_FAILURE}\nsrun: error: node1: task 1: Killed\n")),
        "a node died (): Slurm lost one of the job's nodes (node[0-1]), and does not say which",
        f"\nslurm (node1): {NODE_FAILURE}",
    ),
    "the node that srun names as lost, not the first of the job": (
        both(raised(0, LOST), srun(f"{NODE_FAILURE}\nsrun: error: Node failure on node0\n")),
        "a node died (node0): Slurm lost node0, a node of the job",
        "slurm.exclude: node0",
    ),
    "a node whose slurmd died between two steps, and not the tasks that srun then ended": (
        both(without(0, 1), gone(0), gone(1), srun(LAUNCH_FAILED)),
        "Slurm could not start the agent of a node (node1): srun did not reach slurmd on node1, or was refused there: "
        "Communication connection failure",
        "slurm.exclude: node1",
    ),
    "not torchrun's root cause, which may be that of the healthy rank if another one hangs": (
        both(raised(0, LOST), without(1), srun("srun: error: node2: task 1: Exited with exit code 1\n")),
        "the ranks lost each other (): no rank is known to have failed by itself; rank 1 left no end record",
    ),
}


@pytest.mark.parametrize("name", OF_PAIR)
def test_the_cause_and_its_lines(pair: RunDirectory, name: str) -> None:
    check(pair, *OF_PAIR[name])


def test_a_check_that_did_not_pass_is_not_explained_by_what_the_script_printed(pair: RunDirectory) -> None:
    prints(1, f"{CUDA_OOM}\ntrying half the batch\n")(pair)
    edit_part(pair, 1, "parameters", checksum=f"sha256:{'b' * 64}")
    assert failure_of(pair).evidence == ()


def test_too_few_steps_show_the_exception_that_the_script_printed(pair: RunDirectory) -> None:
    """It ended the training on both ranks, which then ended well."""
    printed = f'{TRACEBACK}:\n  File "/home/ada/train.py", line 9, in main\n    check(batch)\n{NEGATIVE}\n'
    lost = f'{TRACEBACK}:\n  File "/home/ada/train.py", line 25, in main\n    loss.backward()\n{LOST}\n'
    both(prints(0, lost), prints(1, printed), stops(0, 20), stops(1, 20))(pair)
    words = ("; if the script ended early for the exception", f"\nrank 1 (node1): {NEGATIVE}")
    check(pair, both(), "enough steps (): measured 20 optimizer steps", *words)
    handled = both(in_rank(0, handled=LOST, ended_at_s=AT_S), in_rank(1, handled=NEGATIVE))
    words = (f"rank 1: {NEGATIVE}, for which it ended with exit code 0; measured 20", "train longer", "check(batch)")
    check(pair, handled, "the script raised an exception (rank 1 on node1)", *words)


@pytest.mark.parametrize(
    ("change", "kind"),
    {
        "memory of a GPU": (raised(1, CUDA_OOM), "out of memory"),
        "memory": (raised(1, "MemoryError"), "out of memory"),
        "killed": (died(1, "SIGKILL"), "killed"),
        "crashed": (died(1, "SIGSEGV"), None),
        "its launcher was killed": (both(without(0, 1), in_agent(1, signal="SIGKILL")), "killed"),
        "too few steps": (both(stops(0, 20), stops(1, 20)), "too few steps"),
        "the run's port": (raised(0, PORT), "rendezvous port taken"),
        "a port that the script has chosen": (raised(0, PORT.replace("20001", "29500")), None),
        "saved": (both(in_rank(0, exit_code=75), in_rank(1, exit_code=75)), "saved state"),
        "time limit": (lambda run: edit(run.ended, lambda end: end.update(outcome="time limit")), "time limit"),
        "any other": (raised(1, "ValueError: bad batch"), None),
    }.values(),
)
def test_what_code_depends_on_is_a_kind(pair: RunDirectory, change: Change, kind: str | None) -> None:
    change(pair)
    assert failure_of(pair).kind == kind


def test_long_lines_and_logs_are_bounded(pair: RunDirectory) -> None:
    prints(1, "y" * 5000 + "\n" + "z\n" * 500_000 + f"{NO_INTERFACE} {'x' * 5000}\n")(pair)
    raised(0, NCCL_LOST)(pair)
    (shown,) = failure_of(pair).evidence
    assert shown == Evidence(speaker="rank 1 (node1)", line=f"{NO_INTERFACE} {'x' * (299 - len(NO_INTERFACE))}...")


APEX = "ModuleNotFoundError: No module named 'apex'"
HANDLED_PORT = f"""\
ERROR:root:no server for the metrics
{TRACEBACK}:
  File "/home/ada/train.py", line 9, in serve
    server.bind(("", 8265))
OSError: [Errno 98] Address already in use"""
HANDLED_IMPORT = f"""\
{TRACEBACK}:
  File "/home/ada/train.py", line 2, in <module>
    import apex
{APEX}"""


EXITS = both(in_rank(1, exit_code=3, ended_at_s=AT_S), in_agent(1, exit_code=1))
FALLBACK = f"{APEX} - falling back to native AMP"
SMALLER = f"{CUDA_OOM}\ntrying half the batch"
DOWNLOADS = "Dataset not found or corrupted. Downloading"
NEGATIVE = "ValueError: batch 20 has a negative label"


@pytest.mark.parametrize(
    ("printed", "end", "verdict"),
    [
        (FALLBACK, died(1, "SIGKILL"), "a rank was killed"),
        (HANDLED_IMPORT, died(1, "SIGKILL"), "a rank was killed"),
        (f"{HANDLED_IMPORT}\nthe labels are wrong", EXITS, "the script failed"),
        (HANDLED_PORT, "FloatingPointError: loss", "the script raised an exception"),
        (SMALLER, NEGATIVE, "the script raised an exception"),
        (SMALLER, WORKER, "a worker of the data loader died"),
        (DOWNLOADS, LOST, "a rank left the others"),
    ],
)
@pytest.mark.parametrize("mark", ["[rank1]: ", ""], ids=["marked", "unmarked"])
def test_words_that_the_script_went_on_after_are_not_the_cause(
    pair: RunDirectory, printed: str, end: Change | str, verdict: str, mark: str
) -> None:
    both(prints(0, f"{printed}\n"), prints(1, f"{printed}\n"))(pair)
    if isinstance(end, str):
        prints(1, f'{printed}\n{mark}{TRACEBACK}:\n{mark}  File "/home/ada/train.py", line 9\n{mark}{end}\n')(pair)
        raised(1, end)(pair)
    else:
        end(pair)
    assert failure_of(pair).verdict == verdict


@pytest.mark.parametrize("after", ["", f'{TRACEBACK}:\n  File "/home/ada/train.py", line 9, in main\n{LOST}\n'])
def test_a_cause_that_a_rank_caught_and_printed_before_it_ended(pair: RunDirectory, after: str) -> None:
    """after: another rank that writes into the same log has lost it."""
    prints(1, f"{HANDLED_IMPORT}\nepoch 1\n{HANDLED_PORT}\n{after}")(pair)
    check(pair, EXITS, "a port is taken (rank 1 on node1)")
    check(pair, died(1, None), "a port is taken", "rank 1 (node1)")  # as its agent saw it


# A GPU that torch does not see: the words are torch's own, and a rank's facts are edited

NO_GPUS = "No CUDA GPUs are available"
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11070). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
NO_HIP_GPUS = "No HIP GPUs are available"
CPU_ONLY = "Torch not compiled with CUDA enabled"
A100 = {"name": "NVIDIA A100-SXM4-40GB", "driver": "535.129.03", "power_limit_w": 400.0}


@pytest.mark.parametrize(
    ("gpus", "seen_by_torch", "why", "next_step"),
    [
        ([A100], {"built_for": None, "why": CPU_ONLY}, "is built for no CUDA and says: ", "; install for"),
        ([A100], {"why": TOO_OLD}, "nvidia-smi shows 1 x NVIDIA A100-SXM4-40GB, driver 535.129.03", "1. install for"),
        ([], {}, f"says: {NO_GPUS}; nvidia-smi shows no GPU", "; check node.gres"),
        ([A100], {"visible": "CUDA_VISIBLE_DEVICES=''"}, "limited by CUDA_VISIBLE_DEVICES=''", "; check node.gres"),
        (
            [],
            {"built_for": "ROCm 6.2", "why": NO_HIP_GPUS, "visible": "ROCR_VISIBLE_DEVICES='9'"},
            f"is built for ROCm 6.2 and says: {NO_HIP_GPUS}; limited by ROCR_VISIBLE_DEVICES='9'",
            "software.setup leave ROCR_VISIBLE_DEVICES='9' alone",
        ),
    ],
    ids=["CPU-only", "too old", "no GPU", "hidden", "ROCm"],
)
def test_stand_in_why_a_rank_sees_no_gpu(
    tmp_path: Path, gpus: list[dict[str, Any]], seen_by_torch: dict[str, Any], why: str, next_step: str
) -> None:
    run = write_run(tmp_path, make_spec("1x2", device="cuda"))
    told = {"count": 0, "built_for": "12.8", "visible": None, "why": NO_GPUS, **seen_by_torch}
    device = {"kind": "cpu", "index": None, "name": "EPYC", "id": "cpu:1"}
    change = both(
        raised(1, f"RuntimeError: {told['why']}"), in_rank(1, device=device, gpus_seen=told), in_agent(0, gpus=gpus)
    )
    check(run, change, "torch sees no GPU (rank 1 on node0): rank 1: torch ", why, next_step, "start snakemake again")


# The last line that a rank printed before torchrun's report, which is as torch 2.4 and 2.15 write it

OLD = (
    "E1121 21:25:55.821000 140500044909440 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 2) "
    "local_rank: 0 (pid: 29023) of binary: /python\nTraceback (most recent call last):\n  File x\n"
)
NEW = (
    "W1121 21:25:51.968000 28862 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 28874 closing "
    "signal SIGTERM\nsaving\n"
    "E1121 21:25:51.969000 28862 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
)
MARKED = "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: Connection closed by peer [::1]:901\n"
FAR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:17829."
RAISED = f'Traceback (most recent call last):\n  File "x.py", line 1\n    loss.backward()\nRuntimeError: {FAR}\n'
ARGUMENT = "train.py: --n has an invalid value: 'x'"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        (f"usage: train.py\n{ARGUMENT}\n{OLD}", ARGUMENT),
        (f"dataset is missing\n{NEW}====\n", "dataset is missing"),
        ("epoch 1\n 10%|#\r 20%|##\r\n", "20%|##"),
        ("\x1b[31mno such file\x1b[0m\n\n", "no such file"),
        ("x" * 500, "x" * 300 + "..."),
        # Rank 0 has lost rank 1, after it has said why it ends.
        (f"dataset is missing\n{MARKED}{NEW}", "dataset is missing"),
        (f"epoch 1\nTraining failed: out of coffee\nTraining failed: {FAR}\n{NEW}", "Training failed: out of coffee"),
        (f"epoch 1\nTraining failed: out of coffee\n{RAISED}{NEW}", "Training failed: out of coffee"),
        (RAISED, f"RuntimeError: {FAR}"),
    ],
)
def test_an_exit_code_is_explained_by_the_last_line(tmp_path: Path, log: str, line: str) -> None:
    run = write_run(tmp_path, make_spec("1x2"))
    in_rank(1, exit_code=3)(run)
    run.agent_log(Agent(0), 1).write_text(log)
    said = f"; the last line that was printed: {line}" if line else ""
    assert failure_of(run).why == f"rank 1: exit code 3{said}"


# What fails after a complete training is a remark with its cause; what may have cut it short is a failure


def the_remark(record: Record) -> str:
    assert (record.status, record.failure) == ("ok", None)
    (remark,) = (remark for remark in record.remarks if remark.kind == "end")
    return remark.measured


def test_a_crash_at_the_interpreters_shutdown(four: RunDirectory) -> None:
    """As of a public training of a tokenizer: its record is written, then the process dies and torchrun fails."""
    before = reassemble(four)
    both(seen(3, "SIGSEGV", exit_code=-11), in_agent(0, exit_code=-15, signal="SIGTERM"))(four)
    after = reassemble(four)
    assert the_remark(after) == (
        "after its training, which is complete and counts, a rank crashed: rank 3 (node 1, node1): ended by SIGSEGV"
    )
    assert (after.throughput, after.timing) == (before.throughput, before.timing)
    assert [check.measured for check in after.checks if check.kind == "exit codes"] == [
        "after the training: node 0: SIGTERM, node 1: 1"
    ]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (
            both(seen(3, None, exit_code=3), prints(1, "cannot upload the summary\n")),
            "exit code 3, after the script's end; the last line that was printed: cannot upload",
        ),
        (
            both(
                *(raised(k, "RuntimeError: no such tracker", after_training=True) for k in range(4)),
                *(seen(k, None) for k in range(4)),
            ),
            "the script raised an exception: rank 0: RuntimeError: no such tracker",
        ),
        (in_end(outcome="time limit", ended_at_s=AT_S + 600), "the run's end was: time limit"),
        (
            both(*(in_rank(k, ended_by="max_seconds") for k in range(4)), TOLD, srun(f"{OUT_OF_TIME}\n")),
            "its launchers were ended",
        ),
    ],
    ids=["an exit handler that fails", "a clean-up that raises", "an end that hangs", "Slurm's limit, after ours"],
)
def test_what_fails_after_the_training_is_a_remark(four: RunDirectory, change: Change, remark: str) -> None:
    change(four)
    assert remark in the_remark(reassemble(four))


@pytest.mark.parametrize(
    "change",
    [
        both(raised(3, None, exit_code=75), seen(3, None)),  # it saved its state
        both(raised(1, "ValueError: bad batch"), seen(1, None)),
        TOLD,  # a script may end early, and well, when it is told to
        in_agent(1, exit_code=1),  # the launcher itself failed
        both(seen(3, "SIGSEGV", exit_code=-11), without(2)),  # the launcher ended it because of the crash
        in_end(outcome="time limit", ended_at_s=AT_S + 8),
    ],
    ids=["saved", "raised", "told to end", "launcher", "another rank", "at the time limit"],
)
def test_what_may_have_cut_the_training_short_is_a_failure(four: RunDirectory, change: Change) -> None:
    change(four)
    assert reassemble(four).status == "failed"


def test_a_link_of_a_chain_is_not_told_that_runs_are_repeated(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("2x1", stage="production"))
    for cause in (raised(1, "ValueError: bad"), both(of_job("7"), unended, gone(0), gone(1), without(0, 1))):
        cause(run)
        assert "repeated" not in in_words(failure_of(run))
        assert "start snakemake again: what the script has saved is kept" in failure_of(run).next
