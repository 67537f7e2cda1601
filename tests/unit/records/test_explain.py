"""The order of causes: raw files and logs of several ranks, with genuine output of torch, NCCL, Gloo and Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory, read_json, write_json
from ddp_ladder.records.record import Evidence, Failure
from ddp_ladder.records.signatures import TRACEBACK
from make_records import make_spec
from make_runs import STARTED_AT_S, edit, failure_of, write_run

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
NO_INTERFACE = "node1:1812:1812 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found"
CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

CUDA = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"
WORKER = "RuntimeError: DataLoader worker (pid(s) 4081) exited unexpectedly"

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


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Two nodes with a rank each."""
    directory = write_run(tmp_path, make_spec("2x1"))
    prints(directory, 0, OF_NODE_0)
    prints(directory, 1, OF_NODE_1)
    return directory


def prints(run: RunDirectory, node: int, text: str) -> None:
    run.agent_log(Agent(node), 2).write_text(text)


def srun(run: RunDirectory, text: str) -> None:
    run.launcher_log.write_text(text)


def raised(run: RunDirectory, rank: int, exception: str, at_s: float = AT_S) -> None:
    values: dict[str, Any] = {"exit_code": 1, "ended_by": "exception", "exception": exception, "ended_at_s": at_s}
    edit(run.ranks / f"rank{rank}.json", lambda end: end.update(values))
    edit(run.agent_end(Agent(rank)), lambda end: end.update(exit_code=1))


def died(run: RunDirectory, rank: int, signal: str | None) -> None:
    ended = {"rank": rank, "local_rank": 0, "pid": 7, "exit_code": -9 if signal else 1, "signal": signal}
    edit(
        run.agent_end(Agent(rank)),
        lambda end: end.update(exit_code=1, failed_ranks=[{**ended, "ended_at_s": AT_S}]),
    )
    (run.ranks / f"rank{rank}.json").unlink()


def lines(found: Failure) -> list[tuple[str, str]]:
    return [(each.speaker, each.line) for each in found.evidence]


def test_an_exception_that_nobody_knows_is_shown_verbatim_with_its_statement(run: RunDirectory) -> None:
    raised(run, 1, "IndexError: index 61 is out of range")
    raised(run, 0, LOST, AT_S - 5)  # by another clock
    found = failure_of(run)
    assert (found.verdict, found.why) == (
        "the script raised an exception",
        "rank 1: IndexError: index 61 is out of range",
    )
    assert (found.rank, found.node, found.at_s, found.place) == (1, "node1", AT_S, "rank 1 on node1")
    assert lines(found) == [
        ("rank 1 (node1)", 'File "/home/ada/train.py", line 20, in main'),
        ("rank 1 (node1)", "batch = batches[number]"),
        ("rank 1 (node1)", "IndexError: index 61 is out of range"),
    ]


@pytest.mark.parametrize(
    ("scale", "stage", "larger"),
    [("1x1", "stage1", "1x2"), ("1x2", "stage1", "1x4"), ("2x4", "stage1", "4x4"), ("1x2", "stage2", None)],
)
def test_a_model_that_does_not_fit_where_the_ladder_starts(
    tmp_path: Path, scale: str, stage: str, larger: str | None
) -> None:
    run = write_run(tmp_path, make_spec(scale, stage=stage))
    raised(run, 0, CUDA)
    text = f"; or, if it is sharded (FSDP, ZeRO), start the ladder at a larger scale: stages.stage1.scales: [{larger}]"
    found = failure_of(run).next
    assert (text in found) == bool(larger)
    assert ("FSDP" in found) == bool(larger)


@pytest.mark.parametrize(
    ("exception", "verdict", "advice"),
    [
        (CUDA, "CUDA out of memory", "workload.batch_per_gpu"),
        ("OSError: [Errno 28] No space left on device", "the disk is full", "df -h"),
        (ORDINAL, "a rank asked for a GPU that it does not see", "node.gpus"),
        ("ModuleNotFoundError: No module named 'timm'", "a Python package is missing", "software.python"),
        (WORKER, "a worker of the data loader died", "node.memory_mb"),
    ],
)
def test_an_exception_that_names_its_cause(run: RunDirectory, exception: str, verdict: str, advice: str) -> None:
    raised(run, 1, exception)
    raised(run, 0, LOST, AT_S - 5)
    found = failure_of(run)
    assert (found.verdict, found.place) == (verdict, "rank 1 on node1")
    assert lines(found) == [("rank 1 (node1)", exception)]
    assert advice in found.next
    assert found.next.startswith("1. ")
    assert found.next.endswith("; then start snakemake again")


def test_a_cause_that_only_a_log_names(run: RunDirectory) -> None:
    for rank in (0, 1):
        raised(run, rank, NCCL_LOST)
    prints(
        run, 1, f"{NO_INTERFACE}\n[rank1]: Traceback (most recent call last):\n[rank1]: torch.distributed.{NCCL_LOST}\n"
    )
    found = failure_of(run)
    assert found.verdict == "NCCL found no network interface"
    assert lines(found) == [("rank 1 (node1)", NO_INTERFACE)]
    prints(run, 1, "")
    assert failure_of(run).verdict == "NCCL failed", "ambiguous, but all there is"
    (run.nodes / "nccl.node1.1001.log").write_text(f"\n{NO_INTERFACE}\n")
    assert lines(failure_of(run)) == [("rank 1 (node1)", NO_INTERFACE)]


def test_the_reason_of_a_loaders_death_is_in_the_log(run: RunDirectory) -> None:
    shm = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    raised(run, 1, WORKER)
    prints(run, 1, f"{shm}\n{OF_NODE_1}")
    found = failure_of(run)
    assert found.verdict == "/dev/shm is full"
    srun(
        run, "slurmstepd-node1: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM.\n"
    )
    prints(run, 1, OF_NODE_1)
    found = failure_of(run)
    assert (found.verdict, found.node) == ("out of memory", "node1")


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


def hangs(run: RunDirectory) -> None:
    """Rank 1 sleeps, and rank 0 waits for it."""
    edit(run.ended, lambda ended: ended.update(outcome="hang"))
    stall: dict[str, Any] = {
        "stuck": True, "process": "alive", "pid": 7, "phase": "training", "steps": 20, "step_s": 0.1,
        "silent_s": 60.0, "sequence": 20,
    }  # fmt: skip
    for rank in (0, 1):
        (run.ranks / f"rank{rank}.json").unlink()
        edit(run.agent_end(Agent(rank)), lambda end: end.update(exit_code=-9, signal="SIGKILL"))
        end = read_json(run.agent_end(Agent(rank)))
        frame = 'File "/home/ada/train.py", line 12 in main'
        waits = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 5320 in barrier\n'
        stack = f"Current thread 0x01 (most recent call first):\n{'' if rank else waits}  {frame}"
        report = {
            **{key: end[key] for key in ("schema_version", "spec_hash", "job", "node_rank", "local_rank", "host")},
            "node": end["host"],
            "found_at_s": AT_S,
            "bounds": {"times_median_step": 10.0, "at_least_s": 60.0, "first_step_s": 1800.0},
            "ranks": [{**stall, "rank": rank, "stack": stack}],
        }
        write_json(run.hang(Agent(rank)), report)


def exits(run: RunDirectory, rank: int) -> None:
    edit(run.ranks / f"rank{rank}.json", lambda end: end.update(exit_code=3, ended_by="script", ended_at_s=AT_S))
    edit(run.agent_end(Agent(rank)), lambda end: end.update(exit_code=1))


FALLBACK = f"{APEX} - falling back to native AMP"
SMALLER = f"{CUDA_OOM}\ntrying half the batch"
DOWNLOADS = "Dataset not found or corrupted. Downloading"
NEGATIVE = "ValueError: batch 20 has a negative label"


@pytest.mark.parametrize(
    ("printed", "end", "verdict"),
    [
        (FALLBACK, "hang", "the training hung"),
        (HANDLED_IMPORT, "hang", "the training hung"),
        (FALLBACK, "SIGKILL", "a rank was killed"),
        (HANDLED_IMPORT, "SIGKILL", "a rank was killed"),
        (f"{FALLBACK}\nthe labels are wrong", "exit code", "the script failed"),
        (f"{HANDLED_IMPORT}\nthe labels are wrong", "exit code", "the script failed"),
        (HANDLED_IMPORT, NEGATIVE, "the script raised an exception"),
        (HANDLED_PORT, "FloatingPointError: loss", "the script raised an exception"),
        (SMALLER, NEGATIVE, "the script raised an exception"),
        (SMALLER, WORKER, "a worker of the data loader died"),
        (DOWNLOADS, LOST, "a rank left the others"),
    ],
)
@pytest.mark.parametrize("mark", ["[rank1]: ", ""], ids=["marked", "unmarked"])
def test_words_that_the_script_went_on_after_are_not_the_cause(
    run: RunDirectory, printed: str, end: str, verdict: str, mark: str
) -> None:
    prints(run, 0, f"{printed}\n")
    prints(run, 1, f"{printed}\n")
    if end == "hang":
        hangs(run)
    elif end == "SIGKILL":
        died(run, 1, end)
    elif end == "exit code":
        exits(run, 1)
    else:
        prints(run, 1, f'{printed}\n{mark}{TRACEBACK}:\n{mark}  File "/home/ada/train.py", line 9\n{mark}{end}\n')
        raised(run, 1, end)
    assert failure_of(run).verdict == verdict


@pytest.mark.parametrize("after", ["", f'{TRACEBACK}:\n  File "/home/ada/train.py", line 9, in main\n{LOST}\n'])
def test_a_cause_that_a_rank_caught_and_printed_before_it_ended(run: RunDirectory, after: str) -> None:
    """after: another rank that writes into the same log has lost it."""
    prints(run, 1, f"{HANDLED_IMPORT}\nepoch 1\n{HANDLED_PORT}\n{after}")
    exits(run, 1)
    found = failure_of(run)
    assert (found.verdict, found.place) == ("a port is taken", "rank 1 on node1")
    died(run, 1, None)
    assert failure_of(run).verdict == "a port is taken", "as its agent saw it"


def test_a_launcher_that_could_not_start_the_ranks(run: RunDirectory) -> None:
    for node in (0, 1):
        (run.ranks / f"rank{node}.json").unlink()
        edit(run.agent_end(Agent(node)), lambda end: end.update(exit_code=1))
        missing = "ModuleNotFoundError: No module named 'torch'"
        prints(run, node, f"python: Error while finding module specification for 'torch.distributed.run' ({missing})\n")
    assert failure_of(run).verdict == "a Python package is missing"


def test_a_cause_inside_the_traceback_of_another_exception(run: RunDirectory) -> None:
    handled = "During handling of the above exception, another exception occurred:"
    end = "RuntimeError: training failed"
    log = f"Traceback (most recent call last):\n{CUDA_OOM}\n\n{handled}\n\nTraceback (most recent call last):\n{end}"
    prints(run, 1, "\n".join(f"[rank1]: {line}" for line in log.split("\n")))
    raised(run, 1, end)
    found = failure_of(run)
    assert found.verdict == "CUDA out of memory"
    assert [line for _, line in lines(found)] == [CUDA_OOM, end]


def test_the_scheduler_is_named_before_the_ranks_that_it_killed(run: RunDirectory) -> None:
    raised(run, 0, LOST)
    died(run, 1, "SIGKILL")
    assert failure_of(run).verdict == "a rank was killed"
    words = "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-20T17:22:38 DUE TO NODE FAILURE ***"
    srun(run, f"{words}\nsrun: error: node1: task 1: Killed\n")
    found = failure_of(run)
    assert (found.verdict, found.node) == ("a node died", "node1")
    assert lines(found) == [("slurm (node1)", words)]
    prints(run, 1, f"{NO_INTERFACE}\n")
    assert failure_of(run).verdict == "NCCL found no network interface", "a named cause comes before the scheduler"


def test_torchruns_root_cause_is_not_trusted(run: RunDirectory) -> None:
    """It is the first end that torchrun saw: that of the healthy rank if another one hangs."""
    raised(run, 0, LOST)
    (run.ranks / "rank1.json").unlink()
    srun(run, "srun: error: node2: task 1: Exited with exit code 1\n")
    found = failure_of(run)
    assert found.verdict == "the ranks lost each other"
    assert "rank 1 left no end record" in found.why


def test_an_abort_is_shown_with_the_words_of_the_runtime(run: RunDirectory) -> None:
    said = (
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "what():  [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: "
        "unspecified launch failure",
    )
    prints(run, 1, f"epoch 1\n{said[0]}\n  {said[1]}\nFatal Python error: Aborted\n")
    raised(run, 0, LOST)
    died(run, 1, "SIGABRT")
    found = failure_of(run)
    assert (found.verdict, found.place) == ("a rank aborted", "rank 1 on node1")
    assert [line for _, line in lines(found)] == list(said)


def test_a_check_that_did_not_pass_is_not_explained_by_what_the_script_printed(run: RunDirectory) -> None:
    prints(run, 1, f"{CUDA_OOM}\ntrying half the batch\n")
    edit(run.ranks / "rank1.json", lambda end: end["parameters"].update(checksum=f"sha256:{'b' * 64}"))
    assert failure_of(run).evidence == ()


def test_long_lines_and_logs_are_bounded(run: RunDirectory) -> None:
    prints(run, 1, "y" * 5000 + "\n" + "z\n" * 500_000 + f"{NO_INTERFACE} {'x' * 5000}\n")
    raised(run, 0, NCCL_LOST)
    (shown,) = failure_of(run).evidence
    assert shown == Evidence(speaker="rank 1 (node1)", line=f"{NO_INTERFACE} {'x' * (299 - len(NO_INTERFACE))}...")
