"""Sanity checks of one run: did it work, apart from how well. Every check shows what was measured and wanted. Pure.

One rank that did not run what the others ran, or was not where it was planned, spoils all figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddp_ladder.common.formats import in_short
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.correctness import NAMED, SAMPLES_SEEN, Diagnosis, diagnose, one_model, plain_check, world
from ddp_ladder.records.failures import is_complete
from ddp_ladder.records.fingerprint import MUST_MATCH, distinct_words
from ddp_ladder.records.raw_files import RawRun, host_name, node_rank_of
from ddp_ladder.records.raw_models import RankEnd, Source
from ddp_ladder.records.record import Throughput

STRONGEST: Source = "counted"
ORDER: tuple[Source, ...] = ("counted", "samples_per_step", "metrics", "log", "guessed")
"""The sources of a throughput, from the strongest to the weakest."""
IN_WORDS: Mapping[Source, str] = {
    "counted": "samples counted at the loader, steps timed",
    "samples_per_step": "steps timed, but their samples are what workload.samples_per_step says",
    "metrics": "samples and times are what the program wrote to DDP_LADDER_METRICS",
    "guessed": "steps timed, but how many samples a batch has is a guess (workload.samples_per_step sets the number)",
    "log": "the throughput is what the program printed (workload.throughput_regex)",
}
OWN_ACCOUNT = ("metrics", "log", "guessed")
"""Sources with which the program itself reports all figures: torch's devices and parameters may then be unseen."""

NOT_OF_ALL = ("cpu_model",)  # nodes of several generations: the slowest sets the pace, and the fingerprint says so
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


def weakest(sources: Iterable[str]) -> Source:
    """Return the weakest of the ranks' sources; one that is unknown counts as the strongest."""
    named = set(sources)
    return next((source for source in reversed(ORDER) if source in named), STRONGEST)


def diagnoses(spec: RunSpec, raw: RawRun, throughput: Throughput | None) -> tuple[Diagnosis, ...]:
    """Return all sanity checks of a run, with their failures. A check that lacks its evidence fails."""
    return tuple(_checks(spec, raw, throughput))


def _checks(spec: RunSpec, raw: RawRun, throughput: Throughput | None) -> Iterator[Diagnosis]:
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    yield plain_check(
        "complete",
        not raw.problems,
        "; ".join(raw.problems[:3]) or f"{len(ends)} ranks, {len({agent.node_rank for agent in raw.agents})} nodes",
        f"the files of {spec.world_size} ranks and {spec.nodes} nodes",
    )
    yield _exit_codes(spec, raw, ends)
    seen = any(end.parameters for end in ends)
    own_account = throughput.source if throughput and throughput.source in OWN_ACCOUNT and not seen else None
    yield world(spec, raw, own_account is not None)
    yield placement(spec, raw)
    yield ranks_agree(ends)
    if own_account:
        wanted = "the program's own account, as there is no better one"
        yield plain_check("evidence", True, IN_WORDS[own_account], wanted)
    else:
        yield from one_model(spec, ends)
    if spec.launcher != "python":
        yield _backend(spec, ends)
    if raw.reads_log:
        yield _whole_log(raw)
        yield _printed(spec, throughput)
        return
    yield _steps(spec, raw)
    yield _samples(raw, throughput)


def _exit_codes(spec: RunSpec, raw: RawRun, ends: Sequence[RankEnd]) -> Diagnosis:
    bad = [f"rank {end.rank}: {end.exception or end.exit_code}" for end in ends if end.failed]
    bad += [f"{agent}: {end.signal or end.exit_code}" for agent, end in raw.agents.items() if end.failed]
    outcome = raw.ended.outcome if raw.ended else "no end recorded"
    bad += [outcome] if outcome != "finished" else []
    after = bool(bad) and is_complete(spec, raw)
    measured = ("after the training: " if after else "") + (", ".join(bad) or "all 0")
    return plain_check("exit codes", bool(ends) and (not bad or after), measured, "0 on every rank and node")


# Agents and ranks ran where the job put them


def placement(spec: RunSpec, raw: RawRun) -> Diagnosis:
    """Check that agents and ranks ran where the job put them. Only the short host names are compared."""
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    hosts = {host_name(end.host) for end in raw.agents.values()}
    wrong = [*_misplaced(spec, raw, ends)]
    measured = f"{len(ends)} ranks in the order of {spec.nodes} nodes on {len(hosts)} hosts"
    measured = in_short(wrong, NAMED, "; ") or (measured if ends and raw.agents else "nothing")
    return diagnose(
        "placement",
        bool(ends) and bool(raw.agents) and not wrong,
        measured,
        f"ranks in the order of {_list(raw.run.nodes)}, {spec.gpus_per_node} on each",
        "agents or ranks are not where the job put them",
        measured,
        "compare `srun --label hostname` with the job's nodes: each must be a machine of its own; let the script take "
        "its rank from the environment (RANK, LOCAL_RANK), and stay in the processes that the launcher started; a "
        "container has to keep its node's host name (no --uts and no --hostname in software.container.args)",
    )


def _misplaced(spec: RunSpec, raw: RawRun, ends: Sequence[RankEnd]) -> Iterator[str]:
    """Yield each agent, node and rank that is not where it was put; causes first."""
    hosts = {host_name(end.host) for end in raw.agents.values()}
    for agent, end in raw.agents.items():
        if host_name(end.node) != host_name(raw.run.nodes[agent.node_rank]):
            yield f"{agent} was {end.node}, not {raw.run.nodes[agent.node_rank]}"
    yield from _shared_hosts(raw)
    for rank in ends:
        if host_name(rank.host) not in hosts:
            yield f"rank {rank.rank} was on {rank.host}, where no agent of the run was"
    if spec.launcher != "python":
        yield from _out_of_order(spec, raw, ends)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 * NAMED else f"{names[0]} to {names[-1]} ({len(names)} nodes)"


def _shared_hosts(raw: RawRun) -> Iterator[str]:
    """Yield names of several hosts and hosts of several names; simulated nodes share one name and one host."""
    hosts: dict[str, dict[str, None]] = {}
    names: dict[str, dict[str, None]] = {}
    for agent, end in raw.agents.items():
        node = raw.run.nodes[agent.node_rank]
        hosts.setdefault(node, {})[host_name(end.host)] = None
        names.setdefault(host_name(end.host), {})[node] = None
    yield from (f"{_list([*several])} are one host, {host}" for host, several in names.items() if len(several) > 1)
    yield from (f"{name} is several hosts: {_list([*several])}" for name, several in hosts.items() if len(several) > 1)


def _out_of_order(spec: RunSpec, raw: RawRun, ends: Sequence[RankEnd]) -> Iterator[str]:
    hosts = {agent.node_rank: host_name(end.host) for agent, end in raw.agents.items()}
    for end in ends:
        wanted = divmod(end.rank, spec.gpus_per_node)
        place = (node_rank_of(end, hosts), end.local_rank)
        if place != wanted:
            yield f"rank {end.rank} was {_place(raw.run.nodes, *place)}, not {_place(raw.run.nodes, *wanted)}"


def _place(nodes: Sequence[str], node_rank: int | None, local_rank: int) -> str:
    if node_rank is None:
        return f"local rank {local_rank} of a node that the launcher did not name"
    name = f" ({nodes[node_rank]})" if node_rank < len(nodes) else ""
    return f"local rank {local_rank} of node {node_rank}{name}"


# All ranks ran the same, on the same


def ranks_agree(ends: Sequence[RankEnd]) -> Diagnosis:
    """Compare what the ranks ran, and on what."""
    found = _disagreements(ends)
    fields = {name.partition(":")[0] for name in found}
    words = in_short([f"{name}: {text}" for name, text in found.items()], NAMED, "; ")
    hints = [SAME_FILES] if fields & set(FILES) else []
    hints += [SAME_SOFTWARE] if fields & set(SOFTWARE) else []
    return diagnose(
        "ranks agree",
        bool(ends) and not found,
        words or f"{len(ends)} ranks alike",
        "the same on every rank",
        "the ranks are not alike",
        words,
        "; ".join(hints or [SAME_CHOICES]),
    )


def _disagreements(ends: Sequence[RankEnd]) -> dict[str, str]:
    """Return each field that differs, with which ranks have which value."""
    hosts = {end.rank: end.host for end in ends}
    groups: dict[str, dict[str, list[int]]] = {}
    values: dict[str, Any] = {}
    for end in ends:
        for name, value in _compared(end):
            key = json.dumps(value, sort_keys=True)
            values[key] = value
            groups.setdefault(name, {}).setdefault(key, []).append(end.rank)
    found = {}
    for name, of_field in groups.items():
        largest_first = sorted(of_field.items(), key=lambda item: -len(item[1]))
        words = distinct_words(name, *(values[key] for key, _ in largest_first))
        parts = [f"{word} on {on_hosts(ranks, hosts)}" for word, (_, ranks) in zip(words, largest_first, strict=True)]
        if len(parts) > 1:
            found[name] = in_short(parts, NAMED)
    return found


def _compared(end: RankEnd) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what must be the same on every rank; of a mapping, of each entry that the rank has."""
    for item in MUST_MATCH:
        if not item.measured or item.name in NOT_OF_ALL:
            continue
        value = end.fingerprint.get(item.name)
        if isinstance(value, dict):
            yield from ((f"{item.name}: {key}", one) for key, one in value.items())
        elif value is not None or not (item.where_known or item.name in UNKNOWN):
            yield item.name, value
    yield "DistributedDataParallel", "used" if end.ddp else "not used"
    yield "communication hook", end.ddp and end.ddp.comm_hook
    yield "backend", end.backend


def on_hosts(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return ``rank 3 (node1)`` or ``ranks 0-2, 7 (node0, node1)``."""
    names = list(dict.fromkeys(hosts[rank] for rank in ranks))
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    numbers = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers} ({in_short(names, NAMED)})"


def _backend(spec: RunSpec, ends: Sequence[RankEnd]) -> Diagnosis:
    """Check the backend: the wanted one; with ``auto``, any that carries tensors of the rank's device."""
    seen = ", ".join(sorted({str(end.backend) for end in ends})) or "nothing"
    if spec.backend_wanted != "auto":
        ok = bool(ends) and all(end.backend == spec.backend for end in ends)
        return plain_check("backend", ok, seen, spec.backend)
    odd = [end for end in ends if end.backend in NO_SUCH_BACKEND.get(end.device.kind, ())]
    hosts = {end.rank: end.host for end in odd}
    measured = f"{odd[0].backend} on {on_hosts(list(hosts), hosts)}" if odd else seen
    wanted = f"one that carries tensors of a {spec.device} device"
    return plain_check("backend", bool(ends) and not odd, measured, wanted)


# Enough was measured


def _steps(spec: RunSpec, raw: RawRun) -> Diagnosis:
    counts = sorted({len(rank.steps) for rank in raw.ranks.values()})
    wanted = spec.warmup_steps + spec.min_steps
    return plain_check(
        "enough steps",
        len(counts) == 1 and counts[0] >= wanted,
        f"{' and '.join(map(str, counts)) or 'none'} optimizer steps",
        f"at least {wanted} on every rank (measure.warmup_steps + measure.min_steps), equally many",
    )


def _printed(spec: RunSpec, throughput: Throughput | None) -> Diagnosis:
    """Check that the regular expression matched a line after the warm-up."""
    count = len(throughput.blocks_samples_per_s) if throughput else 0
    return plain_check(
        "throughput printed",
        count > 0,
        f"{count} matches after the warm-up",
        f"at least 1 match of workload.throughput_regex ({spec.throughput_regex}) in the log",
    )


def _whole_log(raw: RawRun) -> Diagnosis:
    """Check that nothing that the program printed is missing: the rates in the middle of the run may be."""
    missing = sum(end.log.left_out_bytes + end.log.lost_bytes for end in raw.agents.values() if end.log)
    measured = f"{missing:,} bytes of the output are not in the log" if missing else "all of the output"
    return diagnose(
        "whole log",
        not missing,
        measured,
        "all of the output, as its throughput is read from it (workload.throughput_regex)",
        "the log is incomplete",
        measured,
        "print less, or raise logs.max_mb_per_node in config.yaml, and see that the disk of the results has room "
        "(df -h); then start snakemake again",
    )


def _samples(raw: RawRun, throughput: Throughput | None) -> Diagnosis:
    """Check that every rank counted samples from start to end; without them the throughput means nothing."""
    empty = [str(k) for k, rank in sorted(raw.ranks.items()) if rank.steps.samples.sum() == 0]
    rates = throughput.blocks_samples_per_s if throughput else ()
    idle = sum(rate == 0 for rate in rates)
    measured = "on every rank, all the time"
    if empty:
        measured = f"none on rank {', '.join(empty)}"
    elif idle:
        measured = f"none in {idle} of {len(rates)} blocks of steps"
    wanted = "training batches from a torch DataLoader on every rank, all the time"
    return plain_check(SAMPLES_SEEN, bool(raw.ranks) and not empty and not idle, measured, wanted)
