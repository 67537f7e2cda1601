"""What is said of ranks that did not train one model on different data; the scripts that do it are really run in
test_wrong_scripts.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.findings import Finding
from ddp_ladder.diagnosis.correctness import Shared, most_shared
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.settings.terms import expand
from ddp_ladder_instrument.slow_settings import ANOMALY
from hypothesis import given, settings
from hypothesis import strategies as st
from make_records import make_spec
from make_runs import edit_batches, edit_part, edit_rank, failure_of, reassemble, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, make_spec("1x2"))


def on_both(run: RunDirectory, **values: Any) -> None:
    for number in (0, 1):
        edit_rank(run, number, **values)


def remarks(run: RunDirectory) -> tuple[Finding, ...]:
    record = reassemble(run)
    assert record.failure is None
    return record.remarks


@pytest.mark.parametrize(
    ("device", "verdict", "why", "next_step"),
    [
        (
            {"id": "GPU-0", "index": 0},
            "several ranks share one device",
            "ranks 0, 1 on node0 use one device",
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        ),
        ({"kind": "cpu"}, "distinct devices", "measured 2 x cpu, wanted 2 x cuda", "let the script train on cuda"),
    ],
    ids=["two ranks on one GPU", "a script that stays on the CPU"],
)
def test_fake_cuda_devices(tmp_path: Path, device: dict[str, Any], verdict: str, why: str, next_step: str) -> None:
    run = write_run(tmp_path, make_spec("1x2", device="cuda"))
    for number in (0, 1):
        edit_part(run, number, "device", **device)
    found = failure_of(run)
    assert (found.verdict, found.why) == (verdict, why)
    assert next_step in found.next


def test_without_a_process_group_that_is_said(run: RunDirectory, tmp_path: Path) -> None:
    edit_rank(run, 0, backend=None, ddp=None)
    edit_rank(run, 1, backend=None, ddp=None, parameters={"count": 1, "checksum": "sha256:b"})
    found = failure_of(run)
    assert found.verdict == "no process group was formed"
    assert found.why == "no process group on any rank, so each of them trained a model of its own"
    edit_rank(run, 0, backend="gloo")
    assert failure_of(run).why.startswith("no process group on rank 1, so ")
    edit_rank(run, 1, backend="gloo", world_size=1)
    assert failure_of(run).why == "2 ranks were started; for rank 1 the world has 1"
    edit_rank(run, 0, world_size=1)
    (run.ranks / "rank1.json").rename(tmp_path / "rank1.json")  # each is rank 0 of its own world
    assert failure_of(run).why == "2 ranks were started; for all ranks the world has 1"
    (tmp_path / "rank1.json").rename(run.ranks / "rank1.json")
    edit_rank(run, 0, world_size=2)
    edit_rank(run, 1, backend="gloo", world_size=2)
    assert failure_of(run).verdict == "the model is not wrapped in DistributedDataParallel"


def test_the_cause_is_named_before_what_it_causes(run: RunDirectory) -> None:
    """NaN has many bit patterns: diverged replicas need not be equal."""
    broken = {"count": 3, "names": ["0.weight", "0.bias", "2.weight"]}
    for number, letter in enumerate("ab"):
        seen = {"count": 1, "checksum": f"sha256:{letter}", "not_finite": broken, "names": ["a"], "digests": 8 * letter}
        edit_rank(run, number, parameters=seen)
    assert failure_of(run).verdict == "the training diverged"


def test_the_names_of_rank_0_are_those_of_the_digests_of_all(run: RunDirectory) -> None:
    other = {"names": [], "digests": "aaaaaaaabbbbbbbbdddddddd", "checksum": "sha256:b"}
    edit_part(run, 1, "parameters", **other)
    assert failure_of(run).why.endswith("; rank 1 differs from rank 0 in 1 of 3: 2.weight")
    edit_part(run, 0, "parameters", names=[])
    assert failure_of(run).why.endswith("; rank 1 differs from rank 0 in 1 of 3: number 3")


def test_samples_tell_whether_the_ranks_share_data(run: RunDirectory) -> None:
    on_both(run, first_samples=["0123"] * 8)  # constant ones tell nothing
    assert remarks(run) == ()
    assert measured_of("disjoint data", run) == "not checkable: the first batches of a rank are all alike"
    on_both(run, first_samples=[f"{k:016x}" for k in range(8)])
    assert failure_of(run).next.startswith("give each rank its own part of the data: by sampler=DistributedSampler")


def measured_of(check: str, run: RunDirectory) -> str:
    (found,) = (each for each in reassemble(run).checks if each.kind == check)
    assert found.ok
    return found.measured


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"not_measured": ["first samples: KeyError: 'affine'"]}, "could not be read (KeyError: 'affine')"),
        ({"loader": None}, "no DataLoader of torch gave the training a batch"),
        ({}, "the first batches hold no tensors in the host's memory"),
    ],
)
def test_that_the_data_could_not_be_compared_is_said(run: RunDirectory, values: dict[str, Any], why: str) -> None:
    edit_rank(run, 1, first_samples=[], **values)
    (remark,) = remarks(run)
    assert remark.measured.startswith("whether the ranks train on different data could not be checked: on rank 1 ")
    assert remark.measured.endswith(why)
    assert measured_of("disjoint data", run).startswith("not checkable: on rank 1 ")


def test_one_rank_needs_no_other_data(tmp_path: Path) -> None:
    alone = write_run(tmp_path, make_spec("1x1"))
    edit_rank(alone, 0, first_samples=[])
    assert remarks(alone) == ()


@pytest.mark.parametrize("shards", [True, None, False])
def test_only_a_sampler_that_is_known_not_to_divide_the_data_is_remarked_on(
    run: RunDirectory, shards: bool | None
) -> None:
    for number in (0, 1):
        edit_part(run, number, "loader", sampler="RandomSampler", shards=shards)
    said = [remark.measured.partition(" does")[0] for remark in remarks(run)]
    assert said == (["the sampler (RandomSampler)"] if shards is False else [])


def test_a_script_that_does_not_accumulate_as_told_fails(tmp_path: Path) -> None:
    spec = make_spec("1x2", mode="strong", batch_per_gpu=32, global_batch=256, accumulation=4)
    run = write_run(tmp_path, spec)
    for rank in (0, 1):
        edit_batches(run, rank, 128)
    assert reassemble(run).failure is None
    for rank in (0, 1):
        edit_batches(run, rank, 32)
    found = failure_of(run)
    assert found.verdict == "the script does not train with workload.global_batch"
    assert found.why == (
        "measured 64 samples in the median step of all ranks, wanted 256: 2 GPUs x 4 batches x 32 samples"
    )
    assert '"{accumulation}"' in found.next
    on_both(run, source="guessed")
    assert failure_of(run).next == "the number of samples is a guess: set workload.samples_per_step in config.yaml"


@pytest.mark.parametrize(
    ("samples_per_step", "passed", "passes", "advised"),
    [
        (16, "{batch_per_gpu}", 4, "{batch_per_gpu} * 4"),
        (64, "{batch_per_gpu} // 4", 4, "{batch_per_gpu}"),  # batch_per_gpu: 16, so each pass has 4
        (64, "{batch_per_gpu}", 4, ""),
        (16, "{batch_per_gpu} // 4", 4, ""),
        (64, "2", 4, ""),  # a batch of the script's own: the planned one is taken for it
        (16, "{batch_per_gpu}", 1, ""),
    ],
)
def test_samples_per_step_must_fit_the_backward_passes_that_were_seen(
    tmp_path: Path, samples_per_step: int, passed: str, passes: int, advised: str
) -> None:
    """Each advice is followed: without samples for the value, then for a value that does not fit."""
    own = {
        "batch_per_gpu": 16,
        "args_template": ["--batch", passed],
        "args": ["--batch", expand(passed, {"batch_per_gpu": 16})],
    }
    run = write_run(tmp_path, make_spec("1x1", **own, samples_per_step=samples_per_step))
    edit_rank(run, 0, source="samples_per_step")
    edit_part(run, 0, "fingerprint", backward_passes=passes)
    found = [each.next for each in remarks(run) if each.kind == "doubtful count"]
    assert [f'samples_per_step: "{advised}" in' in next_step for next_step in found] == [True] * bool(advised)
    run = write_run(tmp_path / "none", make_spec("1x1", **own))
    edit_batches(run, 0, 0)
    edit_part(run, 0, "fingerprint", batch_per_gpu=None, backward_passes=passes)
    if advised:
        assert f'such as "{advised}"' in failure_of(run).next


@pytest.mark.parametrize(
    ("device", "told"), [("cuda", ["CUDA_LAUNCH_BLOCKING=1", "set_detect"]), ("cpu", ["set_detect"])]
)
def test_settings_that_slow_such_a_run_are_remarked_on(tmp_path: Path, device: str, told: list[str]) -> None:
    slow = ["CUDA_LAUNCH_BLOCKING=1", "NCCL_IB_DISABLE=1", ANOMALY]
    run = write_run(tmp_path, make_spec("1x2", device=device), fingerprint={"slow_settings": slow})
    (remark,) = [each for each in remarks(run) if each.kind == "slow settings"]
    assert [word for word in ("CUDA_LAUNCH_BLOCKING=1", "NCCL_IB", "set_detect") if word in remark.measured] == told


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=5), max_size=7))
def test_the_two_ranks_that_share_most(samples: list[list[str]]) -> None:
    """Compared with all pairs; some samples are constant on a rank, and some ranks have none."""
    once = [{each for each, times in Counter(own).items() if times == 1} for own in samples]
    known = [rank for rank, own in enumerate(once) if own]
    wanted = Shared(len(known))
    for a, b in combinations(known, 2):
        fraction = len(once[a] & once[b]) / min(len(once[a]), len(once[b]))
        if fraction > wanted.fraction:
            wanted = Shared(len(known), (a, b), fraction)
    ends = [RankEnd.model_construct(rank=rank, first_samples=tuple(own)) for rank, own in enumerate(samples)]
    assert most_shared(ends) == wanted


def test_further_steps_on_a_batch_are_remarked_on(run: RunDirectory) -> None:
    edit_rank(run, 1, batches={"drawn": 100, "untrained": 0, "again": 300})
    assert [each.measured.partition(" are further")[0] for each in remarks(run)] == ["300 optimizer steps of rank 1"]


@pytest.mark.parametrize(
    ("source", "unclear", "why"),
    [
        ("counted", 2, "drawn from for some steps only (2 places in 100 batches)"),
        ("counted", 1, ""),
        ("counted", None, ""),
        ("samples_per_step", 9, ""),
    ],
)
def test_a_count_that_nothing_shows_is_doubtful(run: RunDirectory, source: str, unclear: int | None, why: str) -> None:
    edit_rank(run, 1, source=source, batches={"drawn": 100, "untrained": 0, "unclear": unclear})
    found = [each.measured for each in remarks(run) if each.kind == "doubtful count"]
    assert [why in what for what in found] == [True] * bool(why)
