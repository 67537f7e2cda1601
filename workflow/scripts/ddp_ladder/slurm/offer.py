"""Query of the resources that this machine's Slurm offers, and the parsing of its answers into ``facts``."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import TypeVar

from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.slurm.facts import (
    NO_ACCOUNTING,
    Accounting,
    Association,
    ComputeNode,
    Limits,
    Offer,
    Partition,
    Reservation,
)
from ddp_ladder.slurm.notation import (
    allowed,
    amount,
    gpus,
    host_names,
    minutes,
    names_in,
    parse_config,
    records,
    rows,
    tres,
)
from ddp_ladder.slurm.query import SlurmError, Unreadable, run_command

LIMIT_FIELDS = "maxwall,maxtresperjob,grptres,maxtresminsperjob"
ASSOCIATION_FIELDS = f"account,user,partition,defaultqos,qos,parentname,{LIMIT_FIELDS}"
QOS_FIELDS = f"name,maxtresperuser,maxtresperaccount,{LIMIT_FIELDS}"

Run = Callable[[Sequence[str]], str]  # a command's output; raises SlurmError
Read = TypeVar("Read", bound=Sized)


# Asking


def read_offer(run: Run = run_command) -> Offer:
    """Ask this machine's Slurm for its resources. Raises UserError if it does not answer."""
    show = ["scontrol", "--oneliner", "--all", "show"]
    try:
        config = _readable(run, ["scontrol", "show", "config"], parse_config)
        partitions = _readable(run, [*show, "partition"], parse_partitions)
        nodes = _readable(run, [*show, "node"], parse_nodes)
        reservations = parse_reservations(run([*show, "reservation"]))  # there may be none
    except Unreadable as error:
        what = "what it offers cannot be read, so nothing can be submitted"
        raise UserError(
            Problem("Slurm", what, str(error), next="have your site print its news to standard error")
        ) from error
    except SlurmError as error:
        raise UserError(
            Problem(
                "Slurm",
                "the controller does not answer, so nothing can be submitted",
                found=str(error).splitlines()[-1] if str(error) else "a failure without a message",
                next="try `sinfo` on this machine: it has to work here; on most sites, that is a login node",
            )
        ) from error
    user = pwd.getpwuid(os.getuid()).pw_name  # LOGNAME and USER may be anybody's
    return Offer(
        partitions=partitions,
        nodes=nodes,
        reservations=reservations,
        accounting=_read_accounting(config, user, run),
        version=config.get("SLURM_VERSION", ""),
        all_partitions_must_fit=config.get("EnforcePartLimits") == "ALL",
        user=user,
        groups=_groups(),
    )


def _readable(run: Run, argv: Sequence[str], parse: Callable[[str], Read]) -> Read:
    """Return the parsed answer. Raises Unreadable if the output has none, only messages of the site."""
    printed = run(argv)
    try:
        if found := parse(printed):
            return found
    except (KeyError, ValueError):
        pass
    raise Unreadable(" ".join(argv), printed)


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
        defaults = run([*show, "user", user, "format=defaultaccount"]).splitlines()
        default = next((association.account for association in own if association.account in defaults), None)
    except ValueError as error:
        return f"the answer of the accounting cannot be read ({error})"
    except SlurmError as error:
        return f"the accounting does not answer ({str(error).splitlines()[-1] if str(error) else 'no message'})"
    enforced = frozenset(config.get("AccountingStorageEnforce", "").lower().split(","))
    by_name = {association.account: association for association in accounts}
    return Accounting(enforced, default, own, by_name, qos)


# Parsing


def parse_partitions(text: str) -> dict[str, Partition]:
    """Parse ``scontrol --oneliner show partition``; by name."""
    return {values["PartitionName"]: _partition(values) for values in records(text, "PartitionName")}


def parse_nodes(text: str) -> tuple[ComputeNode, ...]:
    """Parse ``scontrol --oneliner show node``."""
    return tuple(_node(values) for values in records(text, "NodeName"))


def parse_reservations(text: str) -> dict[str, Reservation]:
    """Parse ``scontrol --oneliner show reservation``; by name."""
    return {values["ReservationName"]: _reservation(values) for values in records(text, "ReservationName")}


def parse_associations(text: str) -> tuple[Association, ...]:
    """Parse ``sacctmgr -nP show assoc`` with ASSOCIATION_FIELDS."""
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
        for row in rows(text, ASSOCIATION_FIELDS)
    )


def parse_qos(text: str) -> dict[str, Limits]:
    """Parse ``sacctmgr -nP show qos`` with QOS_FIELDS; by name."""
    return {row["name"]: _limits(row) for row in rows(text, QOS_FIELDS)}


def _partition(values: Mapping[str, str]) -> Partition:
    get = values.get
    return Partition(
        name=values["PartitionName"],
        state=get("State", "UP"),
        default=get("Default") == "YES",
        qos=None if get("QoS", "N/A") in ("N/A", "(null)", "") else get("QoS"),
        max_nodes=amount(get("MaxNodes")),
        max_time_min=minutes(get("MaxTime", "")),
        max_cpus_per_node=amount(get("MaxCPUsPerNode")),
        max_memory_per_node_mb=amount(get("MaxMemPerNode")),
        allow_accounts=allowed(get("AllowAccounts")),
        deny_accounts=names_in(get("DenyAccounts")),
        allow_qos=allowed(get("AllowQos")),
        deny_qos=names_in(get("DenyQos")),
        allow_groups=allowed(get("AllowGroups")),
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
        memory_mb=int(values["RealMemory"]) - (amount(values.get("MemSpecLimit")) or 0),
        gpus=gpus(values.get("Gres", "")),
        features=names_in(values.get("AvailableFeatures")),
        partitions=names_in(values.get("Partitions")),
        architecture=values.get("Arch", ""),
    )


def _reservation(values: Mapping[str, str]) -> Reservation:
    return Reservation(
        name=values["ReservationName"],
        active=values.get("State") == "ACTIVE",
        start=values.get("StartTime", ""),
        nodes=tuple(host_names(values.get("Nodes", ""))),
        users=names_in(values.get("Users")),
        accounts=names_in(values.get("Accounts")),
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
