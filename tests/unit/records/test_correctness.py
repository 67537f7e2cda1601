"""What is said of ranks that did not train one model on different data; the scripts that do it are really run in
test_wrong_scripts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.records.record import Remark
from make_records import make_spec
from make_runs import edit, edit_rank, failure_of, read_steps, reassemble, write_run, write_steps

LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1234"
WAITED = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, make_spec("1x2"))


def remarks(run: RunDirectory) -> tuple[Remark, ...]:
    record = reassemble(run)
    assert record.failure is None
    return record.remarks


def test_a_good_run_needs_no_remark(run: RunDirectory) -> None:
    assert remarks(run) == ()


def test_fake_cuda_two_ranks_on_one_device(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2", device="cuda"))
    for number in (0, 1):
        edit(run.ranks / f"rank{number}.json", lambda end: end["device"].update(id="GPU-0", index=0))
    found = failure_of(run)
    assert (found.verdict, found.why) == ("several ranks share one device", "ranks 0, 1 on node0 use one device")
    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))' in found.next


def test_fake_cuda_a_script_that_stays_on_the_cpu(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2", device="cuda"))
    for number in (0, 1):
        edit(run.ranks / f"rank{number}.json", lambda end: end["device"].update(kind="cpu"))
    found = failure_of(run)
    assert (found.verdict, found.why) == ("distinct devices", "measured 2 x cpu, wanted 2 x cuda")
    assert found.next.startswith("let the script train on cuda")


def test_without_a_process_group_that_is_said(run: RunDirectory) -> None:
    edit_rank(run, 0, backend=None, ddp=None)
    edit_rank(run, 1, backend=None, ddp=None, parameters={"count": 1, "bytes": 4, "checksum": "sha256:b"})
    found = failure_of(run)
    assert found.verdict == "no process group was formed"
    assert found.why == "no process group on any rank, so each of them trained a model of its own"
    edit_rank(run, 0, backend="gloo")
    assert failure_of(run).why.startswith("no process group on rank 1, so ")
    edit_rank(run, 1, backend="gloo", world_size=1)
    assert failure_of(run).why == "2 ranks were started; for rank 1 the world has 1"
    edit_rank(run, 1, backend="gloo", world_size=2)
    assert failure_of(run).verdict == "the model is not wrapped in DistributedDataParallel"


def test_the_cause_is_named_before_what_it_causes(run: RunDirectory) -> None:
    """NaN has many bit patterns: diverged replicas need not be equal."""
    broken = {"count": 3, "names": ["0.weight", "0.bias", "2.weight"]}
    for number, letter in enumerate("ab"):
        seen = {
            "count": 1,
            "bytes": 4,
            "checksum": f"sha256:{letter}",
            "not_finite": broken,
            "tensors": [["a", letter]],
        }
        edit_rank(run, number, parameters=seen)
    assert failure_of(run).verdict == "the training diverged"


@pytest.mark.parametrize("first", [1, 12])
def test_a_loss_that_was_never_finite_has_nothing_to_do_with_the_learning_rate(run: RunDirectory, first: int) -> None:
    values = None if first == 1 else 2.3
    for number in (0, 1):
        loss = {"samples": 9, "first": values, "last": None, "last_step": 60, "not_finite_steps": [first, 60]}
        edit_rank(run, number, loss=loss)
    found = failure_of(run)
    assert "first seen at step" in found.why
    if first == 1:
        assert found.verdict == "the loss was not finite before the first update"
        assert "look for nan or infinite values in the first batch" in found.next
        assert "lower the learning rate" not in found.next
    else:
        assert found.verdict == "the training diverged"
        assert found.next.startswith("lower the learning rate")


def test_constant_samples_tell_nothing(run: RunDirectory) -> None:
    for number in (0, 1):
        edit_rank(run, number, first_samples=["0123"] * 8)
    (remark,) = remarks(run)
    assert remark.what.startswith("not checked: no samples were seen that distinguish the ranks' data")


def loader(run: RunDirectory, **facts: Any) -> None:
    for number in (0, 1):
        edit(run.ranks / f"rank{number}.json", lambda end: end["loader"].update(facts))


def test_what_to_do_about_the_same_samples(run: RunDirectory) -> None:
    for number in (0, 1):
        edit_rank(run, number, first_samples=[f"{k:016x}" for k in range(8)])
    assert failure_of(run).next.startswith("give each rank its own part of the data: by sampler=DistributedSampler")


@pytest.mark.parametrize("shards", [True, None])
def test_only_a_sampler_that_is_known_not_to_divide_the_data_is_remarked_on(
    run: RunDirectory, shards: bool | None
) -> None:
    loader(run, sampler="RandomSampler in BatchSamplerShard", shards=shards)
    assert remarks(run) == ()
    loader(run, sampler="RandomSampler", shards=False)
    assert [remark.what.partition(" (")[0] for remark in remarks(run)] == ["the sampler"]


def test_batches_of_different_size_are_remarked_on(run: RunDirectory) -> None:
    edit(run.ranks / "rank1.json", lambda end: end["fingerprint"].update(batch_per_gpu=32))
    (remark,) = remarks(run)
    assert remark.what == "the ranks use batches of different size: 64 on rank 0, 32 on rank 1"
    assert reassemble(run).fingerprint["global_batch"] == 96


def test_a_rank_that_left_is_the_cause_and_not_the_one_that_lost_it(run: RunDirectory) -> None:
    edit_rank(run, 0, exit_code=1, ended_by="exception", exception=LOST)
    edit(run.agent_end(Agent(0, None)), lambda end: end.update(exit_code=1))
    write_steps(run, 1, read_steps(run, 1)[:50])
    found = failure_of(run)
    assert found.verdict == "a rank left the others"
    assert found.why == "rank 1 ended after 50 steps; rank 0 was in its step 61 and waited for it"


def test_ranks_that_wait_for_each_other(run: RunDirectory) -> None:
    for number in (0, 1):
        edit_rank(run, number, exit_code=1, ended_by="exception", exception=WAITED)
    found = failure_of(run)
    assert found.verdict == "the ranks waited for each other"
    assert found.why == f"rank 0 after 60 steps: {WAITED}; rank 1 after 60 steps: {WAITED}"


@pytest.mark.parametrize(
    ("before_s", "verdict"), [(600.0, "a rank left the others"), (5.0, "time limit")], ids=["long before", "when told"]
)
def test_at_the_time_limit_only_who_had_left_long_before_is_the_cause(
    run: RunDirectory, before_s: float, verdict: str
) -> None:
    (run.ranks / "rank0.json").unlink()
    edit(run.ended, lambda ended: ended.update(outcome="time limit", ended_at_s=ended["ended_at_s"] + 1000))
    ended_at_s = 1_800_000_000.0 + 1000
    edit_rank(run, 1, ended_at_s=ended_at_s - before_s)
    found = failure_of(run)
    assert found.verdict == verdict
    if verdict != "time limit":
        assert found.why == "rank 1 ended after 60 steps; rank 0 had not ended and waited for it"
