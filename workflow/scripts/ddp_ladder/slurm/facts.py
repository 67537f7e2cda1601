"""The resources that Slurm offers, as data: partitions, nodes, reservations and, with accounting, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NO_ACCOUNTING = "this Slurm has no accounting"


@dataclass(frozen=True)
class Partition:
    """A queue. Amounts are None if nothing limits them, names are None if all are allowed."""

    name: str
    state: str = "UP"
    default: bool = False
    qos: str | None = None
    max_nodes: int | None = None
    max_time_min: int | None = None
    max_cpus_per_node: int | None = None
    max_memory_per_node_mb: int | None = None
    allow_accounts: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] | None = None
    root_only: bool = False


@dataclass(frozen=True)
class ComputeNode:
    """One node. gpus: count by type; "" is the type of GPUs without one."""

    name: str
    state: tuple[str, ...] = ("IDLE",)
    cpus: int = 1
    memory_mb: int = 1
    gpus: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    architecture: str = ""

    @property
    def can_start_jobs(self) -> bool:
        """True if jobs start here once the node is free."""
        refuses = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "MAINTENANCE", "NOT_RESPONDING", "UNKNOWN", "FUTURE"}
        return not refuses.intersection(self.state)

    def gpus_of(self, kind: str | None) -> int:
        """Return the number of GPUs of a type; of any type for None."""
        return sum(self.gpus.values()) if kind is None else self.gpus.get(kind, 0)


@dataclass(frozen=True)
class Reservation:
    """Reserved nodes. users and accounts: empty for everyone."""

    name: str
    active: bool
    start: str  # local time, as Slurm writes it
    nodes: tuple[str, ...]
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Limits of a QOS or an association. TRES are counts by name (node, cpu, gres/gpu, ...), mem in MB."""

    max_wall_min: int | None = None
    per_job: Mapping[str, int] = field(default_factory=dict)
    per_group: Mapping[str, int] = field(default_factory=dict)
    per_user: Mapping[str, int] = field(default_factory=dict)
    per_account: Mapping[str, int] = field(default_factory=dict)
    minutes_per_job: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Association:
    """Limits of a user in an account; of the account itself if user is empty."""

    account: str
    user: str = ""
    partition: str = ""  # empty: all of them
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    parent: str = ""  # account above this one
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Accounting:
    """The user's data in slurmdbd. enforced: words of AccountingStorageEnforce."""

    enforced: frozenset[str]
    default_account: str | None
    associations: tuple[Association, ...]  # the user's
    accounts: Mapping[str, Association]  # of the accounts themselves, as far as they may be seen
    qos: Mapping[str, Limits]


@dataclass(frozen=True)
class Offer:
    """Everything that a Slurm offers. accounting: the reason in words if there is none."""

    partitions: Mapping[str, Partition]
    nodes: tuple[ComputeNode, ...]
    reservations: Mapping[str, Reservation]
    accounting: Accounting | str = NO_ACCOUNTING
    version: str = ""
    all_partitions_must_fit: bool = False  # EnforcePartLimits=ALL
    user: str = ""
    groups: frozenset[str] = frozenset()
