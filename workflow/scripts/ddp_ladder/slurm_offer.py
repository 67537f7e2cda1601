"""What this Slurm offers its users: partitions, nodes, reservations and, where there is accounting, its limits."""

from __future__ import annotations

import getpass
import grp
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_ladder.messages import Problem, UserError

ANSWER_WITHIN_S = 60
LIMIT_FIELDS = "maxwall,maxtresperjob,grptres,maxtresminsperjob"
ASSOCIATION_FIELDS = f"account,user,partition,defaultqos,qos,parentname,{LIMIT_FIELDS}"
QOS_FIELDS = f"name,maxtresperuser,maxtresperaccount,{LIMIT_FIELDS}"
NO_ACCOUNTING = "this Slurm has no accounting"

Run = Callable[[Sequence[str]], str]  # a command's output; raises SlurmError


class SlurmError(Exception):
    """A command of Slurm failed; the text is its message."""


@dataclass(frozen=True)
class Partition:
    """A queue. Amounts are None where nothing limits them, names where all are allowed."""

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
    """One node. gpus: how many of each type, "" for those without one."""

    name: str
    state: tuple[str, ...] = ("IDLE",)
    cpus: int = 1
    memory_mb: int = 1
    gpus: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    @property
    def can_start_jobs(self) -> bool:
        """Whether jobs start here once it is free."""
        refuses = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "MAINTENANCE", "NOT_RESPONDING", "UNKNOWN", "FUTURE"}
        return not refuses.intersection(self.state)

    def gpus_of(self, kind: str | None) -> int:
        """GPUs of a type; of any type for None."""
        return sum(self.gpus.values()) if kind is None else self.gpus.get(kind, 0)


@dataclass(frozen=True)
class Reservation:
    """Nodes that are kept for somebody. users and accounts: empty for everyone."""

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
    """What a user may ask for in the name of an account; of the account itself where user is empty."""

    account: str
    user: str = ""
    partition: str = ""  # empty: all of them
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    parent: str = ""  # account above this one
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Accounting:
    """What slurmdbd knows of the user. enforced: words of AccountingStorageEnforce."""

    enforced: frozenset[str]
    default_account: str | None
    associations: tuple[Association, ...]  # the user's
    accounts: Mapping[str, Association]  # of the accounts themselves, as far as they may be seen
    qos: Mapping[str, Limits]


@dataclass(frozen=True)
class Offer:
    """All of it. accounting: the reason in words where there is none."""

    partitions: Mapping[str, Partition]
    nodes: tuple[ComputeNode, ...]
    reservations: Mapping[str, Reservation]
    accounting: Accounting | str = NO_ACCOUNTING
    version: str = ""
    all_partitions_must_fit: bool = False  # EnforcePartLimits=ALL
    user: str = ""
    groups: frozenset[str] = frozenset()


# Asking


def run_command(argv: Sequence[str]) -> str:
    """Output of a command. Raises SlurmError with its own message."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_WITHIN_S, check=False
        )
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{' '.join(argv)}: no answer within {ANSWER_WITHIN_S} s") from error
    if done.returncode:
        raise SlurmError((done.stderr or done.stdout).strip())
    return done.stdout


def read_offer(run: Run = run_command) -> Offer:
    """Ask this machine's Slurm. Raises UserError when it does not answer."""
    try:
        config = parse_config(run(["scontrol", "show", "config"]))
        show = ["scontrol", "--oneliner", "--all", "show"]
        partitions, nodes, reservations = (run([*show, what]) for what in ("partition", "node", "reservation"))
    except SlurmError as error:
        raise UserError(
            Problem(
                "Slurm",
                "the controller does not answer, so nothing can be submitted",
                found=str(error).splitlines()[-1] if str(error) else "a failure without a message",
                next="try `sinfo` on this machine: it has to work here; on most sites, that is a login node",
            )
        ) from error
    user = getpass.getuser()
    return Offer(
        partitions=parse_partitions(partitions),
        nodes=parse_nodes(nodes),
        reservations=parse_reservations(reservations),
        accounting=_read_accounting(config, user, run),
        version=config.get("SLURM_VERSION", ""),
        all_partitions_must_fit=config.get("EnforcePartLimits") == "ALL",
        user=user,
        groups=_groups(),
    )


def _groups() -> frozenset[str]:
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:  # a group without a name, which no partition can name either
            continue
    return frozenset(names)


def _read_accounting(config: Mapping[str, str], user: str, run: Run) -> Accounting | str:
    if not config.get("AccountingStorageType", "").endswith("slurmdbd"):
        return NO_ACCOUNTING
    show = ["sacctmgr", "--noheader", "--parsable2", "show"]
    # A name that several clusters share has associations in each of them.
    here = f"cluster={config.get('ClusterName', '')}"
    try:
        own = parse_associations(run([*show, "assoc", f"user={user}", here, f"format={ASSOCIATION_FIELDS}"]))
        names = ",".join(sorted({association.account for association in own}))
        above = [*show, "assoc", f"account={names}", "user=", here, f"format={ASSOCIATION_FIELDS}"]
        accounts = parse_associations(run(above)) if names else ()
        qos = parse_qos(run([*show, "qos", f"format={QOS_FIELDS}"]))
        default = run([*show, "user", user, "format=defaultaccount"]).strip()
    except SlurmError as error:
        return f"the accounting does not answer ({str(error).splitlines()[-1] if str(error) else 'no message'})"
    enforced = frozenset(config.get("AccountingStorageEnforce", "").lower().split(","))
    by_name = {association.account: association for association in accounts}
    return Accounting(enforced, default or None, own, by_name, qos)


# Reading what it said


def parse_config(text: str) -> dict[str, str]:
    """``scontrol show config``: one ``Name = value`` a line."""
    return dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))


def parse_partitions(text: str) -> dict[str, Partition]:
    """``scontrol --oneliner show partition``, by name."""
    return {values["PartitionName"]: _partition(values) for values in _records(text, "PartitionName")}


def parse_nodes(text: str) -> tuple[ComputeNode, ...]:
    """``scontrol --oneliner show node``."""
    return tuple(_node(values) for values in _records(text, "NodeName"))


def parse_reservations(text: str) -> dict[str, Reservation]:
    """``scontrol --oneliner show reservation``, by name."""
    return {values["ReservationName"]: _reservation(values) for values in _records(text, "ReservationName")}


def parse_associations(text: str) -> tuple[Association, ...]:
    """``sacctmgr -nP show assoc`` with ASSOCIATION_FIELDS."""
    return tuple(
        Association(
            account=row["account"].strip(),
            user=row["user"],
            partition=row["partition"],
            default_qos=row["defaultqos"],
            qos=tuple(name for name in row["qos"].split(",") if name),
            parent=row["parentname"],
            limits=_limits(row),
        )
        for row in _rows(text, ASSOCIATION_FIELDS)
    )


def parse_qos(text: str) -> dict[str, Limits]:
    """``sacctmgr -nP show qos`` with QOS_FIELDS, by name."""
    return {row["name"]: _limits(row) for row in _rows(text, QOS_FIELDS)}


def _records(text: str, first: str) -> Iterator[dict[str, str]]:
    """``Key=value Key=value ...``, a record a line; values may hold spaces (OS, Reason)."""
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            yield dict(re.findall(r"(\w[\w:/]*)=(.*?)(?=\s+\w[\w:/]*=|\s*$)", line))


def _rows(text: str, fields: str) -> Iterator[dict[str, str]]:
    names = fields.split(",")
    for line in text.splitlines():
        if line:
            yield dict(zip(names, line.split("|"), strict=True))


def _partition(values: Mapping[str, str]) -> Partition:
    get = values.get
    return Partition(
        name=values["PartitionName"],
        state=get("State", "UP"),
        default=get("Default") == "YES",
        qos=None if get("QoS", "N/A") in ("N/A", "(null)", "") else get("QoS"),
        max_nodes=_amount(get("MaxNodes")),
        max_time_min=minutes(get("MaxTime", "")),
        max_cpus_per_node=_amount(get("MaxCPUsPerNode")),
        max_memory_per_node_mb=_amount(get("MaxMemPerNode")),
        allow_accounts=_allowed(get("AllowAccounts")),
        deny_accounts=_names(get("DenyAccounts")),
        allow_qos=_allowed(get("AllowQos")),
        deny_qos=_names(get("DenyQos")),
        allow_groups=_allowed(get("AllowGroups")),
        root_only=get("RootOnly") == "YES",
    )


def _node(values: Mapping[str, str]) -> ComputeNode:
    state = values.get("State", "UNKNOWN")
    words = tuple(re.sub(r"[*~#!%$@^-]+$", "", word) for word in state.split("+"))
    return ComputeNode(
        name=values["NodeName"],
        state=words + (("NOT_RESPONDING",) if "*" in state else ()),
        # CPUTot less the cores that the system keeps to itself.
        cpus=int(values.get("CPUEfctv") or values["CPUTot"]),
        memory_mb=int(values["RealMemory"]) - (_amount(values.get("MemSpecLimit")) or 0),
        gpus=gpus(values.get("Gres", "")),
        features=_names(values.get("AvailableFeatures")),
        partitions=_names(values.get("Partitions")),
    )


def _reservation(values: Mapping[str, str]) -> Reservation:
    return Reservation(
        name=values["ReservationName"],
        active=values.get("State") == "ACTIVE",
        start=values.get("StartTime", ""),
        nodes=tuple(host_names(values.get("Nodes", ""))),
        users=_names(values.get("Users")),
        accounts=_names(values.get("Accounts")),
    )


def _limits(row: Mapping[str, str]) -> Limits:
    return Limits(
        max_wall_min=minutes(row["maxwall"]),
        per_job=tres(row["maxtresperjob"]),
        per_group=tres(row["grptres"]),
        per_user=tres(row.get("maxtresperuser", "")),
        per_account=tres(row.get("maxtresperaccount", "")),
        minutes_per_job=tres(row["maxtresminsperjob"]),
    )


def gpus(gres: str) -> dict[str, int]:
    """GPUs by type in a node's Gres: ``gpu:a100:4(S:0-1),gpu:2,nvme:1``."""
    found: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.split(":")
        if name == "gpu" and rest:
            *kind, count = rest
            found[":".join(kind)] = found.get(":".join(kind), 0) + int(count)
    return found


def tres(text: str) -> dict[str, int]:
    """``cpu=8,mem=64G,gres/gpu:a100=4`` as counts; mem in MB."""
    pairs = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name: _memory_mb(value) if name == "mem" else int(float(value)) for name, value in pairs}


def _memory_mb(text: str) -> int:
    number, unit = text.rstrip("KMGTP"), text[len(text.rstrip("KMGTP")) :] or "M"
    return int(float(number) * 1024.0 ** ("KMGTP".index(unit) - 1))


def minutes(text: str) -> int | None:
    """``[days-]hours:minutes:seconds`` in whole minutes; None for no limit."""
    form = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?", text)
    if form is None:
        return None
    days, hours, mins = (int(part or 0) for part in form.groups()[:3])
    return (days * 24 + hours) * 60 + mins


def host_names(text: str) -> Iterator[str]:
    """Names in Slurm's short form: ``node[01-03,7],login``."""
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text):
        if part != "(null)":
            yield from _expanded(part)


def _expanded(part: str) -> Iterator[str]:
    form = re.search(r"\[([^\]]*)\]", part)
    if form is None:
        yield part
        return
    head, tail = part[: form.start()], part[form.end() :]
    for item in form[1].split(","):
        low, _, high = item.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            yield from (f"{head}{item}{rest}" for rest in _expanded(tail))
            continue
        for number in range(int(low), int(high or low) + 1):
            yield from (f"{head}{number:0{len(low)}d}{rest}" for rest in _expanded(tail))


def _amount(text: str | None) -> int | None:
    """A number; None where there is no limit."""
    return int(text) if text and text.isdecimal() else None


def _names(text: str | None) -> tuple[str, ...]:
    return () if text in (None, "", "(null)") else tuple(str(text).split(","))


def _allowed(text: str | None) -> tuple[str, ...] | None:
    return None if text in (None, "", "ALL", "(null)") else _names(text)
