"""A rank's end record and steps, judged anew from its log by the rules of now. Pure."""

from __future__ import annotations

from collections import Counter

import numpy as np
from ddp_ladder_instrument.judgement import judged_fields
from ddp_ladder_instrument.log import read_log
from ddp_ladder_instrument.machine import RULES, Batches, Judged, judge
from ddp_ladder_instrument.table import StepTable

from ddp_ladder.common.files import sha256
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.steps import Steps

COUNTED = ("counted", "samples_per_step")


def is_of_other_rules(end: RankEnd) -> bool:
    """Return True if other rules have judged a rank's log, and those of now may judge it differently."""
    return end.log is not None and end.rules != RULES and end.log["source"] in COUNTED


def judged_anew(end: RankEnd, steps: Steps, content: bytes) -> tuple[RankEnd, Steps]:
    """Return a rank's end record and steps by the rules of now. content: of its log. steps: as they were judged before.

    Raises ValueError if the log is not that of the end record.
    """
    facts = end.log or {}
    if sha256(content) != facts["sha256"]:
        raise ValueError("its digest is not the one in the rank's end record")
    judged = judge(read_log(content), facts["samples_per_step"], facts["later_stage"])
    if facts["is_cut"]:
        judged = judged.join(_as_judged_before(end, steps))
    fields = judged_fields(judged, facts)
    if facts["is_cut"]:  # these are of the whole run
        for name in ("loader", "first_samples", "batches", "communication", "joins_uneven"):
            del fields[name]
    changed = {
        **end.model_dump(mode="json"),
        **fields,
        "startup_s": {**end.startup_s, **fields["startup_s"]},
        "fingerprint": end.fingerprint.replace(**fields["fingerprint"]).model_dump(),
        "steps": {"count": judged.table.count, "sha256": end.steps.sha256},
    }
    return RankEnd.from_json(changed), Steps.of(np.array(judged.table.columns()))


def _as_judged_before(end: RankEnd, steps: Steps) -> Judged:
    """Return what the end record and its steps say: of a long run the log keeps the first steps alone."""
    unknown, none = np.full(len(steps.size), np.nan), np.zeros(len(steps.size), np.int64)
    ended_at_s, collectives_s = (unknown if each is None else each for each in (steps.ended_at_s, steps.collectives_s))
    figures = (steps.samples, steps.padding_samples, steps.step_time_s, steps.data_wait_s, ended_at_s, collectives_s)
    rows = zip(*(column.tolist() for column in (*figures, none, none, none, ended_at_s)), strict=True)
    table = StepTable.of_rows(rows, steps.count)
    phases = end.phases.model_dump(mode="json") if end.phases else {}
    return Judged(table, phases, None, {}, Counter(), -1, {}, Batches(), False)
