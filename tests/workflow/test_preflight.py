"""The preflight with real ranks on this machine: an all-reduce that returns a wrong value, and a foreign world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ddp_ladder.node.network import free_port
from ddp_ladder.preflight.collectives import ProbeRank
from make_records import make_spec
from project_copy import ROOT, Checkout, last_box

# The all-reduce of one rank adds 1 to an element of every message from 16 KiB on.
WRONG_ALL_REDUCE = """
import importlib.machinery, os, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            real = module.all_reduce
            def all_reduce(tensor, *args, **options):
                done = real(tensor, *args, **options)
                if os.environ["RANK"] == "1" and tensor.numel() > 1024:
                    tensor[7] += 1
                return done
            module.all_reduce = all_reduce
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def test_a_wrong_sum_closes_the_gate_and_starts_no_run(checkout: Checkout) -> None:
    wrong = checkout.path / "wrong"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text(WRONG_ALL_REDUCE)
    checkout.configure(preflight={"enabled": True})
    checkout.site(software={"setup": f"export PYTHONPATH={wrong}"}, launcher="srun")
    assert "stage2 1x2: ERROR" in checkout.measure("1x2")
    assert not list((checkout.results / "runs").rglob("run.json"))
    judged = checkout.script("gate.py", "--stage", "stage2")
    assert judged.returncode == 1
    box = last_box(judged.stdout.rpartition("written:")[0].strip())
    assert "an all-reduce of 16384 bytes returned wrong values on rank 1" in box["why"]
    assert "1 of 2048 elements are wrong, element 7 is" in box["why"]
    assert box["verdict"].startswith("the preflight failed (")
    assert "network.env in cluster.yaml" in box["next"]
    assert checkout.processes() == []


def test_ranks_of_two_jobs_at_one_endpoint_are_told_apart(tmp_path: Path) -> None:
    """Rank 0 of one job and rank 1 of another, as when two jobs share a node and a port."""
    spec, port = make_spec("1x2"), free_port("foreign")
    ranks = [start_rank(tmp_path / job, job, spec, k, port) for k, job in enumerate(("one", "other"))]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [1, 1], said
    seen = [
        ProbeRank.from_json(json.loads((tmp_path / job / f"ranks/rank{k}.json").read_text())).seen
        for k, job in enumerate(("one", "other"))
    ]
    assert [one.foreign[0].rpartition(" ")[2] for one in seen if one] == ["other", "one"]


def start_rank(directory: Path, job: str, spec: Any, rank: int, port: int) -> subprocess.Popen[str]:
    directory.mkdir()
    run = {"spec": spec.model_dump(), "spec_hash": spec.hash, "job": {"id": job, "attempt": 1, "run_id": job}}
    (directory / "run.json").write_text(json.dumps(run))
    (directory / "settings.json").write_text(json.dumps({"timeout_s": 60, "largest_bytes": 4096}))
    env = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "DDP_LADDER_RUN": str(directory / "run.json"),
    }
    argv = [sys.executable, str(ROOT / "workflow/scripts/preflight_probe.py")]
    return subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
