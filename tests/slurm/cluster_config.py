"""The shape of a test cluster, and Slurm's configuration files for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from machines import HERE, System

HEAD = "login"
CLUSTER = "ladder"
ACCOUNT = "project"


@dataclass(frozen=True)
class Spec:
    """The shape of a cluster."""

    nodes: int = 2
    first: int = 1  # number of the first node, in its name and in its address
    gpus: int = 2
    cpus: int = 4
    memory_mb: int = 16000
    accounting: bool = False
    interfaces: tuple[str, ...] = ("ib0",)  # one name for all nodes, or one per node
    conf: tuple[str, ...] = ()  # more lines of slurm.conf, after ours
    system: System = HERE

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.first + self.nodes - 1 <= 200:
            raise ValueError(f"nodes: {self.nodes} from {self.first}; allowed: 1 to 200, what one /24 network holds")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(self.first, self.first + self.nodes))

    def interface(self, node: str) -> str:
        return self.interfaces[self.names.index(node) % len(self.interfaces)]


def slurm_conf(spec: Spec, root: Path, addresses: Mapping[str, str]) -> str:
    """Return slurm.conf with short intervals: events that take minutes by default take seconds here."""
    lines = [
        f"ClusterName={CLUSTER}",
        f"SlurmctldHost={HEAD}({addresses[HEAD]})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={root}/munge/socket",
        f"StateSaveLocation={root}/state",
        f"SlurmctldPidFile={root}/run/slurmctld.pid",
        f"SlurmdPidFile={root}/run/slurmd.%n.pid",
        f"SlurmdSpoolDir={root}/spool/%n",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1000",
        "GresTypes=gpu",
        "MpiDefault=none",
        # The nodes claim more CPUs and memory than the machine has.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        # A dead node is noticed after about 15 s; a node that answers late on a busy machine is not marked dead.
        "SlurmdTimeout=12",
        "MessageTimeout=5",
        "KillWait=5",
        "CompleteWait=0",
        # Tests query jobs that ended some time ago.
        "MinJobAge=3600",
        "SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2",
        *accounting_lines(spec, root),
        *node_lines(spec, addresses),
        f"PartitionName=gpu Nodes={','.join(spec.names)} Default=YES MaxTime=24:00:00 DefaultTime=10 State=UP",
        f"PartitionName=debug Nodes={','.join(spec.names[:2])} MaxTime=30 DefaultTime=5 State=UP",
        *spec.conf,
    ]
    return "\n".join(lines) + "\n"


def accounting_lines(spec: Spec, root: Path) -> list[str]:
    if not spec.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={HEAD}",
        # The name is misleading: for slurmdbd this is munge's socket.
        f"AccountingStoragePass={root}/munge/socket",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageEnforce=associations,limits,qos",
    ]


def node_lines(spec: Spec, addresses: Mapping[str, str]) -> list[str]:
    gres = f" Gres=gpu:{spec.gpus}" if spec.gpus else ""
    shape = f"CPUs={spec.cpus} Sockets=1 CoresPerSocket={spec.cpus} ThreadsPerCore=1 RealMemory={spec.memory_mb}{gres}"
    return [f"NodeName={name} NodeAddr={addresses[name]} {shape} State=UNKNOWN" for name in spec.names]


def gres_conf(spec: Spec, root: Path) -> str:
    if not spec.gpus:
        return "AutoDetect=off\n"
    devices = f"{root}/devices/gpu[0-{spec.gpus - 1}]" if spec.gpus > 1 else f"{root}/devices/gpu0"
    return f"AutoDetect=off\nName=gpu File={devices}\n"


def slurmdbd_conf(root: Path) -> str:
    lines = [
        f"DbdHost={HEAD}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={root}/munge/socket",
        f"PidFile={root}/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        "StorageLoc=slurm",
    ]
    return "\n".join(lines) + "\n"


def hosts(addresses: Mapping[str, str]) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    return "\n".join(lines) + "\n"
