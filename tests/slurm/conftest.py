"""Fixtures: real Slurm clusters, one with accounting, one without, and new ones for tests that break them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import machines
import pytest
from cluster import Cluster, clean_orphans, why_not
from cluster_config import Spec
from machines import HERE, ClusterError, System
from needed import need
from newer_debian import newer_debian


def require(accounting: bool) -> None:
    reason = why_not(accounting)
    need(reason is None, f"no real Slurm: {reason}")


@contextlib.contextmanager
def running(spec: Spec) -> Iterator[Cluster]:
    require(spec.accounting)
    cluster = Cluster.up(spec)
    try:
        yield cluster
    finally:
        cluster.down()
        assert str(cluster.root) not in machines.clusters_of_processes().values()


@pytest.fixture(scope="session")
def no_orphans() -> None:
    """Take down clusters of earlier sessions that were killed."""
    require(accounting=False)
    clean_orphans()


@pytest.fixture(scope="module", params=["Slurm of this machine", "Slurm of Debian 13"])
def system(request: pytest.FixtureRequest) -> System:
    """An older and a newer Slurm with the Python of its users, one after the other."""
    if request.param == "Slurm of this machine":
        return HERE
    try:
        return newer_debian()
    except ClusterError as error:
        need(False, f"no newer Slurm: {error}")
        raise


@pytest.fixture(scope="session")
def cluster(no_orphans: None) -> Iterator[Cluster]:
    """A cluster with slurmdbd and six nodes with four GPUs each. It is shared: leave it unchanged."""
    with running(Spec(nodes=6, gpus=4, cpus=8, accounting=True)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def each_cluster(no_orphans: None, system: System, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """That cluster, and then one like it with the newer Slurm and Python."""
    if system == HERE:
        yield request.getfixturevalue("cluster")
    else:
        with running(Spec(nodes=6, gpus=4, cpus=8, accounting=True, system=system)) as cluster:
            yield cluster


@pytest.fixture(scope="session")
def cluster_without_accounting(no_orphans: None) -> Iterator[Cluster]:
    """A cluster of two nodes with two GPUs each, without slurmdbd. It is shared: leave it unchanged."""
    with running(Spec(nodes=2, gpus=2)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def module_cluster(no_orphans: None) -> Iterator[Callable[[Spec], Cluster]]:
    """Bring up clusters that the tests of a module share."""
    with contextlib.ExitStack() as stack:
        yield lambda spec: stack.enter_context(running(spec))


@pytest.fixture
def make_cluster(no_orphans: None) -> Iterator[Callable[[Spec], Cluster]]:
    """Bring up clusters for one test, and take them down after it."""
    with contextlib.ExitStack() as stack:
        yield lambda spec: stack.enter_context(running(spec))
