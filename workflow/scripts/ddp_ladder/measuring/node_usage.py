"""What a run used, from the samples of its nodes and the times of its ranks. A damaged file is a note: it fails no run.

A node whose agent left no end record may not have written all its samples, and is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ddp_ladder.common.files import parsed_json
from ddp_ladder.common.formats import grouped, hostlist
from ddp_ladder.measuring.statistic import Warmup
from ddp_ladder.nodes.critical_rank import StepParts
from ddp_ladder.nodes.findings import RunUse, findings
from ddp_ladder.nodes.sampler import MonitorFile
from ddp_ladder.nodes.usage import NodeSamples, RankUse, StepTimes, Timeline, Usage, node_usage, parse_samples, timeline
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_files import RankFiles, RawRun
from ddp_ladder.records.raw_models import AgentEnd, RankEnd
from ddp_ladder.records.record import Timing


def usage_of(raw: RawRun, warmup: Warmup, timing: Timing | None, step: StepParts | None) -> Usage | None:
    """Return what a run used; None if its nodes were not sampled. timing: None if the run has no figures."""
    if raw.run.monitor is None:
        return None
    ranks = tuple(_rank_use(raw, end) for end in raw.ends)
    of_node = grouped((rank.node_rank, rank) for rank in ranks)
    timelines = timelines_of(raw, warmup.steps)
    samples, lacking = read_node_samples(raw)
    nodes = [node_usage(of_agent, timelines[k], of_node.get(k, ())) for k, of_agent in samples.items()]
    for of_agent in samples.values():
        for note in of_agent.about.notes:
            lacking[note].append(of_agent.about.node)
    for node in nodes:
        if node.gpus and len({rank.gpu for rank in of_node.get(node.node_rank, ()) if rank.gpu}) > len(node.used_gpus):
            lacking["ranks trained on GPUs that were not sampled"].append(node.node)
    run = RunUse(
        nodes=tuple(node for node in nodes if node.samples > 1),  # a single one may be chance
        ranks=ranks,
        simulated=len({*raw.run.nodes}) < len(raw.run.nodes),
        on_gpus=is_gpu(raw.spec.device),
        accumulates=raw.spec.accumulation is not None,
        data_wait_fraction=timing.data_wait_fraction if timing else None,
        exposed_comm_fraction=timing.exposed_comm_fraction if timing else None,
        step=step,
    )
    known = timing is not None and all(timelines[node.node_rank].is_known for node in run.nodes)
    return Usage(nodes=tuple(nodes), findings=findings(run) if known else (), notes=notes_on(lacking))


def notes_on(lacking: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return ``node[0-1]: there is no node<k>.csv`` for each lack. lacking: the nodes that have it."""
    return tuple(f"{hostlist(nodes)}: {note}" for note, nodes in lacking.items())


def timelines_of(raw: RawRun, warmup_steps: int) -> dict[int, Timeline]:
    """Return the timeline of each node whose agent has ended, by its rank: that of its first rank."""
    firsts: dict[int, StepTimes | None] = {}
    for files in raw.ranks.values():
        firsts.setdefault(raw.node_rank(files.end), _step_times(files, warmup_steps))
    return {k: timeline(end.launched_at_s, end.ended_at_s, firsts.get(k)) for k, end in _agents(raw).items()}


def read_node_samples(raw: RawRun) -> tuple[dict[int, NodeSamples], defaultdict[str, list[str]]]:
    """Return the samples of each node whose agent has ended, by its rank; and why others have none, with these."""
    by_node: dict[int, NodeSamples] = {}
    lacking = defaultdict[str, list[str]](list)
    ends = _agents(raw)
    for node_rank, node in enumerate(raw.run.nodes):
        if node_rank not in ends:
            lacking["its agent left no end record, so its samples may be incomplete"].append(node)
            continue
        monitored = ends[node_rank].monitor
        if monitored is not None and monitored.error:
            lacking[monitored.error].append(node)
        path, agent = raw.directory.monitor(node_rank), raw.run.first_agent(node_rank)
        try:
            about = MonitorFile.from_json(parsed_json(raw.content.read(path, agent), path))
            if (about.spec_hash, about.job, about.node_rank) != (raw.run.spec_hash, raw.run.job, node_rank):
                raise ValueError("it is of another run")
            path = raw.directory.samples(node_rank)
            samples = parse_samples(raw.content.read(path, agent).decode(), about)
            if monitored is not None and len(samples) < monitored.samples:
                raise ValueError(f"it has {len(samples)} samples, and {monitored.samples} were written")
            by_node[node_rank] = samples
        except FileNotFoundError:
            lacking[f"there is no {path.name.replace(f'node{node_rank}', 'node<k>')}"].append(node)
        except (OSError, ValueError) as error:
            lacking[f"{path.name} is damaged: {error}"].append(node)
    return by_node, lacking


def _agents(raw: RawRun) -> dict[int, AgentEnd]:
    """Return the end of the agent of each node that sampled it, by the node's rank: its only one, or its first."""
    return {agent.node_rank: end for agent, end in raw.agents.items() if not agent.local_rank}


def _step_times(files: RankFiles, warmup_steps: int) -> StepTimes | None:
    steps, phases = files.steps, files.end.phases
    if steps.ended_at_s is None:
        return None
    epochs, validations_s = (phases.epoch_steps, phases.validations_s) if phases else ((), ())
    rows = sorted({steps.rows_of(step) for step in epochs})
    return StepTimes(steps.ended_at_s, steps.step_time_s, steps.rows_of(warmup_steps), rows, validations_s)


def _rank_use(raw: RawRun, end: RankEnd) -> RankUse:
    return RankUse(
        rank=end.rank,
        local_rank=end.local_rank,
        node_rank=raw.node_rank(end),
        gpu=end.device.id if is_gpu(end.device.kind) else None,
        workers=end.fingerprint.num_workers,
        threads=end.fingerprint.threads,
    )
