"""Real DDP scripts under torchrun on two Gloo ranks, compared with the script's own count."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from instrument_support import JOB, SPEC_HASH, TORCHRUN, python_named, run, run_plainly, script

TRAIN = """
    import hashlib, json, random, sys, warnings
    import numpy as np
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


    def digest(model):
        data = b"".join(bytes(p.detach().flatten().view(torch.uint8).tolist())
                        for p in model.parameters())
        return hashlib.sha256(data).hexdigest()


    def main():
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(rank)
        data = TensorDataset(torch.randn(497, 256), torch.randint(0, 10, (497,)))
        sampler = DistributedSampler(data, seed=3)
        train = DataLoader(data, batch_size=32, sampler=sampler)
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 1400), torch.nn.ReLU(), torch.nn.Linear(1400, 10))
        model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        real = len(range(rank, len(data), world))
        sys.stdout.write(f"rank {rank} of {world} {sys.argv[1:]}\\n")
        for epoch in range(5):
            sampler.set_epoch(epoch)
            note = {"step_samples": [], "step_padding": []}
            seen = 0
            for x, y in train:
                F.cross_entropy(model(x), y).backward()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    optimizer.step()
                optimizer.zero_grad()
                seen += len(x)
                note["step_padding"].append(max(0, seen - real))
                note["step_samples"].append(len(x) - note["step_padding"][-1])
            with open(f"{sys.argv[1]}.{rank}.jsonl", "a") as file:
                file.write(json.dumps(note) + "\\n")
        streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        of_streams = hashlib.sha256(repr(streams).encode()).hexdigest()
        sys.stdout.write(f"parameters {rank} {digest(model.module)} {of_streams}\\n")
        if rank == 0:
            warnings.warn("the script's own")
        dist.destroy_process_group()


    if __name__ == "__main__":
        main()
"""


class Both:
    """The same script with and without instrument.py."""

    def __init__(self, directory: Path, python: Path) -> None:
        self._directory = directory
        train = script(directory, TRAIN)
        self.plain = run_plainly(directory, train, "notes", launcher=TORCHRUN, python=python)
        for path in directory.glob("notes.*"):
            path.unlink()
        self.measured = run(
            directory, train, "notes", launcher=TORCHRUN, env={"DDP_LADDER_LAUNCHED_AT": "1000.5"}, python=python
        )

    def notes(self, rank: int) -> list[dict[str, Any]]:
        lines = (self._directory / f"notes.{rank}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module", params=["newest", "oldest"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("ddp"), python_named(request.param))


def test_nothing_changes_for_the_script(both: Both) -> None:
    assert (both.plain.code, both.measured.code) == (0, 0), both.measured.err
    assert sorted(both.measured.out.splitlines()) == sorted(both.plain.out.splitlines())
    assert "parameters" in both.plain.out
    assert "UserWarning: the script's own" in both.plain.err
    assert both.measured.err == both.plain.err


@pytest.mark.parametrize("rank", [0, 1])
def test_samples_are_exact(both: Both, rank: int) -> None:
    rows, notes = both.measured.rows(rank), both.notes(rank)
    for column, key in (("samples", "step_samples"), ("padding_samples", "step_padding")):
        assert [row[column] for row in rows] == [n for note in notes for n in note[key]]
    assert sum(row["padding_samples"] for row in rows) == 5 * rank
    assert all(0 < row["data_wait_s"] < row["step_time_s"] for row in rows)


def test_end_records(both: Both) -> None:
    progress = json.loads((both.measured.directory / "progress.json").read_text())
    assert progress["step"] == len(both.measured.rows())
    for rank in (0, 1):
        record = both.measured.rank(rank)
        assert (record["spec_hash"], record["job"]) == (SPEC_HASH, JOB)
        assert (record["rank"], record["local_rank"], record["world_size"]) == (rank, rank, 2)
        assert (record["backend"], record["exit_code"], record["ended_by"]) == ("gloo", 0, "script")
        assert record["fingerprint"]["backend_class"] == "ProcessGroupGloo"
        assert record["steps"]["count"] == len(both.measured.rows(rank))
        steps = both.measured.path(rank, "steps").read_bytes()
        assert record["steps"]["sha256"] == hashlib.sha256(steps).hexdigest()
        assert record["device"]["id"] == f"cpu:{record['pid']}"
        assert record["not_measured"] == []
        assert record["loader"] == {
            "num_workers": 0,
            "sampler": "DistributedSampler",
            "shards": True,
            "shuffle": True,
            "set_epoch_called": True,
            "epochs_set": 5,
            "dataset_size": 497,
            "passes": 5,
            "whole_passes": 5,
            "unclear_sizes": [],
            "tokens_per_sample": None,
        }
        fingerprint = record["fingerprint"]
        assert fingerprint["batch_per_gpu"] == 32
        assert (fingerprint["parameter_dtype"], fingerprint["optimizer"]) == ("float32", "SGD")
        assert (fingerprint["autocast_dtype"], fingerprint["threads"]) == ("bfloat16", 1)
        assert fingerprint["cuda"] is None
        startup = record["startup_s"]
        assert startup["total"] > startup["spawn"] > 1e9 - 1000
        assert startup["first_step"] == pytest.approx(both.measured.rows(rank)[0]["step_time_s"], abs=1e-8)
        assert 0 < startup["process_group"] < 30
        assert startup["compile"] == 0
        parts_s = startup["import_torch"] + startup["process_group"] + startup["first_step"]
        assert 0 < startup["total"] - startup["spawn"] - parts_s < 60  # what the script does in between
        steps_s = sum(row["step_time_s"] for row in both.measured.rows(rank)[1:])
        assert steps_s < record["training_s"] < steps_s + 60
        assert 50e6 < record["peak_memory_bytes"]["host"] < 50e9
        assert record["peak_memory_bytes"]["device"] is None
        assert record["peak_memory_bytes"]["host"] < record["memory_limit_bytes"]["host"] < 50e12
        assert record["memory_limit_bytes"]["device"] is None


def test_equal_parameters_have_equal_checksums(both: Both) -> None:
    first, second = (both.measured.rank(rank)["parameters"] for rank in (0, 1))
    assert {**first, "names": []} == second  # names stand in rank 0's record alone
    assert first["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert first["count"] == 256 * 1400 + 1400 + 1400 * 10 + 10


def test_ddp_timings_are_plausible(both: Both) -> None:
    for rank in (0, 1):
        ddp = both.measured.rank(rank)["ddp"]
        assert sum(ddp["bucket_bytes"]) == 4 * both.measured.rank(rank)["parameters"]["count"]
        assert ddp["samples"] >= 1  # short steps are timed at random, one of up to 32
        timed = [row for row in both.measured.rows(rank) if row["comm_s"] > 0]
        assert timed
        assert all(row["forward_s"] > 0 and 0 <= row["overlap_s"] <= row["comm_s"] for row in timed)
        assert 0 <= ddp["exposed_comm_s"] <= max(row["comm_s"] for row in timed)
