"""What a run used, from the samples of its nodes and the times of its ranks. A damaged file is a note: it fails no run.

A node whose agent left no end record may not have written all its samples, and is left out.
"""

from __future__ import annotations

from ddp_ladder.common.files import parsed_json
from ddp_ladder.common.formats import in_short
from ddp_ladder.measuring.statistic import Warmup
from ddp_ladder.nodes.critical_rank import StepParts
from ddp_ladder.nodes.files import MonitorFile
from ddp_ladder.nodes.findings import RunUse, findings
from ddp_ladder.nodes.read import NodeSamples, StepTimes, Timeline, parse_samples, timeline
from ddp_ladder.nodes.usage import RankUse, Usage, node_usage
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.records.raw_files import RankFiles, RawRun
from ddp_ladder.records.raw_models import AgentEnd, RankEnd
from ddp_ladder.records.record import Timing


def usage_of(raw: RawRun, warmup: Warmup, timing: Timing | None, step: StepParts | None) -> Usage | None:
    """Return what a run used; None if its nodes were not sampled. timing: None if the run has no figures."""
    if raw.run.monitor is None:
        return None
    notes: list[str] = []
    ranks = tuple(_rank_use(raw, end) for end in raw.ends)
    of_node: dict[int, list[RankUse]] = {}
    for rank in ranks:
        of_node.setdefault(rank.node_rank, []).append(rank)
    timelines = timelines_of(raw, warmup.steps)
    samples = read_node_samples(raw, notes)
    nodes = [node_usage(each, timelines[k], of_node.get(k, ())) for k, each in samples.items()]
    lacking: dict[str, list[str]] = {}
    for about in (each.about for each in samples.values()):
        for note in about.notes:
            lacking.setdefault(note, []).append(about.node)
    notes += [f"{in_short(there)}: {note}" for note, there in lacking.items()]
    good = tuple(node for node in nodes if node.is_enough)
    run = RunUse(
        nodes=good,
        ranks=ranks,
        simulated=len({*raw.run.nodes}) < len(raw.run.nodes),
        on_gpus=is_gpu(raw.spec.device),
        accumulates=raw.spec.accumulation is not None,
        data_wait_fraction=timing.data_wait_fraction if timing else None,
        exposed_comm_fraction=timing.exposed_comm_fraction if timing else None,
        step=step,
    )
    known = timing is not None and good and all(timelines[node.node_rank].is_known for node in good)
    return Usage(nodes=tuple(nodes), findings=findings(run) if known else (), notes=tuple(notes))


def timelines_of(raw: RawRun, warmup_steps: int) -> dict[int, Timeline]:
    """Return the timeline of each node whose agent has ended, by its rank: that of its first rank."""
    firsts: dict[int, StepTimes | None] = {}
    for files in raw.ranks.values():
        firsts.setdefault(raw.node_rank(files.end), _step_times(files, warmup_steps))
    return {k: timeline(end.launched_at_s, end.ended_at_s, firsts.get(k)) for k, end in _agents(raw).items()}


def read_node_samples(raw: RawRun, notes: list[str]) -> dict[int, NodeSamples]:
    """Return the samples of each node whose agent has ended, by its rank; ``notes`` gets why others have none."""
    found: dict[int, NodeSamples] = {}
    ends = _agents(raw)
    for node_rank, node in enumerate(raw.run.nodes):
        if node_rank not in ends:
            notes.append(f"{node}: its agent left no end record, so its samples may be incomplete")
            continue
        monitored = ends[node_rank].monitor
        if monitored is not None and monitored.error:
            notes.append(f"{node}: {monitored.error}")
        path, agent = raw.directory.monitor(node_rank), raw.run.first_agent(node_rank)
        try:
            about = MonitorFile.from_json(parsed_json(raw.content.read(path, agent), path))
            if (about.spec_hash, about.job, about.node_rank) != (raw.run.spec_hash, raw.run.job, node_rank):
                raise ValueError("it is of another run")
            path = raw.directory.samples(node_rank)
            samples = parse_samples(raw.content.read(path, agent).decode(), about)
            if monitored is not None and len(samples) < monitored.samples:
                raise ValueError(f"it has {len(samples)} samples, and {monitored.samples} were written")
            found[node_rank] = samples
        except FileNotFoundError:
            notes.append(f"{node}: there is no {path.name}")
        except (OSError, ValueError) as error:
            notes.append(f"{node}: {path.name} is damaged: {error}")
    return found


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
    )
