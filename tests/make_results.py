"""The results of a ladder for tests of the report, without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.report.view import LadderResults
from make_records import make_plan_of, records_by_name


def make_results(records: Sequence[Record], specs: Sequence[RunSpec] | None = None, **changes: Any) -> LadderResults:
    """Return these records with the plan of ``specs``, by default of their own."""
    plan = make_plan_of(tuple(record.spec for record in records) if specs is None else specs)
    return replace(LadderResults(plan, records_by_name(records), {}, ()), **changes)
