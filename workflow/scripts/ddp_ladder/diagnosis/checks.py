"""Sanity checks of one run: did it work, apart from how well. Every check shows what was measured and wanted. Pure.

One rank that did not run what the others ran, or was not where it was planned, spoils all figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_ladder_instrument.contract import HOOK

from ddp_ladder.common.formats import count, grouped, in_short, rank_numbers
from ddp_ladder.diagnosis.correctness import (
    NAMED,
    Diagnosis,
    diagnose,
    one_model,
    samples_per_step_of,
    world,
)
from ddp_ladder.diagnosis.failures import is_complete
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, cut
from ddp_ladder.measuring.fingerprint import MUST_MATCH, OWN_DIRECTORY_ADVICE, distinct_words, samples_of_a_step
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.launchers import LAUNCHERS
from ddp_ladder.records.raw_files import RawRun, host_name
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.record import SOURCE_IN_WORDS, Throughput

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


def diagnoses(raw: RawRun, throughput: Throughput | None) -> Iterator[Diagnosis]:
    """Yield all sanity checks of a run, with their failures. A check that lacks its evidence fails."""
    spec, ends = raw.spec, raw.ends
    if not spec.instrument:
        yield _exit_codes(raw)
        return
    measured = _problems(raw) or f"{len(ends)} ranks, {len(raw.hosts)} nodes"
    wanted = f"the files of {spec.world_size} ranks and {spec.nodes} nodes"
    yield diagnose("complete", not raw.problems, measured, wanted)
    yield _exit_codes(raw)
    seen = any(end.parameters for end in ends)
    own_account = throughput.source if throughput and throughput.source in OWN_ACCOUNT and not seen else None
    if not (raw.reads_log or own_account):
        yield from _hooks(ends)
    yield world(raw, own_account is not None)
    yield _placement(raw)
    yield _ranks_agree(ends)
    if own_account:
        wanted = "the program's own account, as there is no better one"
        yield diagnose("evidence", True, SOURCE_IN_WORDS[own_account], wanted)
    else:
        yield from one_model(raw)
    if LAUNCHERS[spec.launcher].sets_ranks:
        yield _backend(spec, ends)
    if raw.reads_log:
        yield _whole_log(raw)
        yield _printed(spec, throughput)
        return
    yield _steps(raw)
    yield _samples(raw, throughput)
    yield from _global_batch(raw, throughput)


def _problems(raw: RawRun) -> str:
    """Return which files are missing or damaged, of many how many there are; empty if there are none."""
    many = f"{len(raw.problems):,} files are missing or damaged: " if len(raw.problems) > NAMED else ""
    return many + in_short(raw.problems, NAMED, "; ")


def _exit_codes(raw: RawRun) -> Diagnosis:
    failed = [(str(end.exception or end.exit_code), end.rank) for end in raw.ends if end.failed]
    ranks = grouped((cut(how, LONGEST_OF_SEVERAL), rank) for how, rank in failed)  # by how they ended
    ends = raw.agents.items()
    agents = grouped((str(end.signal or end.exit_code), str(agent)) for agent, end in ends if end.failed)
    bad = [in_short([f"{rank_numbers(alike)}: {how}" for how, alike in ranks.items()], NAMED)] if ranks else []
    bad += [in_short([f"{in_short(alike, NAMED)}: {how}" for how, alike in agents.items()], NAMED)] if agents else []
    outcome = raw.ended.outcome if raw.ended else "no end recorded"
    bad += [outcome] if outcome != "finished" else []
    after = bool(bad) and is_complete(raw)
    measured = ("after the training: " if after else "") + (", ".join(bad) or "all 0")
    seen = bool(raw.ends) if raw.spec.instrument else len(raw.agents) == raw.run.agents
    return diagnose("exit codes", seen and (not bad or after), measured, "0 on every rank and node")


def _hooks(ends: Sequence[RankEnd]) -> Iterator[Diagnosis]:
    """Check that no hook of the instrument failed: what it did not see any more is missing in the figures."""
    notes = ((end.rank, note) for end in ends for note in end.not_measured if note.startswith(HOOK))
    failed = [f"rank {rank}: {cut(note, LONGEST_OF_SEVERAL)}" for rank, note in notes]
    if failed:
        measured, wanted = in_short(failed, NAMED, "; "), "hooks of instrument.py that see the whole training"
        verdict = "a hook of instrument.py failed, and the figures are incomplete"
        next_step = (
            "report this defect of ddp-ladder, with nodes/*.zip of the run (without the ladder: ranks/); until it is "
            "fixed, let the script print its throughput, and set workload.throughput_regex"
        )
        yield diagnose("hooks", False, measured, wanted, verdict, next_step=next_step)


def _placement(raw: RawRun) -> Diagnosis:
    """Check that agents and ranks ran where the job put them. Only the short host names are compared."""
    spec, wrong = raw.spec, [*_misplaced(raw)]
    hosts = len({*raw.hosts.values()})
    measured = f"{len(raw.ends)} ranks in the order of {spec.nodes} nodes on {hosts} hosts" if raw.ends else "nothing"
    measured = in_short(wrong, NAMED, "; ") or measured
    wanted = f"ranks in the order of {in_short(raw.run.nodes)}, {spec.gpus_per_node} on each"
    verdict, ok = "agents or ranks are not where the job put them", bool(raw.ends and raw.agents and not wrong)
    next_step = (
        "compare `srun --label hostname` with the job's nodes: each must be a machine of its own; let the script take "
        "its rank from the environment (RANK, LOCAL_RANK), and stay in the processes that the launcher started; a "
        "container has to keep its node's host name (no --uts and no --hostname in software.container.args)"
    )
    return diagnose("placement", ok, measured, wanted, verdict, measured, next_step)


def _misplaced(raw: RawRun) -> Iterator[str]:
    """Yield each agent, node and rank that is not where it was put; causes first."""
    nodes = raw.run.nodes
    names: dict[str, dict[str, None]] = {}
    for agent, end in raw.agents.items():
        node = nodes[agent.node_rank]
        names.setdefault(host_name(end.host), {})[node] = None  # simulated nodes share one name and one host
        if host_name(end.node) != host_name(node):
            yield f"{agent} was {end.node}, not {node}"
    yield from (f"{in_short([*several])} are one host, {host}" for host, several in names.items() if len(several) > 1)
    for rank in raw.ends:
        wanted = divmod(rank.rank, raw.spec.gpus_per_node)
        place = (raw.node_rank(rank), rank.local_rank)
        if host_name(rank.host) not in names:
            yield f"rank {rank.rank} was on {rank.host}, where no agent of the run was"
        elif place != wanted:
            places = [f"local rank {local} of node {k} ({nodes[k]})" for k, local in (place, wanted)]
            yield f"rank {rank.rank} was {places[0]}, not {places[1]}"


def _ranks_agree(ends: Sequence[RankEnd]) -> Diagnosis:
    differing = _disagreements(ends)
    fields = {name.partition(":")[0] for name in differing}
    words = in_short([f"{name}: {text}" for name, text in differing.items()], NAMED, "; ")
    hints = [SAME_FILES] if fields & set(FILES) else []
    hints += [SAME_SOFTWARE] if fields & set(SOFTWARE) else []
    ok, measured, next_step = bool(ends) and not differing, words or f"{len(ends)} ranks alike", "; ".join(hints)
    verdict = "the ranks are not alike"
    return diagnose("ranks agree", ok, measured, "the same on every rank", verdict, words, next_step or SAME_CHOICES)


def _disagreements(ends: Sequence[RankEnd]) -> dict[str, str]:
    """Return each field that differs, with which ranks have which value."""
    # By all that is compared: hardly ever more than a few.
    alike = grouped((json.dumps([*_compared(end)], sort_keys=True), end) for end in ends)
    fields: dict[str, dict[str, list[RankEnd]]] = {}
    for some in alike.values():
        for name, value in _compared(some[0]):
            fields.setdefault(name, {}).setdefault(json.dumps(value, sort_keys=True), []).extend(some)
    differing = {}
    for name, of_field in fields.items():
        if len(of_field) > 1:
            largest_first = sorted(of_field.items(), key=lambda item: -len(item[1]))
            words = distinct_words(name, *(json.loads(value) for value, _ in largest_first))
            parts = [f"{word} on {_places(some)}" for word, (_, some) in zip(words, largest_first, strict=True)]
            differing[name] = in_short(parts, NAMED)
    return differing


def _compared(end: RankEnd) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what must be the same on every rank; of a mapping, of each entry that the rank has."""
    for item in MUST_MATCH:
        if not item.measured or item.name in (*NOT_OF_ALL, *end.fingerprint.unread):
            continue  # of what is unread a remark says it, and no ratio is given
        value = getattr(end.fingerprint, item.name)
        if isinstance(value, Mapping):
            yield from ((f"{item.name}: {key}", of_key) for key, of_key in value.items())
        elif value is not None or not (item.where_known or item.name in UNKNOWN):
            yield item.name, value
    yield "DistributedDataParallel", "used" if end.ddp else "not used"
    yield "communication hook", end.ddp and end.ddp.comm_hook
    yield "backend", end.backend


def _places(ends: Sequence[RankEnd]) -> str:
    """Return ``rank 3 (node1)`` or ``ranks 0-6 (node0, node1)``."""
    ends = sorted(ends, key=lambda end: end.rank)
    names = list(dict.fromkeys(end.host for end in ends))
    return f"{rank_numbers([end.rank for end in ends])} ({in_short(names, NAMED)})"


def _backend(spec: RunSpec, ends: Sequence[RankEnd]) -> Diagnosis:
    seen = sorted({str(end.backend) for end in ends})
    is_free = spec.backend_wanted == "auto"
    wanted = "any (network.backend is auto)" if is_free else spec.backend
    return diagnose("backend", bool(ends) and (is_free or seen == [wanted]), ", ".join(seen) or "nothing", wanted)


def _steps(raw: RawRun) -> Diagnosis:
    spec = raw.spec
    counts = sorted({rank.steps.count for rank in raw.ranks.values()})
    made, wanted = min(counts, default=0), spec.warmup_steps + spec.min_steps
    limits = sorted({end.ended_by for end in raw.ends} & {"max_steps", "max_seconds"})
    own_end = "train longer (more epochs or data in workload.args), lower workload.batch_per_gpu"
    longer = f"raise measure.{limits[0]}" if limits else own_end
    lower = f"lower measure.min_steps to {made - spec.warmup_steps} or less"
    if made <= spec.warmup_steps:
        lower = f"lower measure.warmup_steps and measure.min_steps to {made} or less together"
    return diagnose(
        "enough steps",
        len(counts) == 1 and made >= wanted,
        f"{in_short(counts, NAMED, ' and ') or 'none'} optimizer steps",
        f"at least {wanted} on every rank (measure.warmup_steps + measure.min_steps), equally many",
        next_step=f"{longer}, or {lower} in config.yaml, and start snakemake again\n{OWN_DIRECTORY_ADVICE}",
        failure_kind="too few steps",
    )


def _printed(spec: RunSpec, throughput: Throughput | None) -> Diagnosis:
    """Check that the regular expression matched a line after the warm-up."""
    count = len(throughput.blocks_samples_per_s) if throughput else 0
    wanted = f"at least 1 match of workload.throughput_regex ({spec.throughput_regex}) in the log"
    return diagnose("throughput printed", count > 0, f"{count} matches after the warm-up", wanted)


def _whole_log(raw: RawRun) -> Diagnosis:
    """Check that nothing that the program printed is missing: the rates in the middle of the run may be."""
    missing = sum(end.log.left_out_bytes + end.log.lost_bytes for end in raw.agents.values() if end.log)
    measured = f"{missing:,} bytes of the output are not in the log" if missing else "all of the output"
    wanted = "all of the output, as its throughput is read from it (workload.throughput_regex)"
    next_step = (
        "print less, or raise logs.max_mb_per_node in config.yaml, and see that the disk of the results has room "
        "(df -h); then start snakemake again"
    )
    return diagnose("whole log", not missing, measured, wanted, "the log is incomplete", measured, next_step)


def _samples(raw: RawRun, throughput: Throughput | None) -> Diagnosis:
    """Check that every rank counted samples from start to end; without them the throughput means nothing."""
    empty = [k for k, rank in raw.ranks.items() if rank.steps.samples.sum() == 0]
    rates = throughput.blocks_samples_per_s if throughput else ()
    idle = sum(rate == 0 for rate in rates)
    measured = f"none in {idle} of {len(rates)} blocks of steps" if idle else "on every rank, all the time"
    if empty:
        measured = f"none on {rank_numbers(empty)}"
    wanted = "training batches from a torch DataLoader on every rank, all the time"
    passes = max((end.fingerprint.backward_passes or 1 for end in raw.ends), default=1)
    why = f" (it has {passes} backward passes: if each has a batch of its own)" if passes > 1 else ""
    next_step = (
        "set workload.samples_per_step in config.yaml to the samples that one process takes in one optimizer "
        f'step, such as "{samples_per_step_of(raw.spec, passes)}"{why}; where they differ from step to step, let the '
        "script write its steps to the file that DDP_LADDER_METRICS names (docs/my-script.md)"
    )
    ok = bool(raw.ranks) and not empty and not idle
    return diagnose("samples seen", ok, measured, wanted, next_step=next_step)


def _global_batch(raw: RawRun, throughput: Throughput | None) -> Iterator[Diagnosis]:
    """Check that the script accumulated as workload.global_batch asks; nothing without it or without samples."""
    spec, seen = raw.spec, samples_of_a_step(raw)
    if spec.accumulation is None or seen is None:
        return
    next_step = (
        'in workload.args pass "{batch_per_gpu}" to the option for the batch of one GPU and "{accumulation}" to that '
        "for accumulated batches; an epoch must have more batches than one step accumulates"
    )
    if throughput and throughput.source == "guessed":
        next_step = "the number of samples is a guess: set workload.samples_per_step in config.yaml"
    gpus, measured = count(spec.gpus, "GPU"), f"{seen} samples in the median step of all ranks"
    wanted = f"{spec.global_batch}: {gpus} x {spec.accumulation} batches x {spec.batch_per_gpu} samples"
    verdict = "the script does not train with workload.global_batch"
    yield diagnose("global batch", seen == spec.global_batch, measured, wanted, verdict, next_step=next_step)
