"""The judgement of a rehearsal: whether the second start of a script goes on where the first one ended.

It compares the states that the ranks left. What is not known is never taken for good.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from ddp_ladder.assembly.assemble import record_of
from ddp_ladder.common.files import readable, write_json
from ddp_ladder.common.findings import Finding, Severity
from ddp_ladder.common.formats import count, rank_numbers, significant
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Model, Several, Version3
from ddp_ladder.ledger.kept import GOOD, Kind, Resumption, resumptions
from ddp_ladder.measuring.fingerprint import changes
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.plan.short_runs import script_digest
from ddp_ladder.production.chain import End, end_of
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import TrainingState, read_progress
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.terms import PRODUCTION, REHEARSAL

LONGER = "raise production.rehearse_s, and run `snakemake rehearsal` again"
SHORTER = "lower production.rehearse_s, so that the signal comes before the training is complete"
BY_HAND = (
    "compare the steps and the loss that the script prints at the end of the first start and at the begin of the next "
    "one; if it goes on, set production.unrehearsed: true"
)
SAVE = "let the script save at SIGUSR1 and end with exit code 75, and load its last checkpoint at each start"


def _shown(severity: Severity, measured: str, next_step: str = "") -> Finding:
    """Return what a rehearsal has shown."""
    return Finding(kind="rehearsal", severity=severity, measured=measured, next=next_step)


@dataclass(frozen=True)
class Start:
    """One start of the script, as its files show it."""

    name: str
    end: End
    failure: Failure | None = None
    steps: int | None = None  # that its ranks made; None: no rank left an end record
    warned: int | None = None  # ranks that got the signal; None: its time did not come
    is_warned_early: bool = False  # its time came before the first step; False, too, if that is not known
    first: Mapping[int, TrainingState] = field(default_factory=dict)  # before the first step
    last: Mapping[int, TrainingState] = field(default_factory=dict)  # at the end
    saved_last: bool | None = None  # it saved after its last step; None: no save was seen

    @property
    def made_a_step(self) -> bool:
        return bool(self.steps or self.first)


def judge_rehearsal(first: RawRun, second: RawRun) -> tuple[Finding, ...]:
    """Return what two starts of a script show, first the judgement."""
    return judged(start_of(first, "the first start"), start_of(second, "the second start"))


def start_of(raw: RawRun, name: str) -> Start:
    """Return what a start has left."""
    record = record_of(raw)
    warned = [agent.warned for agent in raw.agents.values() if agent.warned is not None]
    return Start(
        name,
        end=end_of(record, raw),
        failure=record.failure,
        steps=max((end.steps.count for end in raw.ends), default=None),
        warned=sum(warned) if warned else None,
        is_warned_early=_is_warned_early(raw),
        first=raw.first_states,
        last={end.rank: end.last_state for end in raw.ends if end.last_state is not None},
        saved_last=_saved_last(raw),
    )


def _is_warned_early(raw: RawRun) -> bool:
    at_s = raw.run.warn_at_s
    columns = [rank.steps.ended_at_s for rank in raw.ranks.values()]
    began_s = [float(ends_s[0]) for ends_s in columns if ends_s is not None and len(ends_s)]
    with suppress(OSError, ValueError):
        if not began_s and (progress := read_progress(raw.directory.progress)):  # of a rank 0 that was killed
            began_s = [progress.updated_at_s - progress.elapsed_s]
    return at_s is not None and bool(began_s) and min(began_s) > at_s


def _saved_last(raw: RawRun) -> bool | None:
    """Return True if a rank saved after its last step; None if no save was seen."""
    saves = [
        (end_s, rank.steps.ended_at_s)
        for rank in raw.ranks.values()
        if rank.end.phases
        for _, end_s in rank.end.phases.saves_s
    ]
    if not saves:
        return None
    return any(ended_at_s is not None and len(ended_at_s) and end_s >= ended_at_s[-1] for end_s, ended_at_s in saves)


# The judgement


def judged(first: Start, second: Start) -> tuple[Finding, ...]:
    """Return what two starts show, first the judgement. Pure."""
    findings = [_end_finding(first), _end_finding(second)]
    found = _without_comparison(first, second)
    if found is None:
        ranks = resumptions(first.first, first.last, second.first)
        found = _judged_states(first, second, ranks)
        findings += _state_findings(ranks)
    return (found, *findings)


def _without_comparison(first: Start, second: Start) -> Finding | None:
    """Return what is known without a look at the states; None if they decide."""
    if first.end == "failed":
        return _failed_start(first)
    if not first.made_a_step:
        seen = f"no step of a torch optimizer was seen in {first.name}"
        return _shown("unknown", seen, f"if it needs longer for its first step, {LONGER}; {BY_HAND}")
    if first.end == "complete" and not first.warned:
        return _shown("unknown", f"the training was complete in {first.name}", SHORTER)
    if first.end == "complete" and not second.made_a_step and second.end == "complete":
        why = f"the training was complete in {first.name}: the second one ended without a step"
        return _shown("unknown", why, SHORTER)
    if second.end == "failed" and not second.made_a_step:
        return _failed_start(second)
    if not second.made_a_step:
        why = f"no step was seen in {second.name}, which had to load what the first one saved"
        return _shown("unknown", why, LONGER)
    if first.end == "complete":
        why = f"{first.name} ended with exit code 0 at the signal, and the training went on in {second.name}:"
        advice = "end with exit code 75 if there is more to do, and with 0 only after the last step"
        return _shown("error", f"{why} production would take it for complete", advice)
    return None


def _failed_start(start: Start) -> Finding:
    failure = start.failure
    cause = failure.in_words if failure else "it left no cause"
    advice = failure.next if failure else "look at its log"
    return _shown("error", f"{start.name} failed: {cause}", advice)


def _judged_states(first: Start, second: Start, ranks: Mapping[int, Resumption]) -> Finding:
    known = {rank: found for rank, found in ranks.items() if found.kind != "unknown"}
    if first.is_warned_early and any(found.kind not in GOOD for found in known.values()):
        why = f"the signal came before the end of the first step in {first.name}, so it shows nothing"
        return _shown("unknown", why, LONGER)
    if _differ([*known.values()]):
        return _different(known)
    some = min(known.values(), key=lambda found: found.after is None, default=None)
    if some is not None and (wrong := WRONG.get(some.kind)):
        return _shown("error", f"{second.name} {wrong[0]}", wrong[1])
    if some is not None and some.kind == "earlier" and first.end == "saved" and first.saved_last is not False:
        why = f"resumes from the wrong step: {first.name} ended with exit code 75, which says that its state is saved, "
        why += f"and {second.name} goes on from an earlier one{_lost(some)}"
        advice = "correct which checkpoint the script loads: the one with the most steps (as text, 9 comes after 10)"
        return _shown("error", why, advice)
    if second.end == "failed":
        return _failed_start(second)
    if some is None:
        why = f"whether {second.name} goes on cannot be seen: {_unseen(first, second)}"
        return _shown("unknown", why, BY_HAND)
    return _good(second, some, [*known])


def _differ(known: Sequence[Resumption]) -> bool:
    """Return True if ranks go on from different states. Of a good one without a last state, only its steps are known.

    The launcher ends the other ranks when the first one has ended.
    """
    kinds = {found.kind for found in known if found.after is not None or found.kind not in GOOD}
    steps = {found.begin.optimizer_steps for found in known}
    return len(kinds) > 1 or (kinds != {"end"} and len(steps) > 1)


def _good(second: Start, some: Resumption, ranks: Sequence[int]) -> Finding:
    at = some.begin.optimizer_steps
    step = "" if at is None else f", at step {at:,}"
    if some.kind == "end":
        why = f"{second.name} goes on where the first one ended{step} ({rank_numbers(ranks)})"
        return _shown("note", why)
    why = f"{second.name} goes on from a state that was saved before the end of the first one{step}{_lost(some)}"
    advice = f"{SAVE}; else each link repeats steps"
    return _shown("note", why, advice)


def _lost(some: Resumption) -> str:
    if some.after is None or some.lost_steps is None:
        return "; how many steps are lost is not known"
    made = (some.after.optimizer_steps or 0) - (some.before.optimizer_steps or 0)
    return f"; {some.lost_steps:,} of {count(made, 'step')} are lost"


WRONG: Mapping[Kind, tuple[str, str]] = {
    "beginning": ("starts from the beginning", SAVE),
    "no optimizer": (
        "has the parameters that were saved, and not the state of the optimizer, which begins anew",
        "save optimizer.state_dict() as well, and load it before the first step",
    ),
    "no parameters": (
        "has the state of the optimizer that was saved, and not the parameters, which begin anew",
        "save model.state_dict() as well, and load it before the first step",
    ),
    "no rate": (
        "has the parameters that were saved, and the learning rate of the beginning",
        "save the state_dict() of the learning rate's scheduler as well, and load it after the scheduler is made",
    ),
    "mixed": (
        "resumes from the wrong step: its parameters and the steps of its optimizer are not of the same step",
        "write model and optimizer into one file, after the same step, and load both from it",
    ),
}

IN_WORDS: Mapping[Kind, str] = {
    "end": "goes on where it ended",
    "earlier": "goes on from an earlier state",
    "beginning": "starts from the beginning",
    "no optimizer": "has no state of the optimizer",
    "no parameters": "has no parameters that were saved",
    "no rate": "has the learning rate of the beginning",
    "mixed": "has parameters and an optimizer of different steps",
}


def _different(known: Mapping[int, Resumption]) -> Finding:
    """Return the judgement of ranks that go on from different states."""
    groups: dict[tuple[Kind, int | None], list[int]] = {}
    for rank, found in known.items():
        groups.setdefault((found.kind, found.begin.optimizer_steps), []).append(rank)
    parts = [
        f"{rank_numbers(ranks)} {IN_WORDS[kind]}" + ("" if steps is None else f" (step {steps:,})")
        for (kind, steps), ranks in groups.items()
    ]
    some = any(kind in GOOD for kind, _ in groups) and any(kind not in GOOD for kind, _ in groups)
    what = "the state is saved, or loaded, on some ranks only" if some else "the ranks go on from different states"
    advice = "let rank 0 save one file where all ranks can read it, and all ranks load that; or each rank its own"
    return _shown("error", f"{what}: {'; '.join(parts)}", advice)


def _unseen(first: Start, second: Start) -> str:
    """Return why nothing is known of the states."""
    if not first.first or not second.first:
        return "no state of the parameters is known, as without a torch optimizer"
    if first.end == "time limit":
        return f"{first.name} was ended by its time limit and left no last state, and the optimizer counts no steps"
    return "the parameters did not change enough, or cannot be compared"


# What was measured


def _end_finding(start: Start) -> Finding:
    steps = "an unknown number of steps" if start.steps is None else count(start.steps, "step")
    severity: Severity = "note"
    if start.end == "saved":
        ended = f"exit code {os.EX_TEMPFAIL}: its state is saved"
    elif start.end == "complete":
        ended = "exit code 0: the training is complete"
    elif start.end == "failed":
        severity, ended = "error", start.failure.verdict if start.failure else "without a cause"
    else:
        severity = "warning"
        when = ", before its first step" if start.is_warned_early else ""
        nobody, ignored = "no rank had a handler of SIGUSR1 when it came", "it got SIGUSR1, and did not end"
        ended = f"by its time limit; {nobody if start.warned == 0 else ignored}{when}"
    return Finding(kind="start", severity=severity, place=start.name, measured=f"ended after {steps}, {ended}")


def _state_findings(ranks: Mapping[int, Resumption]) -> list[Finding]:
    """Return the states of the first rank, and of each that goes on from another kind of state."""
    shown: dict[Kind, int] = {}
    for rank, found in ranks.items():
        shown.setdefault(found.kind, rank)
    return [
        Finding(kind="state", severity="note", place=f"rank {rank}", measured=_states(ranks[rank]))
        for rank in shown.values()
    ]


def _states(found: Resumption) -> str:
    """Return the optimizer's steps and rates: first start at its begin, at its end, second start at its begin."""
    states = (found.before, found.after, found.begin)
    steps = ["unknown" if s is None or s.optimizer_steps is None else f"{s.optimizer_steps:,}" for s in states]
    rates = ["unknown" if s is None or not s.lr else significant(s.lr[0]) for s in states]
    where = ("begin of the first start", "its end", "begin of the second")
    parts = [f"{at}: step {n}, rate {rate}" for at, n, rate in zip(where, steps, rates, strict=True)]
    return "; ".join(parts)


FILE = "rehearsal.json"
VERDICTS: Mapping[Severity, str] = {"note": "passed", "error": "failed", "unknown": "unclear"}
COMMAND = "run `snakemake rehearsal` with the same profile: two links of production.rehearse_s each, at a small scale"


class RehearsalFile(Model):
    """The result of a rehearsal (results/production/rehearsal/rehearsal.json)."""

    schema_version: Version3 = 3
    of: Mapping[str, Any]  # what was rehearsed
    scale: str
    at_s: float  # unix time
    findings: Several[Finding] = Field(min_length=1, description="First the judgement, then what it is made of.")

    @property
    def result(self) -> Finding:
        return self.findings[0]

    @property
    def in_words(self) -> str:
        """Return ``passed on 2026-11-28 at 1x2``."""
        at = datetime.fromtimestamp(self.at_s, UTC).strftime("%Y-%m-%d")
        return f"{VERDICTS[self.result.severity]} on {at} at {self.scale}"


def rehearsal_directory(results: Path) -> Path:
    """Return the directory of the rehearsal in a ladder's results."""
    return results / PRODUCTION / REHEARSAL


def what_is_rehearsed(spec: RunSpec) -> dict[str, Any]:
    """Return what a rehearsal is of: the script, and all that decides how it is started but for scale and place."""
    same = {"script", "args_template", "env_template", "directory_template", "launcher", "python", "modules", "setup"}
    if spec.wrapper_template:  # it may keep a warning from the script
        same |= {"wrapper_template", "wrapper_per"}
    return {"script_sha256": script_digest(spec), **spec.model_dump(mode="json", include=same)}


def write_rehearsal(directory: Path, spec: RunSpec, findings: Sequence[Finding]) -> Path:
    """Write the result of a rehearsal; return its file. Raises NotWritten."""
    file = RehearsalFile(of=what_is_rehearsed(spec), scale=str(spec.scale), at_s=time.time(), findings=tuple(findings))
    write_json(path := directory / FILE, file.model_dump())
    return path


def read_rehearsal(directory: Path) -> RehearsalFile | None:
    """Read the result of a rehearsal; None if there is none that can be read."""
    return readable(RehearsalFile, directory / FILE)


def not_made(failure: Failure) -> Finding:
    """Return the result of a rehearsal in which the script was not started."""
    return _shown("unknown", f"the script was not started: {failure.why}", failure.next)


def rehearsed(results: Path, spec: RunSpec, settings: Settings) -> str:
    """Return the rehearsal of this script in words. Raises UserError if none holds, and the settings want one."""
    file = read_rehearsal(rehearsal_directory(results))
    if file is None:
        what, found, advice = "there is no result of a rehearsal that can be read", None, COMMAND
    elif changed := changes(file.of, what_is_rehearsed(spec)):
        since = f"{file.in_words}; {'; '.join(changed.values())}"
        what, found, advice = "what was rehearsed is not what production would start", since, COMMAND
    elif file.result.severity != "note":
        what, found, advice = "the rehearsal did not pass", file.result.measured, file.result.next
    else:
        return file.in_words
    if settings.experiment.production.unrehearsed:
        return f"{what}; unrehearsed: true starts without"
    allowed = "a rehearsal that passed, or `unrehearsed: true` below production"
    raise UserError(Problem(settings.config.where(PRODUCTION, "unrehearsed"), what, found, allowed, advice))
