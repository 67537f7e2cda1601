"""The cluster for tests behaves as a cluster does, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, clean_orphans, is_orphan

pytestmark = pytest.mark.slurm

HERE = Path(__file__).parent

# Brings a cluster up, with a job and a user's command that outlives it, and waits to be killed.
OWNER = """
import signal, subprocess
from cluster import Cluster
from cluster_config import Spec
cluster = Cluster.up(Spec(nodes=2, accounting=True))
cluster.sbatch("sleep 1000", "--nodes=2")
subprocess.Popen(cluster.command(["sh", "-c", "exec setsid sleep 1000"]), env=cluster.environment())
print(cluster.root, flush=True)
signal.pause()
"""


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


def test_a_cluster_whose_owner_was_killed_is_cleaned_away(cluster_without_accounting: Cluster) -> None:
    before = host_state()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env={**os.environ, "PYTHONPATH": str(HERE)}, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        root = Path(owner.stdout.readline().strip())
        assert not is_orphan(root)
        owner.kill()
    assert is_orphan(root)
    assert len(processes_that_mention(root)) > 5
    assert root in clean_orphans()
    assert not root.exists()
    assert processes_that_mention(root) == []
    assert host_state() == before
    # The cluster of somebody who lives is none of its business.
    assert cluster_without_accounting.run(["srun", "true"]).returncode == 0
