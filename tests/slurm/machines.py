"""Machines made of Linux namespaces: network, host name, mounts and processes, all ended by one SIGKILL."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Identifies our directories and, in the name of a mount, our processes.
MARKER = "ddp-ladder-test-cluster"

# Makes $system the root of this mount namespace, with the directories and files of this machine in $shared.
ENTER_SYSTEM = """
mount --rbind "$system" "$system"
for path in $shared; do
    if [ -d "$path" ]; then mkdir -p "$system$path"; else touch "$system$path"; fi
    mount --rbind "$path" "$system$path"
done
cd "$system"
pivot_root . .
umount --lazy .
cd /
"""
# /proc/self gives the shell's id in the caller's process namespace; the shell prints it for the caller.
FIRST_PROCESS = """
set -e
root=$1 name=$2
read -r pid rest </proc/self/stat
hostname "$name"
ip link set lo up
eval "$4"
mount --bind "$root/hosts/$name" /etc/hosts
mount --bind "$root/etc" /etc/slurm
mount -t tmpfs -o mode=1777 "$0:$root" /dev/shm
[ "$3" = head ] || mount -t proc proc /proc
echo "$pid"
exec >/dev/null
while :; do sleep infinity & wait $!; done
"""


class ClusterError(Exception):
    """The cluster did not come up, or an event in it did not happen in time."""


@dataclass(frozen=True)
class System:
    """What is installed on the machines of a cluster: the directory that is their /, and the Python of their users.

    They share directories with this machine as nodes share a file system. The mounts end with the namespace that they
    are made in.
    """

    root: Path
    python: str
    cgroup_plugin: str  # slurmd loads one even if it uses none; this one needs nothing on the machine

    @property
    def entering(self) -> str:
        """Shell commands that make its directory the root of the mount namespace that they run in."""
        if self.root == Path("/"):
            return ""
        shared = " ".join(str(path) for path in SHARED if path.exists())
        return f"system={shlex.quote(str(self.root))} shared={shlex.quote(shared)}\n{ENTER_SYSTEM}"

    def command(self, argv: Sequence[str], cwd: Path) -> list[str]:
        """Return arguments that run a command in this system, with the network and processes of this machine."""
        script = f"set -e\n{self.entering}\n{IN_DIRECTORY}"
        return ["unshare", "--mount", "sh", "-c", script, "sh", str(cwd), *argv]


# The settings of pip are in the home directory, the certificates and names that it needs in /etc.
SHARED = (
    *map(Path, ("/dev", "/proc", "/sys", "/etc/ssl", "/etc/hosts", "/etc/resolv.conf")),
    Path.home(),
    Path(tempfile.gettempdir()),
    Path(__file__).parents[2],
)
HERE = System(Path("/"), sys.executable, "cgroup/v1")


@dataclass(frozen=True)
class Machine:
    """A host of the cluster, identified by its first process."""

    name: str
    pid: int
    started: int  # the process's start time, because a process id may be reused

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def kill(self) -> None:
        """End all its processes at once, as a power loss does; return when they have ended."""
        if self.alive:
            kill(self.pid)


def first_machine(root: Path, name: str, system: System) -> Machine:
    """Start the machine that contains all others: when it ends, the kernel ends every process of the cluster.

    It keeps the caller's /proc. Commands on it can then stay in the caller's process namespace, so that they receive
    signals.
    """
    return start_machine([*unshare("--net", "--uts", "--mount", "--pid")], root, name, "head", system)


def further_machine(root: Path, name: str, system: System, first: Machine) -> Machine:
    """Start a machine with its own process ids, shared memory and /proc inside ``first``'s process namespace."""
    inside = ["nsenter", "--target", str(first.pid), "--pid"]
    return start_machine([*inside, *unshare("--net", "--uts", "--mount", "--ipc", "--pid")], root, name, "node", system)


def unshare(*namespaces: str) -> list[str]:
    """Return arguments that make new namespaces without a child of the caller."""
    return ["setsid", "--fork", "unshare", *namespaces, "--fork", "--kill-child"]


def start_machine(prefix: Sequence[str], root: Path, name: str, kind: str, system: System) -> Machine:
    log = root / "log" / f"{name}.machine"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*prefix, "sh", "-c", FIRST_PROCESS, MARKER, str(root), name, kind, system.entering],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            env=daemon_environment(),
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as ready:
        answer = ready.readline().strip()
    process.wait()
    started = start_time(int(answer)) if answer else None
    if started is None:
        raise ClusterError(f"machine {name} did not start:\n{log.read_text()}")
    return Machine(name, int(answer), started)


def daemon_environment(**more: str) -> dict[str, str]:
    """Return an environment for daemons: only PATH from the caller, so that nothing changes their behaviour."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    return {"PATH": path, "LANG": "C.UTF-8", **more}


def start_time(pid: int) -> int | None:
    """Return the start time of a process in the kernel's ticks; None if it has ended, even as a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may contain any character.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill(pid: int, timeout_s: float = 20) -> None:
    """SIGKILL a process and return when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], timeout_s)[0]:
                raise ClusterError(f"process {pid} is still there {timeout_s:g} s after SIGKILL")
        finally:
            os.close(handle)


def clusters_of_processes() -> dict[int, str]:
    """Return the root directory of its cluster for every process in a cluster, users' commands included."""
    roots: dict[str, str | None] = {}
    found = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        with contextlib.suppress(OSError):
            mounts = os.readlink(f"/proc/{pid}/ns/mnt")
            if mounts not in roots:
                roots[mounts] = marked_mount(Path(f"/proc/{pid}/mountinfo").read_text())
            if root := roots[mounts]:
                found[pid] = root
    return found


def marked_mount(mountinfo: str) -> str | None:
    match = re.search(rf" {MARKER}:(\S+) ", mountinfo)
    return match[1] if match else None


def kill_cluster(root: Path) -> None:
    """Kill the processes of a cluster until none is left: one may fork while others are killed."""
    while pids := [pid for pid, its_root in clusters_of_processes().items() if its_root == str(root)]:
        if os.getpid() in pids:
            raise ClusterError("this is the cluster itself: leave its shell first")
        # The first machine's first process ends nearly all others with it, and is one of the oldest.
        for pid in sorted(pids, key=lambda pid: start_time(pid) or 0):
            kill(pid)


# After entering a machine's mounts, the working directory has to be entered again.
IN_DIRECTORY = 'cd "$1" && shift && exec "$@"'


def on_head(machine: Machine, argv: Sequence[str], cwd: Path) -> list[str]:
    """Return arguments that run a command on the first machine; the process started with them becomes the command."""
    return enter(machine, ("--net", "--uts", "--mount"), argv, cwd)


def on_node(machine: Machine, argv: Sequence[str], cwd: Path) -> list[str]:
    """Return arguments that run a command on a further machine, as a child with an id in the machine's namespace."""
    return enter(machine, ("--net", "--uts", "--mount", "--ipc", "--pid"), argv, cwd)


def enter(machine: Machine, namespaces: Sequence[str], argv: Sequence[str], cwd: Path) -> list[str]:
    prefix = ["nsenter", "--target", str(machine.pid), *namespaces]
    return [*prefix, "sh", "-c", IN_DIRECTORY, "sh", str(cwd), *argv]


def call(argv: Sequence[str], stdin: str = "") -> str:
    """Run a tool to its end and return its output. Raises ClusterError with the output if it fails."""
    result = subprocess.run(argv, input=stdin, capture_output=True, text=True, env=daemon_environment(), check=False)
    if result.returncode:
        raise ClusterError(f"{' '.join(argv)} failed ({result.returncode}):\n{stdin}{result.stdout}{result.stderr}")
    return result.stdout


def ip(machine: Machine, *commands: str) -> None:
    """Run ``ip`` commands in a machine's network, all in one process."""
    call(["nsenter", "--target", str(machine.pid), "--net", "ip", "-batch", "-"], "\n".join(commands) + "\n")


def why_not() -> str | None:
    """Return why this machine cannot make namespaces; None if it can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and devices"
    try:
        call([*unshare("--net", "--uts", "--mount", "--ipc", "--pid")[2:], "mount", "-t", "proc", "proc", "/proc"])
    except (ClusterError, FileNotFoundError) as error:
        return f"needs namespaces and mounts (in a container: --privileged): {error}"
    return None


def missing(tools: Iterable[str]) -> list[str]:
    return [tool for tool in tools if shutil.which(tool, path=daemon_environment()["PATH"]) is None]
