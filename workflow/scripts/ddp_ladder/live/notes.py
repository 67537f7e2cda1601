"""What a view says below the figures: failures, findings, closed gates, and what cannot be seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_ladder.common.formats import duration, stage_name
from ddp_ladder.live.scale_words import failure_words
from ddp_ladder.live.state import LadderState, ScaleState


def notes_on(state: LadderState) -> Iterator[str]:
    """Yield notes, the most important first."""
    if state.slurm.problem:
        yield state.slurm.problem
    yield from state.problems
    if state.start is not None and state.is_alive is False:
        yield "the start was killed; the next one goes on from what it has left"
    if state.is_silent and state.start is not None:
        process = state.start.process
        silent = f"no job and no run for {duration(state.quiet_s)}"
        yield f"{silent}; whether the start still runs is seen only on {process.host}: ps -p {process.pid}"
    for stage, gate in state.gates.items():
        if not gate.is_open and gate.next:
            yield f"{stage_name(stage)}, next: {gate.next}"
    for scale in state.scales:
        yield from _failures(scale)
    for scale in reversed(state.scales):  # the newest first
        yield from _findings(scale)


def _failures(scale: ScaleState) -> Iterator[str]:
    if scale.bad_end is not None:
        yield f"{scale.name}, next: {scale.bad_end.next}"
    for name, words in failure_words(scale):
        yield f"{name}: {words}"


def _findings(scale: ScaleState) -> Iterator[str]:
    """Yield what the preflight found, and what the runs used; of one kind the first, as repeats mostly agree."""
    if scale.preflight is not None:
        for finding in scale.preflight.findings:
            yield f"{scale.name} preflight: {finding.in_words}"
    usages = [(run, run.record.usage) for run in scale.runs if run.record is not None and run.record.usage is not None]
    kinds = set()
    for run, usage in usages:
        for found in usage.findings:
            place = (found.kind, found.node, found.gpu)
            if place not in kinds:
                kinds.add(place)
                yield f"{run.spec.name}: {found.in_words}"
