"""Nodes whose interfaces have different names, as in the guide that config/sites/ethernet6.yaml is from."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cluster import Cluster
from cluster_config import Spec
from project_copy import Checkout, copy_project
from scales import MEETING_OR_NOT, prepare, salloc, scale_job, witnesses

pytestmark = pytest.mark.slurm

INTERFACES = ("ens1f1", "ens1f0np0", "ens1f0")
MAP = {f"node{number}": name for number, name in enumerate(INTERFACES, 1)}
SITE_ENV = {"NCCL_IB_DISABLE": "1", "GLOO_LOG_LEVEL": "a b", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}


@pytest.fixture(scope="module")
def ethernet(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    return module_cluster(Spec(nodes=3, gpus=1, cpus=2, interfaces=INTERFACES))


def site(interface: Any) -> dict[str, Any]:
    return {
        "site": "test",
        "node": {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": 4000},
        "network": {"interface": interface, "env": SITE_ENV},
        "launcher": "srun",
    }


def climb(cluster: Cluster, checkout: Checkout) -> str:
    options = ["--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem=4000", "--gres=gpu:1"]
    return salloc(cluster, checkout, options, scale_job("3x1"))


@pytest.fixture(scope="module")
def met(ethernet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A 3x1 with an interface for each node, and the same with the ones that are found."""
    checkout = copy_project(tmp_path_factory.mktemp("project"))
    variants = {"default": {}, "auto": {"network": {"interface": "auto"}, "args": ["no meeting"]}}
    prepare(checkout, MEETING_OR_NOT, "3x1", site(MAP), variants=variants)
    climb(ethernet, checkout)
    return checkout


@pytest.mark.parametrize("variant", ["default", "auto"])
def test_each_node_uses_its_own_interface_and_the_sites_variables(
    met: Checkout, ethernet: Cluster, variant: str
) -> None:
    run = f"{variant}/weak/3x1/r1"
    record = met.record(run)
    assert record["status"] == "ok", record["failure"]
    seen = witnesses(met, run)
    assert [rank["SLURMD_NODENAME"] for rank in seen] == list(MAP)
    for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        assert tuple(rank[key] for rank in seen) == INTERFACES
    assert {rank.get("sum") for rank in seen} == {6.0 if variant == "default" else None}
    run_file = json.loads((met.results / "runs" / run / "run.json").read_text())
    assert run_file["rendezvous"]["host"] == ethernet.addresses["node1"]
    assert {rank["MASTER_ADDR"] for rank in seen} == {ethernet.addresses["node1"]}
    for rank in seen:
        assert SITE_ENV.items() <= rank.items()
    head = {"node": "node1", "address": ethernet.addresses["node1"], "interface": INTERFACES[0]}
    assert record["world"]["head"] == head
    log = (met.results / "runs" / run / "train.log").read_text()
    point = f"{head['address']}:{run_file['rendezvous']['port']}"
    assert log.count(f"ddp-ladder: head node node1, {point} on {INTERFACES[0]}\n") == 1
