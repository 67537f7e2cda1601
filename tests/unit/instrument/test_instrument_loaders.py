"""Loaders of other libraries, on one rank or two: samples and times are what the script counted and timed itself, and
of what cannot be known nothing false is said. test_samplers.py has samplers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts_support import Measured, check, run, warmed
from warm import Warm

warm = warmed("torch", "torch._dynamo", "torchdata.stateful_dataloader")


def facts(measured: Measured, *names: str) -> list[Any]:
    loader = measured.ran.rank()["loader"]
    return [loader[name] for name in names]


STATEFUL = ("", "--workers 1 --persistent --asked-early", "--workers 2 --no-set-epoch", "--stream --workers 1")


@pytest.mark.parametrize("line", STATEFUL)
def test_stateful_loader_of_torchdata(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = check(warm, tmp_path, "stateful.py", *line.split(), ranks=2)
    assert facts(measured, "passes") == [3]
    if "--stream" in line:
        assert facts(measured, "sampler", "set_epoch_called") == ["Stream", None]
        assert facts(measured, "shards") == [None]
    else:
        assert facts(measured, "sampler", "shards") == ["StatefulDistributedSampler", True]
        assert facts(measured, "set_epoch_called") == ["--no-set-epoch" not in line]


OF_DATA = ("unnamed 0", "unnamed 2", "iterator 0", "infinite 2", "texts 2")
# Sizes that unclear batches may have, and the samples of a batch as the sampler gave it.
ARRIVES: dict[str, tuple[list[int], int]] = {
    "dropping 2": ([], 8),
    "own_batches 0": ([1, 2], 3),
    "items 0": ([], 1),
    "packed 2": ([], 6),
}


@pytest.mark.parametrize("line", OF_DATA)
def test_a_pass_is_counted_wherever_its_iterator_is_made(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = check(warm, tmp_path, "loaders.py", *line.split(), ranks=1)
    assert facts(measured, "sampler", "num_workers", "dataset_size") == ["RandomSampler", int(line[-1]), 47]
    tokens = 9 if line == "texts 2" else None
    assert facts(measured, "passes", "tokens_per_sample") == [1 if line == "infinite 2" else 2, tokens]
    assert len(measured.ran.rank()["first_samples"]) >= 4
    assert measured.ran.rank()["phases"]["validations_s"] == []


def test_batches_that_a_cycle_gives_again_are_no_samples(warm: Warm, tmp_path: Path) -> None:
    """The gate then asks for workload.samples_per_step."""
    measured = run(warm, tmp_path, "loaders.py", "cycle", 0, ranks=1)
    assert measured.samples(0) == [*measured.tally(0)["samples"][:12], *[0] * 12]


@pytest.mark.parametrize("samples", [None, 4])
def test_batches_that_another_thread_draws_are_not_counted(warm: Warm, tmp_path: Path, samples: int | None) -> None:
    measured = run(warm, tmp_path, "loaders.py", "threaded", 0, ranks=1, samples_per_step=samples)
    assert measured.samples(0) == [samples or 0] * 24


@pytest.mark.parametrize("line", ARRIVES)
def test_what_arrives_is_counted(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = check(warm, tmp_path, "loaders.py", *line.split(), ranks=1)
    unclear, batch = ARRIVES[line]
    assert facts(measured, "unclear_sizes") == [unclear]
    record = measured.ran.rank()
    assert record["source"] == ("guessed" if unclear else "counted")
    assert record["fingerprint"]["batch_per_gpu"] == batch


@pytest.mark.parametrize("line", ["web_shuffled 2", "web_cut_short 0"])
def test_what_fills_the_buffer_of_a_web_loader_is_no_sample(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = check(warm, tmp_path, "loaders.py", *line.split(), ranks=1)
    assert facts(measured, "num_workers", "sampler", "passes") == [int(line[-1]), "Stream", 2]
