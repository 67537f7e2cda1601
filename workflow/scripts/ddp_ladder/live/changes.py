"""The lines of a live view in a pipe: each change once, with its time. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from ddp_ladder.common.formats import NARROW_SPACE, stage_name
from ddp_ladder.gates.verdict import outcome_line
from ddp_ladder.live.notes import notes_on
from ddp_ladder.live.picture import report_words, start_words
from ddp_ladder.live.scale_words import job_words
from ddp_ladder.live.state import LadderState, RunState, ScaleState
from ddp_ladder.run.progress import LINE_EVERY_FRACTION, outcome
from ddp_ladder.run.progress import state as steps_of

LINE_EVERY_S = 30.0  # of the progress of a run; rarer in a long one

Key = tuple[str, ...]


class Changes:
    """The lines that have been printed, and what is new since then."""

    def __init__(self) -> None:
        self._facts: dict[Key, str] = {}
        self._progress_s: dict[str, tuple[float, float]] = {}  # by run: first and next line

    def new_lines(self, state: LadderState) -> list[str]:
        """Return a line for each fact that is new or has changed."""
        facts = _facts(state)
        new = [text for key, text in facts.items() if self._is_new(key, text)]
        if ("slurm",) in self._facts and ("slurm",) not in facts:
            new.append("Slurm answers again")
        self._facts = facts
        new += [text for scale in state.scales if (text := self._progress(state, scale))]
        if state.is_over:
            new.append(f"the ladder has ended{f'; {report_words(state)}' if state.has_report else ''}")
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.now_s))
        return [f"{clock} {' '.join(text.split())}".replace(NARROW_SPACE, " ") for text in new]

    def _is_new(self, key: Key, text: str) -> bool:
        """Return True for a fact that has not been printed. A note, and Slurm's silence, are printed once."""
        return key not in self._facts or (key[0] not in ("note", "slurm") and self._facts[key] != text)

    def _progress(self, state: LadderState, scale: ScaleState) -> str:
        run = scale.running
        if run is None or run.progress is None or run.expected is None:
            return ""
        begun_s, due_s = self._progress_s.get(run.spec.name, (state.now_s, state.now_s))
        if state.now_s < due_s:
            return ""
        pause_s = max(LINE_EVERY_S, LINE_EVERY_FRACTION * (state.now_s - begun_s))
        self._progress_s[run.spec.name] = begun_s, state.now_s + pause_s
        steps = steps_of(run.progress, run.expected, state.left_at_most_s(scale))
        return f"{_label(scale)} {_run_name(run)}: {steps}{_usage(run)}"


def _facts(state: LadderState) -> dict[Key, str]:
    """Return what is so now, by what it is about; times that go on are left out."""
    facts: dict[Key, str] = {("results",): f"results: {state.results}"}
    facts["start",] = f"start: {_start(state)}"
    for scale in state.scales:
        own: dict[Key, str] = {("scale", scale.name): f"{_label(scale)}: {job_words(state, scale, times=False)[0]}"}
        if not scale.is_done:
            facts.update(own)
        for run in scale.runs:
            if run.record is not None and run.record.job is not None:
                facts["run", run.spec.name] = f"{_label(scale)} {_run_name(run)}: {outcome(run.record)}"
            elif run is scale.running:
                facts["run", run.spec.name] = f"{_label(scale)} {_run_name(run)}: started"
        facts.update(own)
    for stage, gate in state.gates.items():
        facts["gate", stage] = outcome_line(gate)
    if state.slurm.problem:
        facts["slurm",] = state.slurm.problem
    notes = [note for note in notes_on(state) if note != state.slurm.problem and not _is_of_run(note, state)]
    facts.update({("note", re.sub(r"\d+ (?:h|min|s)\b", "", note)): note for note in notes})  # times go on
    return facts


def _is_of_run(note: str, state: LadderState) -> bool:
    """Return True if the note repeats the line of a run that has failed."""
    names = (run.spec.name for scale in state.scales for run in scale.runs if run.has_failed)
    return any(note.startswith(f"{name}: ") for name in names)


def _start(state: LadderState) -> str:
    """Return the start without its age."""
    return start_words(state).partition(" (")[0]


def _label(scale: ScaleState) -> str:
    return f"{stage_name(scale.job.stage)} {scale.name}"


def _run_name(run: RunState) -> str:
    return f"{run.spec.variant}/{run.spec.mode}/r{run.spec.repeat}"


def _usage(run: RunState) -> str:
    """Return ``; CPU 34 %, GPU 92 %``, means over the nodes, as far as they are sampled."""
    cpus = [sample.cpu_fraction for sample in run.samples if sample.cpu_fraction is not None]
    gpus = [gpu.busy_fraction for one in run.samples for gpu in one.gpus if gpu.busy_fraction is not None]
    means: Mapping[str, list[float]] = {"CPU": cpus, "GPU": gpus}
    parts = [f"{name} {100 * sum(values) / len(values):.0f} %" for name, values in means.items() if values]
    return f"; {', '.join(parts)}" if parts else ""
