"""The cluster for tests behaves as a cluster does, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, clean_orphans, is_orphan
from cluster_config import Spec

pytestmark = pytest.mark.slurm

HERE = Path(__file__).parent

# Brings a cluster up and waits to be killed.
OWNER = """
import signal
from cluster import Cluster
from cluster_config import Spec
print(Cluster.up(Spec(nodes=2)).root, flush=True)
signal.pause()
"""


def test_a_step_runs_once_on_each_node(cluster_without_accounting: Cluster) -> None:
    said = cluster_without_accounting.run(["srun", "--nodes=2", "--ntasks-per-node=1", "hostname"]).stdout
    assert sorted(said.split()) == ["node1", "node2"]


def host_state() -> dict[str, object]:
    """Everything on this machine that a cluster could change."""
    return {
        "netns": subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout,
        "links": sorted(os.listdir("/sys/class/net")),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "hosts": Path("/etc/hosts").read_text(),
        "hostname": socket.gethostname(),
        "control groups": sorted(str(path) for path in Path("/sys/fs/cgroup").rglob("*slurm*")),
    }


def processes_that_mention(root: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(root).encode() in text:
                found.append(text.replace(b"\0", b" ").decode(errors="replace"))
    return found


def assert_gone(root: Path) -> None:
    assert not root.exists()
    assert processes_that_mention(root) == []


def test_nothing_is_left_after_down(no_orphans: None) -> None:
    before = host_state()
    cluster = Cluster.up(Spec(nodes=2, accounting=True))
    cluster.sbatch("sleep 1000", "--nodes=2")
    # A user's command that outlives the cluster, in the machine's own process namespace.
    argv = cluster.command(["sh", "-c", "echo ready; exec setsid sleep 1000"])
    with subprocess.Popen(argv, env=cluster.environment(), stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        assert len(processes_that_mention(cluster.root)) > 5
        cluster.down()
        assert user.wait(timeout=20) == -signal.SIGKILL
    assert_gone(cluster.root)
    assert host_state() == before


def test_a_cluster_whose_owner_was_killed_is_cleaned_away(cluster_without_accounting: Cluster) -> None:
    before = host_state()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        root = Path(owner.stdout.readline().strip())
        assert not is_orphan(root)
        owner.kill()
    assert is_orphan(root)
    assert processes_that_mention(root)
    assert root in clean_orphans()
    assert_gone(root)
    assert host_state() == before
    # The cluster of somebody who lives is none of its business.
    assert cluster_without_accounting.run(["srun", "true"]).returncode == 0
