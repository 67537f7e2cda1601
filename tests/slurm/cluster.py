#!/usr/bin/env python3
"""A real Slurm on one machine: a controller and several nodes, each with its own network, host name and GPUs.

    cluster.py shell --nodes 6 --gpus 2 --accounting     a shell on the login node of a new cluster, which ends with it

Needs root and Debian's or Ubuntu's slurmctld, slurmd, slurm-client and munge; for accounting also
slurmdbd and mariadb-server. It uses and changes no service of the system, and nothing listens on the system's networks:
a cluster consists of namespaces, one process tree and one directory.

As a library, `Cluster.up(Spec(nodes=2))` returns a cluster, and `cluster.run(["sinfo"])` runs a command on its login
node. For `subprocess`, use `cluster.command(["sinfo"])`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cluster_config
import machines
from cluster_config import ACCOUNT, CLUSTER, HEAD, Spec
from machines import HERE, MARKER, ClusterError, Machine
from newer_debian import newer_debian

SLURM_TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "munged", "ip", "nsenter", "unshare")
ACCOUNTING_TOOLS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
PACKAGES = "slurmctld slurmd slurm-client munge iproute2"
ACCOUNTING_PACKAGES = "slurmdbd mariadb-server"
OWNER = "owner"  # process id and start time of who brought it up: a cluster without its owner is an orphan
DIRECTORIES = ("log", "run", "state", "spool", "munge", "devices", "hosts", "etc", "exits")

JOB_IS_OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()
)


@dataclass
class Cluster:
    """A running cluster: a login node, where commands run by default, and compute nodes."""

    root: Path
    spec: Spec
    addresses: dict[str, str]  # of the nodes and of the login node
    head: Machine | None = None
    members: dict[str, Machine] = field(default_factory=dict)

    # Start and end

    @staticmethod
    def up(spec: Spec) -> Cluster:
        """Bring a cluster up in a new temporary directory; return when every node is idle.

        It becomes an orphan, which others clean up, as soon as the calling process has ended.
        """
        if reason := why_not(spec.accounting):
            raise ClusterError(reason)
        cluster = Cluster(Path(tempfile.mkdtemp(prefix=f"{MARKER}-")), spec, addresses(spec))
        try:
            cluster.write_files()
            cluster.start()
        except BaseException:
            cluster.down()
            raise
        return cluster

    def down(self) -> None:
        """End all processes of the cluster, which removes its networks and mounts, and delete its directory."""
        take_down(self.root)

    def write_files(self) -> None:
        (self.root / OWNER).write_text(f"{os.getpid()} {machines.start_time(os.getpid())}")
        for name in DIRECTORIES:
            (self.root / name).mkdir()
        for name in (HEAD, *self.nodes):
            (self.root / "hosts" / name).write_text(cluster_config.hosts(self.addresses))
        for number in range(self.spec.gpus):
            # A null device, which Slurm can count and allocate like a GPU.
            os.mknod(self.root / "devices" / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        etc = self.root / "etc"
        (etc / "slurm.conf").write_text(cluster_config.slurm_conf(self.spec, self.root, self.addresses))
        (etc / "gres.conf").write_text(cluster_config.gres_conf(self.spec, self.root))
        (etc / "cgroup.conf").write_text(f"CgroupPlugin={self.spec.system.cgroup_plugin}\n")
        write_secret(etc / "slurmdbd.conf", cluster_config.slurmdbd_conf(self.root).encode())
        write_secret(self.root / "munge" / "key", os.urandom(128))

    def start(self) -> None:
        self.start_login_node()
        self.start_munge()
        if self.spec.accounting:
            self.start_database()
            self.start_accounting()
            self.add_accounts()
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self.await_idle()

    def start_login_node(self) -> None:
        """Start the machine that all nodes are connected to, without Slurm."""
        self.head = machines.first_machine(self.root, HEAD, self.spec.system)
        machines.ip(
            self.head,
            "link add fabric type bridge",
            f"address add {self.addresses[HEAD]}/24 dev fabric",
            "link set fabric up",
        )

    # Daemons

    def start_munge(self) -> None:
        directory = self.root / "munge"
        files = [f"--{kind}-file={directory}/{kind}" for kind in ("key", "pid", "log", "seed")]
        # --force, because munged requires a socket that other users can access, and this cluster is only root's.
        self.daemon("munged", ["munged", "--foreground", "--force", f"--socket={directory}/socket", *files])
        self.await_true(
            lambda: self.answers(["munge", "--no-input", f"--socket={directory}/socket"]), "munged", "munged"
        )

    def start_database(self) -> None:
        # In the login node's own memory: on a busy disk, making the database and its tables takes three times as long.
        data, socket = "/dev/shm/database", self.database_socket
        sizes = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M"]
        # In /tmp, two databases with one process id in their namespaces would have temporary tables of the same name.
        common = ["--no-defaults", f"--datadir={data}", f"--tmpdir={self.root}/run", "--user=root", *sizes]
        install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
        machines.call(machines.on_head(self.machine(), install, Path("/")))
        lazy = ["--innodb-flush-log-at-trx-commit=0", "--skip-networking", f"--socket={socket}"]
        self.daemon("mariadbd", ["mariadbd", *common, *lazy, f"--pid-file={self.root}/run/mariadbd.pid"])
        # Debian 13's libmariadb fails after slurmdbd has found no database and made it.
        make = [
            "mariadb",
            "--no-defaults",
            "--user=root",
            f"--socket={socket}",
            "--execute=create database if not exists slurm",
        ]
        self.await_true(lambda: self.answers(make), "mariadbd", "the database")

    def start_accounting(self) -> None:
        """Start slurmdbd, for the first time or after `kill_daemon`."""
        self.daemon("slurmdbd", ["slurmdbd", "-D"], MYSQL_UNIX_PORT=str(self.database_socket))
        self.await_true(lambda: self.answers(["sacctmgr", "-n", "list", "cluster"]), "slurmdbd", "slurmdbd")

    def add_accounts(self) -> None:
        for line in (
            f"add cluster {CLUSTER}",
            f"add account {ACCOUNT} Description=tests Organization=tests",
            f"modify account {ACCOUNT} set QOS=normal DefaultQOS=normal",
            f"add user root Account={ACCOUNT}",
            f"modify user root set DefaultAccount={ACCOUNT}",
        ):
            self.run(["sacctmgr", "-i", *line.split()])

    def start_controller(self) -> None:
        """Start slurmctld, for the first time or after `kill_daemon`."""
        self.daemon("slurmctld", ["slurmctld", "-D"])
        self.await_true(lambda: self.answers(["scontrol", "ping"]), "slurmctld", "slurmctld")

    def start_node(self, name: str) -> None:
        """Switch a node on, for the first time or again; `await_idle` waits until it can be used."""
        self.start_machine(name)
        self.daemon(f"slurmd.{name}", ["slurmd", "-D", "-N", name], node=name)

    def start_machine(self, name: str) -> None:
        """Start a node without Slurm: its host name and its network."""
        assert self.head is not None
        interface = self.spec.interface(name)
        node = machines.further_machine(self.root, name, self.spec.system, self.head)
        self.members[name] = node
        machines.ip(
            self.head,
            f"link add {name} type veth peer name {interface} netns {node.pid}",
            f"link set {name} master fabric up",
        )
        machines.ip(node, f"address add {self.addresses[name]}/24 dev {interface}", f"link set {interface} up")

    def kill_node(self, name: str) -> None:
        """Switch a node off without warning."""
        assert self.head is not None
        self.members[name].kill()
        # The kernel removes its network some time later, even while we do, but a new one may be needed before.
        try:
            machines.ip(self.head, f"link delete {name}")
        except ClusterError:
            if f"{name}:" in Path(f"/proc/{self.head.pid}/net/dev").read_text():
                raise

    def set_link(self, name: str, *, up: bool) -> None:
        """Connect or disconnect a node's network link."""
        assert self.head is not None
        machines.ip(self.head, f"link set {name} {'up' if up else 'down'}")

    def daemon(self, name: str, argv: Sequence[str], node: str | None = None, **environment: str) -> None:
        """Start a daemon in the cluster's process tree; its output goes to log/, its exit code to exits/."""
        log, ended = self.root / "log" / name, self.root / "exits" / name
        ended.unlink(missing_ok=True)
        script = 'log=$1 ended=$2; shift 2; exec >>"$log" 2>&1 </dev/null; "$@"; echo $? >"$ended"'
        wrapped = ["setsid", "--fork", "sh", "-c", script, name, str(log), str(ended), *argv]
        machine = self.machine(node)
        subprocess.run(
            # On the head too, it enters the process namespace, so that it ends with the cluster.
            machines.enter(machine, ("--net", "--uts", "--mount", "--ipc", "--pid"), wrapped, Path("/")),
            env=machines.daemon_environment(SLURM_CONF=str(self.slurm_conf), **environment),
            stdin=subprocess.DEVNULL,
            check=True,
        )

    def kill_daemon(self, name: str) -> None:
        """Kill slurmctld or slurmdbd, to simulate a crash."""
        for pid, root in machines.clusters_of_processes().items():
            if root == str(self.root) and machines.name_of(pid) == name:
                machines.kill(pid)
        self.await_true((self.root / "exits" / name).exists, name, f"{name} to end")

    # Use

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.spec.names

    @property
    def python(self) -> str:
        """The Python of users' commands on its machines."""
        return self.spec.system.python

    @property
    def database_socket(self) -> Path:
        return self.root / "run" / "database"

    @property
    def slurm_conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    def machine(self, node: str | None = None) -> Machine:
        machine = self.members.get(node) if node else self.head
        if machine is None:
            raise ClusterError(f"{node or HEAD} is not up")
        return machine

    def command(self, argv: Sequence[str], *, node: str | None = None, cwd: Path | None = None) -> list[str]:
        """Return arguments that run a command on the login node, or on ``node``.

        On the login node, the process started with them becomes the command, with the same id and signals.
        """
        enter = machines.on_node if node else machines.on_head
        return enter(self.machine(node), argv, (cwd or Path.cwd()).absolute())

    def environment(self, **more: str) -> dict[str, str]:
        """Return the caller's environment with SLURM_CONF, without the variables of a job that the caller is in."""
        set_by_imports = ("PYTORCH_NVML_BASED_CUDA_CHECK", "KMP_")  # of Lightning and of scikit-learn
        left_out = ("SLURM", "SBATCH", "SALLOC", *set_by_imports)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        return {**kept, "SLURM_CONF": str(self.slurm_conf), **more}

    def run(
        self,
        argv: Sequence[str],
        *,
        node: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with ``env`` over `environment`; ``check`` raises ClusterError if it fails."""
        result = subprocess.run(
            self.command(argv, node=node, cwd=cwd),
            env=self.environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and result.returncode:
            output = result.stdout + result.stderr
            raise ClusterError(f"{' '.join(argv)} failed ({result.returncode}):\n{output}")
        return result

    def answers(self, argv: Sequence[str]) -> bool:
        return self.run(argv, cwd=Path("/"), check=False).returncode == 0

    def sbatch(self, script: str, *options: str, cwd: Path | None = None) -> int:
        """Submit a shell script; return its job id."""
        where = ["--output", f"{self.root}/log/job.%j"] if cwd is None else []
        argv = ["sbatch", "--parsable", *where, *options, "--wrap", script]
        return int(self.run(argv, cwd=cwd or Path("/")).stdout.split(";")[0])

    def state(self, job: int) -> str:
        """Return a job's state as squeue reports it, in long form; empty once the controller has forgotten the job."""
        result = self.run(["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"], check=False)
        return result.stdout.strip()

    def await_state(self, job: int, *states: str, timeout_s: float = 60) -> str:
        """Wait for a job to be in one of ``states``, or to end if none is named; return its state."""
        wanted = frozenset(states) or JOB_IS_OVER
        self.await_true(
            lambda: self.state(job) in wanted, "slurmctld", f"job {job} to be {' or '.join(sorted(wanted))}", timeout_s
        )
        return self.state(job)

    def await_accounted(self, job: int, *states: str, timeout_s: float = 60) -> dict[str, str]:
        """Wait for the accounting to have a job in one of ``states``, or ended; return its fields by sacct's names."""
        wanted = frozenset(states) or JOB_IS_OVER
        found: dict[str, str] = {}

        def known() -> bool:
            found.update(self.sacct(job))
            # slurmctld reports the end of a short job first, and the rest up to five seconds later.
            return found.get("State", "").partition(" ")[0] in wanted and bool(found["Partition"])

        self.await_true(known, "slurmdbd", f"sacct to report job {job} as {' or '.join(sorted(wanted))}", timeout_s)
        return found

    def sacct(self, job: int) -> dict[str, str]:
        fields = ("JobID", "State", "ExitCode", "Account", "QOS", "Partition", "AllocTRES", "ReqTRES", "NodeList")
        argv = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", f"--format={','.join(fields)}"]
        lines = self.run(argv).stdout.splitlines()
        return dict(zip(fields, lines[0].split("|"), strict=True)) if lines else {}

    def await_idle(self, *nodes: str, timeout_s: float = 60) -> None:
        """Wait for nodes (by default all) to be idle and responding."""
        wanted = set(nodes or self.nodes)

        def idle() -> bool:
            lines = self.run(["sinfo", "--Node", "--noheader", "--format=%N %T"], check=False).stdout.splitlines()
            return wanted <= {line.split()[0] for line in lines if line.split()[1] == "idle"}

        daemon = f"slurmd.{nodes[0] if nodes else self.nodes[0]}"
        self.await_true(idle, daemon, f"{', '.join(sorted(wanted))} to be idle", timeout_s)

    def await_true(
        self, condition: Callable[[], bool], daemon: str, what: str, timeout_s: float = 60, interval_s: float = 0.1
    ) -> None:
        """Wait until ``condition()`` is true. If it times out or ``daemon`` ends, raise ClusterError with its log."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.root / "exits" / daemon
            late = time.monotonic() > deadline
            if late or ended.exists():
                why = f"waited {timeout_s:g} s" if late else f"{daemon} ended with {ended.read_text().strip()}"
                log = (self.root / "log" / daemon).read_text(errors="replace").splitlines()[-30:]
                raise ClusterError(f"{what}: {why}; the end of {daemon}'s log:\n" + "\n".join(log))
            time.sleep(interval_s)


def why_not(accounting: bool) -> str | None:
    """Return why a cluster cannot run on this machine, and what to do; None if it can."""
    tools = [*SLURM_TOOLS, *(ACCOUNTING_TOOLS if accounting else ())]
    packages = f"{PACKAGES} {ACCOUNTING_PACKAGES}" if accounting else PACKAGES
    if missing := machines.missing(tools):
        return f"{', '.join(missing)} not found: apt-get install --no-install-recommends {packages}"
    if reason := machines.why_not():
        return f"a Slurm cluster for tests {reason}"
    return None


def addresses(spec: Spec) -> dict[str, str]:
    """Return addresses in a private network; it is random, so that an address outside the cluster shows a leak."""
    network = f"10.{random.randint(64, 254)}.{random.randint(0, 255)}"
    return {
        HEAD: f"{network}.254",
        **{name: f"{network}.{number}" for number, name in enumerate(spec.names, spec.first)},
    }


def write_secret(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def take_down(root: Path) -> None:
    """Take down a cluster, or what is left of it."""
    machines.kill_cluster(root)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(root)


def roots() -> list[Path]:
    """Return the directories of this machine's clusters: running ones, and those with only a directory left."""
    running = {Path(root) for root in machines.clusters_of_processes().values()}
    left = Path(tempfile.gettempdir()).glob(f"{MARKER}-*")
    # Other users may write to the directory for temporary files, too.
    ours = {path for path in left if not path.is_symlink() and path.stat().st_uid == os.geteuid()}
    return sorted(running | ours)


def clean_orphans() -> list[Path]:
    """Take down clusters whose owners have ended, and clusters without a directory; return their directories."""
    orphans = [root for root in roots() if is_orphan(root)]
    for root in orphans:
        take_down(root)
    return orphans


def is_orphan(root: Path) -> bool:
    try:
        pid, started = map(int, (root / OWNER).read_text().split())
    except FileNotFoundError:
        return not root.exists()  # else it is being made
    return machines.start_time(pid) != started


def main(argv: Sequence[str] | None = None) -> int:
    """Open a shell on the login node of a new cluster."""
    shape = Spec()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["shell"])
    parser.add_argument("--nodes", type=int, default=shape.nodes)
    for name in ("gpus", "cpus", "memory_mb"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=getattr(shape, name), help="of each node")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and an account")
    parser.add_argument("--newer", action="store_true", help="with the Slurm and Python of Debian 13")
    parser.add_argument("--conf", action="append", default=[], metavar="LINE", help="one more line of slurm.conf")
    options = vars(parser.parse_args(argv))
    options.pop("command")
    newer = options.pop("newer")
    clean_orphans()
    try:
        system = newer_debian() if newer else HERE
        cluster = Cluster.up(Spec(**{**options, "conf": tuple(options["conf"]), "system": system}))
    except (ClusterError, ValueError) as error:
        print(f"cluster.py: {error}", file=sys.stderr)
        return 1
    # Only the shell handles SIGINT. SIG_IGN would not work here: the shell would inherit it.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        print(f"On {HEAD} of a cluster with {', '.join(cluster.nodes)}; exit ends it.", file=sys.stderr)
        prompt = cluster.environment(PS1=f"{HEAD}:\\w# ")
        return subprocess.run(cluster.command(["bash", "--norc"]), env=prompt, check=False).returncode
    finally:
        cluster.down()


if __name__ == "__main__":
    sys.exit(main())
