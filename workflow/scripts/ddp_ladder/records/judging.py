"""A rank's end record and steps, judged anew from its log by the rules of now. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from ddp_ladder_instrument.contract import DDP_COLUMNS, HEADER
from ddp_ladder_instrument.judgement import judged_fields
from ddp_ladder_instrument.log import Log, read_log
from ddp_ladder_instrument.machine import RULES, Batches, Judged, judge
from ddp_ladder_instrument.table import DdpTimes, StepTable
from numpy.typing import NDArray

from ddp_ladder.common.files import sha256
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.steps import Steps

COUNTED = ("counted", "samples_per_step")


def is_of_other_rules(data: Any) -> bool:
    """Return True if other rules have judged a rank's log, and those of now may judge it differently.

    data: of the rank's end record, not yet checked.
    """
    facts = data.get("log") if isinstance(data, dict) else None
    return isinstance(facts, dict) and data.get("rules") != RULES and facts.get("source") in COUNTED


def log_of(data: dict[str, Any], content: bytes) -> Log:
    """Return the log of an end record. Raises ValueError if this content is not that, or no log."""
    if sha256(content) != data["log"].get("sha256"):
        raise ValueError("its digest is not the one in the rank's end record")
    return read_log(content)


def to_judge_anew(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an end record without the start-up that other rules have judged: it may be impossible."""
    startup_s = data.get("startup_s")
    if not isinstance(startup_s, dict):
        return data
    return {**data, "startup_s": {**startup_s, "first_step": None, "total": None}}


def judged_anew(end: RankEnd, matrix: NDArray[np.float64], log: Log) -> tuple[RankEnd, Steps]:
    """Return a rank's end record and steps by the rules of now. matrix: of its steps, as they were judged before.

    Raises ValueError if that is not possible.
    """
    facts = {"places": (), **(end.log or {})}  # logs of earlier versions have no places
    judged = judge(log, facts["samples_per_step"], facts.get("beside", ()))
    kept = judged.table.single
    if facts["is_cut"]:
        judged = judged.join(_as_judged_before(end, matrix))
        if (np.diff(judged.table.ended_at_s[kept:]) < 0).any():
            what = "the version that measured it has counted some of them twice: measure the run again"
            raise ValueError(f"its steps after the first {kept:,} go back in time, as {what}")
    fields = judged_fields(judged, facts)
    if facts["is_cut"]:  # these are of the whole run
        for name in ("loader", "first_samples", "batches", "communication", "joins_uneven", "places"):
            del fields[name]
    changed = {
        **end.model_dump(mode="json"),
        **fields,
        "startup_s": {**end.startup_s, **fields["startup_s"]},
        "fingerprint": end.fingerprint.replace(**fields["fingerprint"]).model_dump(),
        "steps": {"count": judged.table.count, "sha256": end.steps.sha256},
    }
    return RankEnd.from_json(changed), Steps.of(np.array(judged.table.columns()))


def _as_judged_before(end: RankEnd, matrix: NDArray[np.float64]) -> Judged:
    """Return what the end record and its steps say: of a long run the log keeps the first steps alone.

    Of what no file has of each step, such as its backward passes, each has what most had.
    """
    column = dict(zip(HEADER, matrix, strict=True))
    samples, padding = (column[name].astype(np.int64) for name in ("samples", "padding_samples"))
    ended_at_s = column["ended_at_s"]
    backwards, sent = end.fingerprint.backward_passes or 0, (end.ddp.exchanges if end.ddp else None) or 0
    counts = (np.full(len(samples), count) for count in (backwards, sent, sent))
    seconds = (column[name] for name in ("step_time_s", "data_wait_s", "ended_at_s", "collectives_s"))
    rows = zip(*(each.tolist() for each in (samples, padding, *seconds, *counts, ended_at_s)), strict=True)
    table = StepTable.of_rows(rows, end.steps.count)
    of_ddp = matrix[HEADER.index(DDP_COLUMNS[0]) : -1].T
    table.ddp = {row: DdpTimes(*times.tolist()) for row, times in enumerate(of_ddp) if not np.isnan(times).any()}
    phases = end.phases.model_dump(mode="json") if end.phases else {}
    first_s = float(ended_at_s[0]) if len(ended_at_s) else None
    return Judged(table, phases, first_s, {}, Counter(), -1, {}, Batches(), False, {})
