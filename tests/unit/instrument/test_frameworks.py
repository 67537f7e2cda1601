"""Training loops of frameworks, on two ranks; what is measured is what the script counted and timed itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ddp_ladder_instrument.contract import WITNESS
from scripts_support import check, run, warmed
from warm import Warm

warm = warmed("torch", "torch._dynamo", "pytorch_lightning", "accelerate", "transformers.trainer")


TRAINERS = ("lightning_trainer.py 3", "hf_trainer.py 2")
ACCELERATED = [f"hf_accelerate.py {how}" for how in ("shard", "split")]


@pytest.mark.parametrize("line", [*TRAINERS, *ACCELERATED])
def test_framework(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = check(warm, tmp_path, *line.split(), ranks=2)
    assert [measured.ran.rank(rank)["loader"]["shards"] for rank in (0, 1)] == [True, True]
    assert measured.ran.rank()["loader"]["set_epoch_called"] in (True, None)


@pytest.mark.parametrize("line", TRAINERS)
def test_framework_is_followed(warm: Warm, tmp_path: Path, line: str) -> None:
    followed = run(warm, tmp_path, *line.split(), ranks=2, is_witness=True)
    for rank in (0, 1):
        told = json.loads((tmp_path / "run/ranks" / WITNESS.format(rank)).read_text())
        rows = followed.ran.rows(rank)
        assert [row["samples"] for row in rows] == followed.tally(rank)["samples"]
        assert told["samples"] == [row["samples"] + row["padding_samples"] for row in rows]
        assert not told["not_followed"]
        assert [told["flops"][phase] for phase in ("forward", "backward")] == [8, 8]  # a linear layer with four inputs


@pytest.mark.parametrize("line", TRAINERS)
def test_framework_ends_at_the_same_step(warm: Warm, tmp_path: Path, line: str) -> None:
    measured = run(warm, tmp_path, *line.split(), ranks=2, max_steps=8)
    for rank in (0, 1):
        assert measured.ranks[rank].code == 0, measured.ranks[rank].err
        record = measured.ran.rank(rank)
        assert (record["ended_by"], record["steps"]["count"], record["exception"]) == ("max_steps", 8, None)
