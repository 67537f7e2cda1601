"""Where every second of a run went: each has one owner, and the owners add up to the wall time. Pure.

The seconds are those of the slowest rank, which the others wait for. Durations by different clocks (of the job, of the
rank's host) are subtracted from each other, never points in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.common.formats import significant
from ddp_ladder.measuring.pauses import Array, Pauses, covered_s, pauses_of, usual_s
from ddp_ladder.nodes.critical_rank import StepParts
from ddp_ladder.records.raw_files import RankFiles, RawRun

LAUNCHER, STARTUP, END, UNEXPLAINED = "launcher", "start-up", "end", "unexplained"
DATA, COMPUTATION, COMMUNICATION = "waiting for data", "computation", "exposed communication"
NOT_TOLD_APART, COMPILATION = "computation and communication", "compilation"
VALIDATION, SAVING, BETWEEN, BESIDE, PROFILE = "validation", "saving", "between passes", "beside steps", "profile"
OWNERS: Mapping[str, str] = {
    LAUNCHER: "before the ranks start and after they end: srun, torchrun, the software's set-up",
    STARTUP: "of a rank, until the end of its first step",
    DATA: "in steps",
    COMPUTATION: "the rest of the steps: forward and backward pass, optimizer, Python",
    COMMUNICATION: "in steps, and not hidden behind computation",
    NOT_TOLD_APART: "in the steps of ranks whose communication was not timed",
    COMPILATION: "in steps: torch.compile, which compiles anew for other shapes: pad to few shapes, or dynamic=True",
    VALIDATION: "passes over a DataLoader without a step, from model.eval() to model.train()",
    SAVING: "torch.save, torch.distributed.checkpoint",
    BETWEEN: "from a pass over the training data to the next one, such as the start of the loader's workers",
    BESIDE: "between two steps of a pass, longer than usual: validation without a DataLoader, samples, logging",
    END: "from the last step to the end of the script, without validation and saving",
    PROFILE: "the profiled steps after the training, and writing their trace",
    UNEXPLAINED: "in no step, and nothing of the above",
}
"""The owners in the order of a run, with what each has."""
NO_TRAINING = (LAUNCHER, STARTUP, END, PROFILE)
MOST_UNEXPLAINED = 0.05  # of the wall time


def saving_fraction(owners_s: Mapping[str, float]) -> float | None:
    """Return which share of the time after the start-up the run spent in saves; None if the owners are not known."""
    whole_s = sum(seconds for name, seconds in owners_s.items() if name not in (LAUNCHER, STARTUP, PROFILE))
    return owners_s.get(SAVING, 0.0) / whole_s if whole_s else None


def owners_of(raw: RawRun, step: StepParts | None) -> dict[str, float]:
    """Return the seconds of each owner; empty if the ends of the steps are not known on every rank.

    raw: after ``without_waits``, so that a wait for a rank that validates alone is in no step. step: splits the steps.
    """
    if raw.ended is None or raw.reads_log or not raw.has_all_ranks:
        return {}
    return owners_of_ranks(raw, step, raw.ended.wall_s)


def owners_of_ranks(raw: RawRun, step: StepParts | None, wall_s: float) -> dict[str, float]:
    """Return the seconds of each owner by the ranks that left files. wall_s: what the run took."""
    pauses = [pauses_of(files) for files in raw.ranks.values()]
    known = [each for each in pauses if each is not None]
    if not known or len(known) < len(pauses):
        return {}
    slowest = int(np.argmax([each.rows_s.sum() for each in known]))
    files, own = [*raw.ranks.values()][slowest], known[slowest]
    startup_s, most = _startup_s(raw, files), max(len(each.rows_s) for each in known)
    last = [_after_steps(*each) for each in zip(raw.ranks.values(), known, strict=True) if len(each[1].rows_s) == most]
    after_s, validating_s, saving_s = (max(of_ranks) for of_ranks in zip(*last, strict=True))
    profile_s = raw.profiling.took_s if raw.profiling else 0.0
    ending_s = _shares(after_s, {VALIDATION: validating_s, SAVING: saving_s, PROFILE: profile_s}, END)
    loop_s = _loop(own, known, files.end.phases.epoch_steps if files.end.phases else ())
    in_steps_s = _split(loop_s.pop(COMPUTATION), step)
    in_rank_s = startup_s + float((own.rows_s + own.idle_s).sum()) + after_s
    found = {LAUNCHER: max(0.0, wall_s - in_rank_s), STARTUP: startup_s, **in_steps_s}
    for part in (loop_s, ending_s):
        found.update({name: found.get(name, 0.0) + seconds for name, seconds in part.items()})
    return {
        name: max(0.0, found[name])
        for name in OWNERS
        if name in found and (found[name] or name not in (COMPILATION, BESIDE, PROFILE))
    }


def _startup_s(raw: RawRun, files: RankFiles) -> float:
    """Return the start-up; of a program that reports its own steps, all since its agent's start; 0 if unknown."""
    assert files.steps.ended_at_s is not None
    total_s = files.end.startup_s.get("total")
    if total_s is not None:
        return total_s
    node = raw.node_rank(files.end)
    begun = (end.launched_at_s for agent, end in raw.agents.items() if agent.node_rank == node)
    first_s = float(files.steps.ended_at_s[0])
    return max(0.0, first_s - next(begun, first_s))


def _after_steps(files: RankFiles, own: Pauses) -> tuple[float, float, float]:
    """Return how long a rank went on after its last step, also on a GPU that was behind, and validated, and saved."""
    phases, ends_s = files.end.phases, files.steps.ended_at_s
    assert ends_s is not None
    ended_s = float(ends_s[0] + (own.rows_s + own.idle_s).sum())
    edges_s = np.array([ended_s, max(ended_s, files.end.ended_at_s)])
    passes_s, saves_s = (phases.passes_s, phases.saves_s) if phases else ((), ())
    validating_s, both_s = (float(covered_s(edges_s, spans).sum()) for spans in (passes_s, (*passes_s, *saves_s)))
    return float(edges_s[1] - ended_s), validating_s, both_s - validating_s


def _shares(whole_s: float, parts_s: Mapping[str, float], rest: str) -> dict[str, float]:
    """Return the parts, as far as they fit into the whole, and the rest of it."""
    found = {}
    for name, part_s in parts_s.items():
        found[name] = min(part_s, whole_s)
        whole_s -= found[name]
    return {**found, rest: whole_s}


def _loop(own: Pauses, ranks: Sequence[Pauses], epoch_steps: Sequence[int]) -> dict[str, float]:
    """Return the owners of the time from the end of the first step to that of the last one; steps: COMPUTATION.

    What any rank validates or saves, the others wait for. Inside a step it is known only as far as that step is longer
    than usual: a save in the background costs nothing, and a step that compiles computes, too.
    """
    validating_s, saving_s, compiling_s, resting_s = (
        _longest([getattr(each, name) for each in ranks], len(own.rows_s))
        for name in ("validating_s", "saving_s", "compiling_s", "beside_s")
    )
    is_calm = (validating_s + saving_s + compiling_s) == 0
    room_s = np.maximum(own.rows_s - usual_s(own.rows_s, own.size, is_calm), 0.0)
    beside = [np.minimum(validating_s, own.idle_s)]
    beside.append(np.minimum(saving_s, own.idle_s - beside[0]))
    inside = [np.minimum(validating_s - beside[0], room_s)]
    inside.append(np.minimum(saving_s - beside[1], room_s - inside[0]))
    inside.append(np.minimum(compiling_s, room_s - inside[0] - inside[1]))
    rest_s = own.idle_s - beside[0] - beside[1]
    resting_s = np.minimum(rest_s, resting_s)
    later = [step for step in epoch_steps if step > 1]
    between = np.isin(np.arange(len(rest_s)), np.searchsorted(1 + np.cumsum(own.size), later))
    return {
        COMPUTATION: float((own.rows_s - inside[0] - inside[1] - inside[2]).sum()),
        COMPILATION: float(inside[2].sum()),
        VALIDATION: float((beside[0] + inside[0]).sum()),
        SAVING: float((beside[1] + inside[1]).sum()),
        BETWEEN: float(rest_s[between].sum()),
        BESIDE: float(resting_s[~between].sum()),
        UNEXPLAINED: float((rest_s - resting_s)[~between].sum()),
    }


def _longest(of_ranks: Sequence[Array], steps: int) -> Array:
    """Return the largest value of any rank for each of so many steps; ranks may have other numbers of them."""
    longest = np.zeros(steps)
    for of_rank in of_ranks:
        shared = min(steps, len(of_rank))
        longest[:shared] = np.maximum(longest[:shared], of_rank[:shared])
    return longest


def _split(steps_s: float, step: StepParts | None) -> dict[str, float]:
    """Split the time of all steps as the mean measured step is split along its critical rank."""
    if step is None or not step.step_s:
        return {NOT_TOLD_APART: steps_s}
    scale = steps_s / step.step_s
    data_s = scale * (step.data_wait_s + (step.imbalance_data_s or 0.0))
    if step.exposed_comm_s is None:
        return _shares(steps_s, {DATA: data_s}, NOT_TOLD_APART)
    return _shares(steps_s, {DATA: data_s, COMMUNICATION: scale * step.exposed_comm_s}, COMPUTATION)


def remark_on_owners(owners_s: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a remark if too much of the wall time has no known owner."""
    wall_s, unexplained_s = sum(owners_s.values()), owners_s.get(UNEXPLAINED, 0.0)
    if unexplained_s > MOST_UNEXPLAINED * wall_s:
        yield remark(
            "unexplained",
            f"{significant(unexplained_s)} s of {significant(wall_s)} s are unexplained (in no step, and neither "
            "validation, saving nor between passes): the figure is doubtful",
            "look at what the script does between its steps: if it is part of the training, only samples / time "
            "of the whole loop holds",
        )
