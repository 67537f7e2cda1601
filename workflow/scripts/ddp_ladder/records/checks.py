"""Sanity checks of one run: did it work, apart from how well. Every check shows what was measured and wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddp_ladder.common.files import Agent, canonical_sha256
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records import correctness
from ddp_ladder.records.correctness import NAMED, SAMPLES_SEEN, Diagnosis, world
from ddp_ladder.records.failures import is_complete
from ddp_ladder.records.fingerprint import MUST_MATCH, distinct_words
from ddp_ladder.records.raw_files import RawRun, host_name, node_rank_of
from ddp_ladder.records.raw_models import RankEnd, RawFile, Source
from ddp_ladder.records.record import Check, Failure, Throughput


def diagnoses(spec: RunSpec, raw: RawRun, throughput: Throughput | None) -> tuple[Diagnosis, ...]:
    """Return all sanity checks of a run, with their failures. A check that lacks its evidence fails."""
    return tuple(each if isinstance(each, Diagnosis) else Diagnosis(each) for each in _checks(spec, raw, throughput))


def _checks(spec: RunSpec, raw: RawRun, throughput: Throughput | None) -> Iterator[Check | Diagnosis]:
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    yield Check(
        name="complete",
        ok=not raw.problems,
        measured="; ".join(raw.problems[:3])
        or f"{len(ends)} ranks, {len({agent.node_rank for agent in raw.agents})} nodes",
        wanted=f"the files of {spec.world_size} ranks and {spec.nodes} nodes",
    )
    yield _same_origin(spec, raw)
    yield _exit_codes(spec, raw, ends)
    is_own_account = (
        throughput is not None and own_account(throughput.source) and not any(end.parameters for end in ends)
    )
    yield _world_size(spec, ends) if is_own_account else world(spec, raw)
    yield placement(spec, raw)
    yield ranks_agree(ends)
    if throughput is not None and is_own_account:
        yield Check(
            name="evidence",
            ok=True,
            measured=IN_WORDS[throughput.source],
            wanted="the program's own account, as there is no better one",
        )
    else:
        yield from correctness.diagnoses(spec, raw)
    if spec.launcher != "python":
        yield backend(spec, ends)
    if raw.reads_log:
        yield _whole_log(raw)
        yield _printed(spec, throughput)
        return
    yield _steps(spec, raw)
    yield _samples(raw, throughput)


def _same_origin(spec: RunSpec, raw: RawRun) -> Check:
    """Check that all files are of this spec, this job and this attempt: none is stale or foreign."""
    job = raw.run.job
    parts: dict[str, RawFile] = {f"rank {k}": rank.end for k, rank in raw.ranks.items()}
    parts |= {str(agent): end for agent, end in raw.agents.items()}
    if raw.ended is not None:
        parts["ended.json"] = raw.ended
    foreign = [name for name, part in parts.items() if part.spec_hash != raw.run.spec_hash or part.job != job]
    exchanged = [f"rank {k}" for k, rank in raw.ranks.items() if rank.end.rank != k]
    exchanged += [str(agent) for agent, end in raw.agents.items() if Agent(end.node_rank, end.local_rank) != agent]
    measured = f"foreign: {', '.join(foreign)}" if foreign else "one" if parts else "nothing"
    if exchanged:
        measured = f"another's number in the file of {', '.join(exchanged)}"
    twice = _processes_of_two_ranks(spec, raw)
    if twice and not foreign and not exchanged:
        measured = twice
    return Check(
        name="one origin",
        ok=bool(parts) and not foreign and not exchanged and not twice,
        measured=measured,
        wanted=f"one spec, job {job.id}, attempt {job.attempt}",
    )


def _processes_of_two_ranks(spec: RunSpec, raw: RawRun) -> str:
    """Return processes that claim two ranks, in words. In containers process ids may repeat; they are not checked."""
    held: dict[tuple[str, int], list[int]] = {}
    for k, rank in sorted(raw.ranks.items()):
        held.setdefault((rank.end.host, rank.end.pid), []).append(k)
    several = {} if spec.container else {process: ranks for process, ranks in held.items() if len(ranks) > 1}
    parts = [
        f"process {pid} of {host} is {' and '.join(f'rank {k}' for k in ranks)}"
        for (host, pid), ranks in several.items()
    ]
    return "; ".join(parts[:3])


def _exit_codes(spec: RunSpec, raw: RawRun, ends: Sequence[RankEnd]) -> Check:
    bad = [f"rank {end.rank}: {end.exception or end.exit_code}" for end in ends if end.exit_code != 0 or end.exception]
    bad += [
        f"{agent}: {end.signal or end.exit_code}"
        for agent, end in raw.agents.items()
        if end.exit_code != 0 or end.signal
    ]
    outcome = raw.ended.outcome if raw.ended else "no end recorded"
    if outcome != "finished":
        bad.append(str(outcome))
    after = bool(bad) and is_complete(spec, raw)
    return Check(
        name="exit codes",
        ok=bool(ends) and (not bad or after),
        measured=("after the training: " if after else "") + (", ".join(bad) or "all 0"),
        wanted="0 on every rank and node",
    )


def _world_size(spec: RunSpec, ends: Sequence[RankEnd]) -> Check:
    odd = {end.rank: end.host for end in ends if end.world_size != spec.world_size}
    sizes = ", ".join(sorted({str(end.world_size) for end in ends})) or "nothing"
    measured = f"{sizes}, other than planned on {on_hosts(list(odd), odd)}" if odd else sizes
    return Check(name="world size", ok=bool(ends) and not odd, measured=measured, wanted=str(spec.world_size))


def _steps(spec: RunSpec, raw: RawRun) -> Check:
    counts = sorted({len(rank.steps) for rank in raw.ranks.values()})
    wanted = spec.warmup_steps + spec.min_steps
    ok = len(counts) == 1 and counts[0] >= wanted
    measured = " and ".join(str(count) for count in counts) or "none"
    return Check(
        name="enough steps",
        ok=ok,
        measured=f"{measured} optimizer steps",
        wanted=f"at least {wanted} on every rank (measure.warmup_steps + measure.min_steps), equally many",
    )


def _printed(spec: RunSpec, throughput: Throughput | None) -> Check:
    """Check that the regular expression matched a line after the warm-up."""
    count = len(throughput.blocks_samples_per_s) if throughput else 0
    return Check(
        name="throughput printed",
        ok=count > 0,
        measured=f"{count} matches after the warm-up",
        wanted=f"at least 1 match of workload.throughput_regex ({spec.throughput_regex}) in the log",
    )


def _whole_log(raw: RawRun) -> Diagnosis:
    """Check that nothing that the program printed is missing: the rates in the middle of the run may be."""
    missing = sum(end.log.left_out_bytes + end.log.lost_bytes for end in raw.agents.values() if end.log)
    check = Check(
        name="whole log",
        ok=not missing,
        measured=f"{missing:,} bytes of the output are not in the log" if missing else "all of the output",
        wanted="all of the output, as its throughput is read from it (workload.throughput_regex)",
    )
    next_step = (
        "print less, or raise logs.max_mb_per_node in config.yaml, and see that the disk of the results has room "
        "(df -h); then start snakemake again"
    )
    return Diagnosis(check, Failure(verdict="the log is incomplete", why=check.measured, next=next_step))


def _samples(raw: RawRun, throughput: Throughput | None) -> Check:
    """Check that every rank counted samples from start to end; without them the throughput means nothing."""
    empty = [str(k) for k, rank in sorted(raw.ranks.items()) if rank.steps.samples.sum() == 0]
    rates = throughput.blocks_samples_per_s if throughput else ()
    idle = sum(rate == 0 for rate in rates)
    measured = "on every rank, all the time"
    if empty:
        measured = f"none on rank {', '.join(empty)}"
    elif idle:
        measured = f"none in {idle} of {len(rates)} blocks of steps"
    return Check(
        name=SAMPLES_SEEN,
        ok=bool(raw.ranks) and not empty and not idle,
        measured=measured,
        wanted="training batches from a torch DataLoader on every rank, all the time",
    )


Nodes = Sequence[str]


def placement(spec: RunSpec, raw: RawRun) -> Diagnosis:
    """Check that agents and ranks ran where the job put them. Only the short host names are compared."""
    nodes: Nodes = raw.run.nodes
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    groups = (
        (
            "agents ran on other nodes than planned",
            [*_other_nodes(nodes, raw)],
            "start snakemake again; if it happens again, compare `srun --label hostname` with the job's nodes, and "
            "report both",
        ),
        (
            "nodes are not hosts of their own",
            [*_shared_hosts(nodes, raw)],
            "ask for as many nodes as the scale has, and check with `srun hostname` that each is a machine of its own",
        ),
        (
            "ranks ran on other hosts than their agents",
            [*_other_hosts(raw, ends)],
            "let the script stay in the processes that the launcher started; a container has to keep its node's host "
            "name (no --uts and no --hostname in software.container.args)",
        ),
        (
            "ranks do not follow the nodes",
            [] if spec.launcher == "python" else [*_out_of_order(spec, raw, ends)],
            "let the script take its rank from the environment (RANK, LOCAL_RANK), and call init_process_group without "
            "a rank of its own",
        ),
    )
    hosts = len({host_name(end.host) for end in raw.agents.values()})
    wanted = f"ranks in the order of {_list(nodes)}, {spec.gpus_per_node} on each"
    for verdict, wrong, next_step in groups:
        if wrong:
            why = "; ".join(wrong[:NAMED]) + (f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
            return Diagnosis(
                Check(name="placement", ok=False, measured=why, wanted=wanted),
                Failure(verdict=verdict, why=why, next=next_step),
            )
    ok = bool(ends) and bool(raw.agents)
    measured = f"{len(ends)} ranks in the order of {spec.nodes} nodes on {hosts} hosts" if ok else "nothing"
    return Diagnosis(
        Check(name="placement", ok=ok, measured=measured, wanted=wanted),
        Failure(verdict="placement", why=measured, next="read train.log"),
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 * NAMED else f"{names[0]} to {names[-1]} ({len(names)} nodes)"


def _other_nodes(nodes: Nodes, raw: RawRun) -> Iterator[str]:
    for agent, end in raw.agents.items():
        if host_name(end.node) != host_name(nodes[agent.node_rank]):
            yield f"{agent} was {end.node}, not {nodes[agent.node_rank]}"


def _shared_hosts(nodes: Nodes, raw: RawRun) -> Iterator[str]:
    """Yield names of several hosts and hosts of several names; simulated nodes share one name and one host."""
    hosts: dict[str, dict[str, None]] = {}
    names: dict[str, dict[str, None]] = {}
    for agent, end in raw.agents.items():
        hosts.setdefault(nodes[agent.node_rank], {})[host_name(end.host)] = None
        names.setdefault(host_name(end.host), {})[nodes[agent.node_rank]] = None
    yield from (f"{_list([*several])} are one host, {host}" for host, several in names.items() if len(several) > 1)
    yield from (f"{name} is several hosts: {_list([*several])}" for name, several in hosts.items() if len(several) > 1)


def _other_hosts(raw: RawRun, ends: Sequence[RankEnd]) -> Iterator[str]:
    hosts = {host_name(end.host) for end in raw.agents.values()}
    for end in ends:
        if host_name(end.host) not in hosts:
            yield f"rank {end.rank} was on {end.host}, where no agent of the run was"


def _out_of_order(spec: RunSpec, raw: RawRun, ends: Sequence[RankEnd]) -> Iterator[str]:
    hosts = {agent.node_rank: host_name(end.host) for agent, end in raw.agents.items()}
    for end in ends:
        wanted = divmod(end.rank, spec.gpus_per_node)
        place = (node_rank_of(end, hosts), end.local_rank)
        if place != wanted:
            yield f"rank {end.rank} was {_place(raw.run.nodes, *place)}, not {_place(raw.run.nodes, *wanted)}"


def _place(nodes: Nodes, node_rank: int | None, local_rank: int) -> str:
    named = node_rank is not None and node_rank < len(nodes)
    node = f"node {node_rank}" + (f" ({nodes[node_rank]})" if named and node_rank is not None else "")
    return f"local rank {local_rank} of {node if node_rank is not None else 'a node that the launcher did not name'}"


NOT_OF_ALL = (
    "product_dtypes",  # sampled in the first backward passes, which may differ between ranks
    "cpu_model",  # nodes of several generations: the slowest sets the pace, and the fingerprint says so
)
UNKNOWN = ("num_workers",)  # of a rank without a loader: another rank reads the data for it
"""Compared only among the ranks that have it, like the fields with ``where_known``."""

SOFTWARE = ("python", "torch", "cuda", "nccl", "cudnn", "libraries")
FILES = ("script_sha256", "sources", "configuration")

SAME_SOFTWARE = (
    "let every node start the same Python: software.python, software.modules, software.setup and software.container in "
    "cluster.yaml must lead to one installation, the same on all nodes"
)
SAME_FILES = (
    "let every node read the same files (a shared file system, no copies of their own), and do not edit them while a "
    "run goes on"
)
SAME_CHOICES = (
    "look for what the script decides by rank or by node (RANK, the host's name, what a node has of GPUs and cores): "
    "this must be the same on every rank"
)
NO_SUCH_BACKEND = {"cpu": ("nccl", "fake"), "cuda": ("fake",)}
"""Backends that do not carry tensors of a device."""


def ranks_agree(ends: Sequence[RankEnd]) -> Diagnosis:
    """Compare what the ranks ran, and on what."""
    found = list(_disagreements(ends))
    fields = [name for name, _ in found]
    words = "; ".join(text for _, text in found[:NAMED])
    words += f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    hints = [SAME_FILES] if set(fields) & set(FILES) else []
    hints += [SAME_SOFTWARE] if set(fields) & set(SOFTWARE) else []
    hints += [SAME_CHOICES] if not hints else []
    return Diagnosis(
        Check(
            name="ranks agree",
            ok=bool(ends) and not found,
            measured=words or f"{len(ends)} ranks alike",
            wanted="the same on every rank",
        ),
        Failure(verdict="the ranks are not alike", why=words, next="; ".join(hints)),
    )


def _disagreements(ends: Sequence[RankEnd]) -> Iterator[tuple[str, str]]:
    """Yield each field that differs, and which ranks have which value."""
    for item in MUST_MATCH:
        if item.measured and item.name not in NOT_OF_ALL:
            known_only = item.where_known or item.name in UNKNOWN
            values = {end.rank: end.fingerprint.get(item.name) for end in ends}
            yield from _differing(item.name, values, known_only, ends)
    yield from _differing("DistributedDataParallel", _wrapped(ends), False, ends)
    hooks = {end.rank: end.ddp and end.ddp.comm_hook for end in ends}
    yield from _differing("communication hook", hooks, False, ends)
    yield from _differing("backend", {end.rank: end.backend for end in ends}, False, ends)


def _wrapped(ends: Sequence[RankEnd]) -> dict[int, str]:
    return {end.rank: "used" if end.ddp else "not used" for end in ends}


def _differing(
    name: str, values: Mapping[int, Any], known_only: bool, ends: Sequence[RankEnd]
) -> Iterator[tuple[str, str]]:
    """Yield what differs between ranks; each entry of a mapping is compared among the ranks that have it."""
    if any(isinstance(value, dict) for value in values.values()):
        known = {rank: value for rank, value in values.items() if isinstance(value, dict)}
        for key in sorted({key for value in known.values() for key in value}):
            having = {rank: value[key] for rank, value in known.items() if key in value}
            yield from ((name, f"{name}: {text}") for _, text in _differing(key, having, True, ends))
        return
    if known_only:
        values = {rank: value for rank, value in values.items() if value is not None}
    groups: dict[tuple[type, Any], list[int]] = {}
    for rank, value in sorted(values.items()):
        simple = value is None or isinstance(value, str | int)
        groups.setdefault((type(value), value if simple else canonical_sha256(value)), []).append(rank)
    if len(groups) > 1:
        largest_first = sorted(groups.values(), key=len, reverse=True)
        yield name, f"{name}: {_who_has_what(name, largest_first, values, ends)}"


def _who_has_what(
    name: str, groups: Sequence[Sequence[int]], values: Mapping[int, Any], ends: Sequence[RankEnd]
) -> str:
    """Return ``2.15.0 on ranks 0-2 (node0, node1), 2.4.1 on rank 3 (node1)``."""
    hosts = {end.rank: end.host for end in ends}
    usual = values[groups[0][0]]
    first, parts = "", []
    for ranks in groups[1:NAMED]:
        first, other = distinct_words(name, usual, values[ranks[0]])
        parts.append(f"{other} on {on_hosts(ranks, hosts)}")
    more = f", and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
    return f"{first} on {on_hosts(groups[0], hosts)}, {', '.join(parts)}{more}"


def on_hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return ``rank 3 (node1)`` or ``ranks 0-2, 7 (node0, node1)``."""
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    where = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)} ({where})"


def _ranges(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


# Backend


def backend(spec: RunSpec, ends: Sequence[RankEnd]) -> Check:
    """Check the backend: the wanted one; with ``auto``, any that carries tensors of the rank's device."""
    seen = ", ".join(sorted({str(end.backend) for end in ends})) or "nothing"
    if spec.backend_wanted != "auto":
        ok = bool(ends) and all(end.backend == spec.backend for end in ends)
        return Check(name="backend", ok=ok, measured=seen, wanted=spec.backend)
    odd = [end for end in ends if end.backend in NO_SUCH_BACKEND.get(end.device.kind, ())]
    hosts = {end.rank: end.host for end in odd}
    measured = f"{odd[0].backend} on {on_hosts(list(hosts), hosts)}" if odd else seen
    return Check(
        name="backend",
        ok=bool(ends) and not odd,
        measured=measured,
        wanted=f"one that carries tensors of a {spec.device} device",
    )


STRONGEST: Source = "counted"
ORDER: tuple[Source, ...] = ("counted", "samples_per_step", "metrics", "log", "guessed")

IN_WORDS: Mapping[Source, str] = {
    "counted": "samples counted at the loader, steps timed",
    "samples_per_step": "steps timed, but their samples are what workload.samples_per_step says",
    "metrics": "samples and times are what the program wrote to DDP_LADDER_METRICS",
    "guessed": "steps timed, but how many samples a batch has is a guess (workload.samples_per_step sets the number)",
    "log": "the throughput is what the program printed (workload.throughput_regex)",
}


def weakest(sources: Iterable[str]) -> Source:
    """Return the weakest of the ranks' sources; one that is unknown counts as the strongest."""
    named = set(sources)
    return next((source for source in reversed(ORDER) if source in named), STRONGEST)


def own_account(source: Source) -> bool:
    """Return True if the program itself reported all figures: torch's devices and parameters may then be unseen."""
    return source in ("metrics", "log", "guessed")
