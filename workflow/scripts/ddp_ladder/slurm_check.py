"""Whether Slurm would take and start the jobs of a plan, before any is submitted. Pure: a plan against an offer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_ladder.messages import Problem, did_you_mean
from ddp_ladder.plan import ScaleJob
from ddp_ladder.settings import Settings
from ddp_ladder.slurm_offer import Accounting, Association, ComputeNode, Limits, Offer, Partition, host_names

MOST_NAMES = 12  # of a list in a message

NOT_ENFORCED = "this Slurm does not enforce them"
_SCALES = "leave out the scale, or choose a partition that takes it: `sinfo --summarize` lists them"


@dataclass(frozen=True)
class Verdict:
    """wrong: jobs that Slurm would refuse or never start. waits: jobs that start only after something has changed."""

    wrong: tuple[Problem, ...]
    waits: tuple[Problem, ...]
    not_checked: tuple[str, ...]


@dataclass(frozen=True)
class _Complaint:
    """A mistake of one job; those of several jobs that differ in ``found`` alone are one problem."""

    where: str
    what: str
    found: str
    allowed: str
    next: str
    waits: bool = False

    def problem(self) -> Problem:
        return Problem(self.where, self.what, self.found, self.allowed, self.next)


def check_jobs(jobs: Sequence[ScaleJob], settings: Settings, offer: Offer) -> Verdict:
    """Every distinct mistake of the jobs, once."""
    complaints = [complaint for job in jobs for complaint in _JobCheck(job, settings, offer).complaints()]
    merged = _merged(complaints)
    return Verdict(
        wrong=tuple(complaint.problem() for complaint in merged if not complaint.waits),
        waits=tuple(complaint.problem() for complaint in merged if complaint.waits),
        not_checked=tuple(_not_checked(offer)),
    )


def _merged(complaints: Iterable[_Complaint]) -> list[_Complaint]:
    by_mistake: dict[_Complaint, list[str]] = {}
    for complaint in complaints:
        found = by_mistake.setdefault(replace(complaint, found=""), [])
        if complaint.found not in found:
            found.append(complaint.found)
    return [replace(mistake, found="; ".join(found)) for mistake, found in by_mistake.items()]


def _not_checked(offer: Offer) -> Iterator[str]:
    if isinstance(offer.accounting, str):
        yield f"account, QOS and their limits: {offer.accounting}"
        return
    enforced = offer.accounting.enforced
    for what, words in (
        ("accounts", {"associations", "limits", "qos", "safe", "all"}),
        ("QOS", {"qos", "all"}),
        ("limits of QOS and accounts", {"limits", "safe", "all"}),
    ):
        if not words & enforced:
            yield f"{what}: {NOT_ENFORCED}"


@dataclass(frozen=True)
class _JobCheck:
    job: ScaleJob
    settings: Settings
    offer: Offer

    def complaints(self) -> Iterator[_Complaint]:
        yield from self.account()
        yield from self.qos()
        yield from self.reservation()
        yield from self.node_names()
        names = self.partition_names()
        unknown = [name for name in names if name not in self.offer.partitions]
        if not names:
            yield self.no_partition()
        elif unknown:
            for name in unknown:
                yield self.unknown_partition(name)
        else:
            yield from self.partitions([self.offer.partitions[name] for name in names])

    # Where a value comes from

    def key(self, name: str) -> str:
        """File and key that decide a Slurm value of this job."""
        for stage in self.settings.experiment.stages:
            if stage.name == self.job.stage and getattr(stage.slurm, name) is not None:
                return f"{self.settings.experiment.file}: stages.{stage.name}.slurm.{name}"
        return f"{self.settings.site.file}: slurm.{name}"

    def node_key(self, name: str) -> str:
        return f"{self.settings.site.file}: node.{name}"

    def stage_key(self, name: str) -> str:
        return f"{self.settings.experiment.file}: stages.{self.job.stage}.{name}"

    # Accounting

    @property
    def accounting(self) -> Accounting | None:
        return self.offer.accounting if isinstance(self.offer.accounting, Accounting) else None

    def enforces(self, *words: str) -> bool:
        return self.accounting is not None and bool({*words, "all"} & self.accounting.enforced)

    @property
    def account_name(self) -> str | None:
        return self.job.slurm.account or (self.accounting.default_account if self.accounting else None)

    def associations(self) -> list[Association]:
        """The user's associations with the job's account."""
        if self.accounting is None:
            return []
        return [each for each in self.accounting.associations if each.account == self.account_name]

    def account(self) -> Iterator[_Complaint]:
        if self.accounting is None or not self.enforces("associations", "limits", "qos", "safe"):
            return
        yours = sorted({each.account for each in self.accounting.associations})
        if self.account_name is None or self.associations():
            return
        guess = did_you_mean(self.account_name, yours)
        yield _Complaint(
            self.key("account"),
            f"{self.offer.user or 'this user'} has no such account here",
            self.account_name,
            _list(yours) if yours else "none: this user has no account on this cluster",
            guess or ("use one of these" if yours else "ask the site's support for an account"),
        )

    def qos(self) -> Iterator[_Complaint]:
        wanted = self.job.slurm.qos
        if wanted is None or self.accounting is None or not self.enforces("qos"):
            return
        allowed = sorted({name for each in self.associations() for name in each.qos})
        known = wanted in self.accounting.qos
        if known and (wanted in allowed or not self.associations()):
            return
        choice = allowed or sorted(self.accounting.qos)
        what = f"the account {self.account_name} may not use this QOS" if known else "there is no such QOS"
        yield _Complaint(
            self.key("qos"),
            what,
            wanted,
            _list(choice),
            did_you_mean(wanted, choice) or "use one of these, or null for the account's own",
        )

    # Reservation and nodes by name

    def reservation(self) -> Iterator[_Complaint]:
        wanted = self.job.slurm.reservation
        if wanted is None:
            return
        where, there = self.key("reservation"), self.offer.reservations
        if wanted not in there:
            yield _Complaint(
                where,
                "there is no such reservation, or it is over",
                wanted,
                _list(sorted(there)) if there else "none: this Slurm has no reservations",
                did_you_mean(wanted, there) or "set it to null, or ask for a new reservation",
            )
            return
        reservation = there[wanted]
        users, accounts = reservation.users, reservation.accounts
        if (users or accounts) and not (self.offer.user in users or self.account_name in accounts):
            yield _Complaint(
                where,
                "the reservation is for others",
                f"{wanted}, as {self.offer.user}" + (f" of {self.account_name}" if self.account_name else ""),
                _list([*(f"user {name}" for name in users), *(f"account {name}" for name in accounts)]),
                "set it to null, or use an account that it is for",
            )
        elif not reservation.active:
            yield _Complaint(
                where,
                "the reservation has not begun; the jobs wait for it",
                f"{wanted}, from {reservation.start}",
                "a reservation that is active",
                "nothing, if this is meant; else set it to null",
                waits=True,
            )

    def node_names(self) -> Iterator[_Complaint]:
        known = {node.name for node in self.offer.nodes}
        for key in ("nodelist", "exclude"):
            names = list(host_names(getattr(self.job.slurm, key) or ""))
            for name in names:
                if name not in known:
                    yield _Complaint(
                        self.key(key),
                        "there is no such node",
                        name,
                        _list([node.name for node in self.offer.nodes]),
                        did_you_mean(name, known) or "write names as `sinfo --Node` shows them",
                    )
            if key == "nodelist" and len(names) > self.job.scale.nodes:
                yield _Complaint(
                    self.key(key),
                    "more nodes than a job has: sbatch wants every one of them",
                    f"{len(names)} nodes for {self.job.scale}",
                    "at most as many nodes as the smallest scale that uses the list has",
                    "put the list into the slurm of a stage, or name with exclude what a job must not have",
                )

    # Partitions

    def partition_names(self) -> list[str]:
        wanted = self.job.slurm.partition
        if wanted:
            return wanted.split(",")
        return [partition.name for partition in self.offer.partitions.values() if partition.default]

    def no_partition(self) -> _Complaint:
        return _Complaint(
            self.key("partition"),
            "this Slurm has no default partition",
            "null",
            _list(sorted(self.offer.partitions)),
            "set it to one of these",
        )

    def unknown_partition(self, name: str) -> _Complaint:
        there = sorted(self.offer.partitions)
        guess = did_you_mean(name, there) or "use one of these; `sinfo --summarize` shows what they are"
        return _Complaint(self.key("partition"), "there is no such partition", name, _list(there), guess)

    def partitions(self, wanted: Sequence[Partition]) -> Iterator[_Complaint]:
        """One partition that takes the job and starts it is enough, unless the site wants all to fit."""
        told = {partition.name: list(self.one_partition(partition)) for partition in wanted}
        wrong = {name: [each for each in found if not each.waits] for name, found in told.items()}
        fitting = [name for name in told if not wrong[name]]
        needed = len(told) if self.offer.all_partitions_must_fit else 1
        if len(fitting) >= needed:
            if not any(not told[name] for name in fitting):
                yield from (each for name in fitting for each in told[name])
        elif len(told) == 1:
            yield from (each for found in wrong.values() for each in found)
        else:
            why = [
                f"{name}: {_list([f'{each.what} ({each.found})' for each in found])}"
                for name, found in wrong.items()
                if found
            ]
            yield _Complaint(
                self.key("partition"),
                "not every partition of the list takes the job, as this site wants"
                if fitting
                else "no partition of the list takes the job",
                f"{self.job.scale} on {'; on '.join(why)}",
                "a list in which every partition takes the job" if fitting else "a list of which one takes the job",
                "name another partition, or change what is in the brackets",
            )

    def one_partition(self, partition: Partition) -> Iterator[_Complaint]:
        yield from self.access(partition)
        yield from self.runtime(partition)
        nodes = [node for node in self.offer.nodes if partition.name in node.partitions]
        node_complaints = list(self.shape(partition, nodes)) or list(self.choice(partition, nodes))
        yield from node_complaints
        yield from self.limits(partition)

    def access(self, partition: Partition) -> Iterator[_Complaint]:
        where, name = self.key("partition"), partition.name
        others = _list(sorted(each.name for each in self.offer.partitions.values() if each.state == "UP"))
        elsewhere = "choose another partition"
        if partition.state in ("INACTIVE", "DRAIN"):
            what = f"the partition {name} takes no jobs now"
            yield _Complaint(where, what, f"state {partition.state}", others, elsewhere)
        elif partition.state != "UP":
            yield _Complaint(
                where,
                f"the partition {name} starts no jobs now",
                f"state {partition.state}",
                others,
                f"{elsewhere}, or wait until the site has opened it",
            )
        if self.offer.user != "root":
            allowed = partition.allow_groups
            if partition.root_only:
                yield _Complaint(where, f"the partition {name} is for root alone", name, others, elsewhere)
            elif allowed is not None and not self.offer.groups.intersection(allowed):
                what = f"the partition {name} is for certain groups"
                found = f"{self.offer.user} is in none of them"
                yield _Complaint(where, what, found, _list(allowed), f"{elsewhere}, or ask to be added to a group")
        yield from self.allowed_here(partition, "account", self.account_name)
        yield from self.allowed_here(partition, "qos", self.job_qos())

    def allowed_here(self, partition: Partition, key: str, value: str | None) -> Iterator[_Complaint]:
        """Account and QOS that the partition is open for."""
        allowed = partition.allow_accounts if key == "account" else partition.allow_qos
        denied = partition.deny_accounts if key == "account" else partition.deny_qos
        word = "account" if key == "account" else "QOS"
        if value is None or ((allowed is None or value in allowed) and value not in denied):
            return
        yield _Complaint(
            self.key(key),
            f"the partition {partition.name} is closed for this {word}",
            value,
            _list(allowed) if allowed is not None else f"any but {_list(denied)}",
            f"use another {word}, or another partition",
        )

    def job_qos(self) -> str | None:
        """The QOS that the job runs with: its own, or its account's."""
        own = [each.default_qos for each in self.associations() if each.default_qos]
        return self.job.slurm.qos or (own[0] if own else None)

    def runtime(self, partition: Partition) -> Iterator[_Complaint]:
        most = partition.max_time_min
        if most is not None and self.job.runtime_min > most:
            yield _Complaint(
                self.stage_key("runtime"),
                f"longer than the partition {partition.name} allows",
                f"{self.job.runtime_min} min",
                f"up to {most} min",
                f"set runtime: {most} or less, or choose another partition in {self.key('partition')}",
            )

    # Nodes

    def shape(self, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[_Complaint]:
        """Number of nodes, and what a single node must have."""
        most = min(len(nodes), partition.max_nodes or len(nodes))
        if self.job.scale.nodes > most:
            limited = most < len(nodes)
            yield _Complaint(
                self.stage_key("scales"),
                f"more nodes than the partition {partition.name} {'allows per job' if limited else 'has'}",
                f"{self.job.scale}: {_count(self.job.scale.nodes, 'node')}",
                f"up to {_count(most, 'node')}" + ("" if limited else f": {_list([node.name for node in nodes])}"),
                _SCALES,
            )
        if nodes:
            yield from self.gpus(partition, nodes)
            yield from self.amount(
                partition, "cpus", self.job.cpus, [node.cpus for node in nodes], partition.max_cpus_per_node
            )
            memory = [node.memory_mb for node in nodes]
            yield from self.amount(
                partition, "memory_mb", self.job.memory_mb or 0, memory, partition.max_memory_per_node_mb
            )

    def wanted_gpus(self) -> tuple[str | None, int] | None:
        """Type (None for any) and number per node that the job asks for."""
        if self.job.gres is None:
            return None
        _, *kind, count = self.job.gres.split(":")
        return ":".join(kind) or None, int(count)

    def gpus(self, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[_Complaint]:
        if (wanted := self.wanted_gpus()) is None:
            return
        kind, count = wanted
        name = f"gpu:{kind}" if kind else "gpu"
        most = max(node.gpus_of(kind) for node in nodes)
        kinds = sorted({each for node in nodes for each in node.gpus})
        if most == 0:
            there = [f"gpu:{each}" if each else "gpu" for each in kinds]
            guess = did_you_mean(name, there) if kind else None
            yield _Complaint(
                self.node_key("gres"),
                f"no node of the partition {partition.name} has such GPUs",
                name,
                _list(["gpu", *there] if kinds and "" not in kinds else there) if kinds else "none: it has no GPUs",
                guess or ("use one of these" if kinds else f"choose another partition in {self.key('partition')}"),
            )
        elif count > most:
            yield _Complaint(
                self.node_key("gpus"),
                f"no node of the partition {partition.name} has that many GPUs",
                f"{self.job.scale}: {name}:{count} per node",
                f"up to {name}:{most} per node",
                f"set node.gpus: {most}, and scales with at most {most} GPUs per node in "
                f"{self.settings.experiment.file}",
            )

    def amount(
        self, partition: Partition, key: str, wanted: int, has: Sequence[int], limit: int | None
    ) -> Iterator[_Complaint]:
        """Cores or memory of a node. A scale with all GPUs of a node asks for all that the key says."""
        most = min(max(has), limit or max(has))
        if wanted <= most:
            return
        unit, what = ("cores", "cores") if key == "cpus" else ("MB", "memory")
        ruled = limit is not None and limit < max(has)
        whose = f"the partition {partition.name} allows" if ruled else f"any node of {partition.name} has"
        # The share of all GPUs, in place of this scale's.
        whole = getattr(self.settings.site.node, key)
        fits = most if whole is None else min(whole * most // wanted, whole)
        yield _Complaint(
            self.node_key(key),
            f"more {what} per node than {whose}",
            f"{self.job.scale}: {wanted} {unit}",
            f"up to {most} {unit}",
            f"set node.{key}: {fits} or less, or choose another partition in {self.key('partition')}",
        )

    def choice(self, partition: Partition, nodes: Sequence[ComputeNode]) -> Iterator[_Complaint]:
        """Which nodes are left after everything that narrows them down, and which of those are up."""
        fitting = [node for node in nodes if self.is_large_enough(node)]
        reservation = self.offer.reservations.get(self.job.slurm.reservation or "")
        steps: tuple[tuple[str, str, list[ComputeNode]], ...] = (
            (self.stage_key("scales"), "large enough", fitting),
            (self.key("constraint"), f"have {self.job.slurm.constraint}", self.with_features(fitting)),
            (self.key("exclude"), "are not excluded", self.not_excluded(fitting)),
            (
                self.key("reservation"),
                f"are in the reservation {self.job.slurm.reservation}",
                [node for node in fitting if reservation is None or node.name in reservation.nodes],
            ),
        )
        missing = self.missing_of_the_list(nodes)
        if missing:
            yield _Complaint(
                self.key("nodelist"),
                f"not a node of the partition {partition.name} that is large enough",
                _list(missing),
                _list([node.name for node in fitting]),
                "correct the list, or choose another partition",
            )
            return
        left = {node.name for node in fitting}
        for where, words, names in steps:
            left &= {node.name for node in names}
            if len(left) < self.job.scale.nodes:
                yield self.too_few(partition, where, words, [node.name for node in fitting if node.name in left])
                return
        # A node that a reservation keeps for maintenance runs the jobs of that reservation.
        up = [node for node in fitting if node.name in left and (node.can_start_jobs or reservation is not None)]
        if len(up) < self.job.scale.nodes:
            down = [f"{node.name} ({'+'.join(node.state)})" for node in fitting if node.name in left and node not in up]
            yield _Complaint(
                self.stage_key("scales"),
                f"too few nodes of the partition {partition.name} are up now; the jobs wait",
                f"{self.job.scale}: {_count(self.job.scale.nodes, 'node')}",
                f"{_count(len(up), 'node')} now; not up: {_list(down)}",
                "nothing, if they come back soon (`sinfo --list-reasons`); else a smaller scale",
                waits=True,
            )

    def is_large_enough(self, node: ComputeNode) -> bool:
        wanted = self.wanted_gpus()
        enough_gpus = wanted is None or node.gpus_of(wanted[0]) >= wanted[1]
        return enough_gpus and node.cpus >= self.job.cpus and node.memory_mb >= (self.job.memory_mb or 0)

    def with_features(self, nodes: Sequence[ComputeNode]) -> list[ComputeNode]:
        """Nodes with the features of a constraint; alternatives and counts are judged by their words alone."""
        constraint = self.job.slurm.constraint or ""
        words = re.findall(r"[A-Za-z0-9_.:-]+", constraint)
        everyone = re.fullmatch(r"[A-Za-z0-9_.:&-]*", constraint)
        judge = all if everyone else any
        return [node for node in nodes if not words or judge(word in node.features for word in words)]

    def not_excluded(self, nodes: Sequence[ComputeNode]) -> list[ComputeNode]:
        excluded = set(host_names(self.job.slurm.exclude or ""))
        return [node for node in nodes if node.name not in excluded]

    def missing_of_the_list(self, nodes: Sequence[ComputeNode]) -> list[str]:
        """Nodes that the job must have and cannot get here."""
        known = {node.name for node in self.offer.nodes}
        here = {node.name for node in nodes if self.is_large_enough(node)}
        return [name for name in host_names(self.job.slurm.nodelist or "") if name in known - here]

    def too_few(self, partition: Partition, where: str, words: str, left: Sequence[str]) -> _Complaint:
        advice = _SCALES
        if where != self.stage_key("scales"):
            advice = f"change {where.rpartition(' ')[2]}, or leave out the scale"
        return _Complaint(
            where,
            f"too few nodes of the partition {partition.name} {words}",
            f"{self.job.scale}: {_count(self.job.scale.nodes, 'node')}",
            f"up to {_count(len(left), 'node')}{': ' if left else ''}{_list(left) if left else ''}",
            advice,
        )

    # Limits of QOS and accounts

    def limits(self, partition: Partition) -> Iterator[_Complaint]:
        if self.accounting is None or not self.enforces("limits", "safe"):
            return
        sources = list(self.limit_sources(partition, self.accounting))
        for whose, limits in sources:
            if limits.max_wall_min is not None:
                yield from self.wall_limit(whose, limits.max_wall_min)
                break
        for name, wanted in self.tres().items():
            yield from self.tres_limit(name, wanted, sources)

    def limit_sources(self, partition: Partition, accounting: Accounting) -> Iterator[tuple[str, Limits]]:
        """In Slurm's order: of one kind of limit, the first that is set is the one that counts."""
        for name in (partition.qos, self.job_qos()):
            if name is not None and name in accounting.qos:
                yield f"the QOS {name}", accounting.qos[name]
        own = [each for each in self.associations() if each.partition in ("", partition.name)]
        for each in sorted(own, key=lambda association: not association.partition):
            yield f"your share of the account {each.account}", each.limits
        above = self.account_name or ""
        seen: set[str] = set()
        while above in accounting.accounts and above not in seen:
            seen.add(above)
            yield f"the account {above}", accounting.accounts[above].limits
            above = accounting.accounts[above].parent

    def wall_limit(self, whose: str, most: int) -> Iterator[_Complaint]:
        if self.job.runtime_min > most:
            yield _Complaint(
                self.stage_key("runtime"),
                f"longer than {whose} allows",
                f"{self.job.runtime_min} min",
                f"up to {most} min",
                f"set runtime: {most} or less, or choose another QOS in {self.key('qos')}",
            )

    def tres(self) -> dict[str, int]:
        """What the job asks for in all, by Slurm's name; memory in MB."""
        nodes = self.job.scale.nodes
        wanted = {"node": nodes, "cpu": self.job.cpus * nodes}
        if self.job.memory_mb:
            wanted["mem"] = self.job.memory_mb * nodes
        if gpus := self.wanted_gpus():
            kind, count = gpus
            wanted["gres/gpu"] = count * nodes
            if kind:
                wanted[f"gres/gpu:{kind}"] = count * nodes
        return wanted

    def tres_limit(self, name: str, wanted: int, sources: Sequence[tuple[str, Limits]]) -> Iterator[_Complaint]:
        word = {"node": "nodes", "cpu": "cores", "mem": "MB of memory"}.get(name, f"GPUs ({name})")
        kinds = (
            ("per_job", 1, "allows per job"),
            ("per_user", 1, "allows per user"),
            ("per_account", 1, "allows per account"),
            ("per_group", 1, "allows all its jobs together"),
            ("minutes_per_job", self.job.runtime_min, "allows per job, in minutes times"),
        )
        for kind, factor, words in kinds:
            whose, most = _first_limit(sources, kind, name)
            if most is None or wanted * factor <= most:
                continue
            timed = kind == "minutes_per_job"
            yield _Complaint(
                self.stage_key("runtime" if timed else "scales"),
                f"more than {whose} {words} {word}" if timed else f"more {word} than {whose} {words}",
                f"{self.job.scale}: {wanted * factor}" + (f" ({wanted} for {factor} min)" if timed else ""),
                f"up to {most}",
                f"leave out the scale{' or shorten its runtime' if timed else ''}, or choose another QOS in "
                f"{self.key('qos')}",
            )
            return


def _first_limit(sources: Sequence[tuple[str, Limits]], kind: str, name: str) -> tuple[str, int | None]:
    for whose, limits in sources:
        values: Mapping[str, int] = getattr(limits, kind)
        if name in values:
            return whose, values[name]
    return "", None


def _list(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f", and {more} more" if more > 0 else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
