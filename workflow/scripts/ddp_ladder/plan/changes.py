"""Changes between two plans in words, so that results are not taken for those of changed settings."""

from __future__ import annotations

from ddp_ladder.common.formats import count, in_short
from ddp_ladder.plan.plan import Plan


def changes_in_words(then: Plan, now: Plan) -> str:
    """Return a warning for results of plan ``then`` shown under the settings of ``now``; empty if nothing differs.

    Compares only what decides figures and gates; another queue or run time changes neither.
    """
    before, after = (
        {run.name: run.hash for job in plan.jobs for run in (*job.runs, *job.more)} for plan in (then, now)
    )
    other = [name for name in before if name in after and before[name] != after[name]]
    gone = [name for name in before if name not in after]
    added = [name for name in after if name not in before]
    gates = [stage for stage in then.stages if stage in now.gates and then.gates.get(stage) != now.gates[stage]]
    parts = [
        f"{count(len(names), 'run')} {what}: {in_short(names)}"
        for names, what in ((other, "of other settings"), (gone, "no longer planned"), (added, "not shown"))
        if names
    ]
    if gates:
        parts.append(f"other thresholds: {', '.join(gates)}")
    if then.first_scale != now.first_scale:
        parts.append(f"the ladder started at {then.first_scale}, and now starts at {now.first_scale}")
    if then.may_differ != now.may_differ:
        parts.append("another fingerprint.may_differ")
    if not parts:
        return ""
    return (
        "the settings have changed since these runs were planned, and the results shown are of the earlier settings "
        f"({'; '.join(parts)}). Next: start snakemake again: it measures what has changed, and judges the gates"
    )
