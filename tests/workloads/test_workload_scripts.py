"""The scripts themselves: what they print and save, their options, and what instrument.py counts of them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from pathlib import Path
from typing import Any

import cifar
import gpt
import mnist
import pytest
import torch
from instrument_support import INSTRUMENT, Ran, run_json
from rank_support import on_ranks
from small_datasets import accept_cifar

from common import World

WORKLOADS = INSTRUMENT.parents[1] / "workloads"


# Under instrument.py. Training samples, epochs, and how a small run is started.
SMALL = {
    "mlp": (203, 2, ["--samples", "203", "--batch-size", "16", "--accumulate", "3"]),
    "mnist": (64, 2, ["--data", "mnist", "--data-dir", "{data}", "--batch-size", "8", "--precision", "bf16"]),
    "cifar": (64, 1, ["--data-dir", "{data}", "--depth", "10", "--width", "1", "--batch-size", "18"]),
    "imagenet": (
        12,
        1,
        ["--data-dir", "{data}", "--model", "shufflenet_v2_x0_5", "--image-size", "32", "--batch-size", "4"],
    ),
}


def measured(name: str, data: Path, directory: Path, epochs: int, words: list[str]) -> int | str | None:
    """On one rank: the script under instrument.py, as the agent starts it."""
    from ddp_ladder_instrument import entry

    if name == "cifar":
        accept_cifar(data)
    os.environ["DDP_LADDER_RUN"] = str(directory / "run.json")
    script = [str(WORKLOADS / f"{name}.py"), *(word.format(data=data) for word in words), "--epochs", str(epochs)]
    try:
        entry.main(script, started_at_s=time.time(), own_directory=str(INSTRUMENT.parent))
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize("name", SMALL)
def test_instrument_counts_every_sample_once(name: str, data: Path, tmp_path: Path) -> None:
    samples, epochs, words = SMALL[name]
    run_json(tmp_path)
    assert on_ranks(2, measured, name, data, tmp_path, epochs, words) == [0, 0]
    ran = Ran(0, "", "", tmp_path)
    rows = [row for rank in range(2) for row in ran.rows(rank)]
    assert sum(row["samples"] for row in rows) == samples * epochs
    assert sum(row["padding_samples"] for row in rows) == (samples % 2) * epochs
    records = [ran.rank(rank) for rank in range(2)]
    for record in records:
        assert record["loader"]["shards"]
        assert record["loader"]["epochs_set"] == epochs
        assert record["ddp"]["bucket_bytes"]
        assert record["fingerprint"]["autocast_dtype"] == ("bfloat16" if name == "mnist" else None)
    assert len({record["parameters"]["checksum"] for record in records}) == 1


GPT = "--layers 2 --width 32 --heads 2 --sequence 16 --samples 83 --batch-size 8 --accumulate 2 --lr 0.01".split()


def measured_gpt(strategy: str, data: Path, directory: Path) -> str:
    return output(lambda words: measured("gpt", data, directory, 2, words), [*GPT, "--strategy", strategy])


def test_every_strategy_trains_the_same_model_as_ddp_and_is_measured(data: Path, tmp_path: Path) -> None:
    """83 texts on two ranks: 42 each, in 3 steps of an epoch; zero1 has an optimizer in another."""
    losses: dict[str, float] = {}  # of the first epoch
    for strategy in gpt.STRATEGIES:
        run_json(tmp_path / strategy)
        printed = on_ranks(2, measured_gpt, strategy, data, tmp_path / strategy)[0]
        losses[strategy] = float(re.findall(r"loss ([\d.]+)", printed)[0])
        ran = Ran(0, "", "", tmp_path / strategy)
        rows, records = [ran.rows(rank) for rank in (0, 1)], [ran.rank(rank) for rank in (0, 1)]
        assert [len(each) for each in rows] == [6, 6]
        assert sum(row["samples"] for each in rows for row in each) == 83 * 2
        checksums = {record["parameters"]["checksum"] for record in records}
        sharded = strategy.startswith("fsdp2")
        assert ({record["parameters"]["sharded"] for record in records}, len(checksums)) == ({sharded}, 1 + sharded)
        hooks = {record["ddp"] and record["ddp"]["comm_hook"] for record in records}
        assert hooks == {"bf16_compress_hook" if strategy == "ddp-bf16" else None}
        assert {record["ddp"] is None for record in records} == {sharded}
    assert losses == {
        strategy: pytest.approx(losses["ddp"], rel=0.01 if strategy == "ddp-bf16" else 1e-4) for strategy in losses
    }


def test_sharded_states_are_not_saved() -> None:
    with pytest.raises(SystemExit):
        gpt.arguments(["--strategy", "zero1", "--checkpoint-dir", "x"])


def output(script: Any, words: list[str]) -> str:
    """On one rank: what it printed, after ending well."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert script(words) == 0
    return printed.getvalue()


def trained(data: Path, directory: Path, words: list[str]) -> dict[str, Any]:
    """Return the parameters that mnist.py has learnt on one rank."""
    base = ["--data", "mnist", "--data-dir", str(data), "--epochs", "1", "--batch-size", "16"]
    on_ranks(1, output, mnist.main, [*base, *words, "--checkpoint-dir", str(directory)])
    state: dict[str, Any] = torch.load(directory / "checkpoint.pt", weights_only=True)["model"]
    return state


def test_data_parallel_and_data_on_the_host_with_workers_are_the_same_training(data: Path, tmp_path: Path) -> None:
    ddp = trained(data, tmp_path / "ddp", [])
    torch.testing.assert_close(trained(data, tmp_path / "dp", ["--strategy", "dp"]), ddp)
    host = trained(data, tmp_path / "host", ["--data-on", "host", "--workers", "1"])
    assert all(torch.equal(value, host[name]) for name, value in ddp.items())


def refused(words: list[str]) -> str:
    with pytest.raises(SystemExit) as refusal:
        mnist.main(words)
    return str(refusal.value)


def test_several_processes_without_ddp_are_refused(data: Path) -> None:
    messages = on_ranks(2, refused, ["--data-dir", str(data), "--strategy", "dp"])
    assert all("--strategy dp is one process: 2 would each train a model" in message for message in messages)


def test_cifar_shares_its_batch_among_ranks_and_accumulated_batches() -> None:
    args = cifar.arguments(["--data-dir", "x", "--batch-size", "12", "--accumulate", "2"])
    assert cifar.batch_per_rank(args, World(0, 3, torch.device("cpu"))) == 2
    with pytest.raises(SystemExit, match=r"--batch-size 12, of all ranks together.* \(4 x 2\)"):
        cifar.batch_per_rank(args, World(0, 4, torch.device("cpu")))


def test_no_workload_imports_the_ladder() -> None:
    for name in (*SMALL, "common"):
        assert "ddp_ladder" not in (WORKLOADS / f"{name}.py").read_text()
