"""Judge a stage on its records: open the gate with an evidence file, or close it and say what to do.

One line on the outcome goes to stderr, the whole judgement to stdout. Exit code 1 when the gate is closed.
"""

from __future__ import annotations

import sys
from argparse import Namespace

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.ladder import after_gate, restore_records
from ddp_ladder.common.command import PLAN, command, option
from ddp_ladder.common.messages import notify
from ddp_ladder.gates.gate import closed_box, judge, outcome_line, write_verdict
from ddp_ladder.ledger.jobs import update_or_warn
from ddp_ladder.plan.plan import read_plan


@command(
    "gate.py --plan results/plan.json --stage stage2",
    PLAN,
    option("--stage", required=True, help="stage1, stage2 or stage3"),
)
def main(arguments: Namespace) -> int:
    """Judge the stage and write the gate file."""
    plan, results = read_plan(arguments.plan), arguments.plan.parent
    runs = RunRecords(results)
    restored = list(restore_records(plan, runs))
    for record in restored:
        notify(f"{record}: restored from its raw files")
    verdict = judge(plan, arguments.stage, results, None if restored else runs)
    path = write_verdict(verdict, results / "gates")
    for warning in update_or_warn(results)[1]:
        notify(f"warning: {warning}")
    notify(outcome_line(verdict))
    for line in after_gate(plan, verdict, RunRecords(results) if restored else runs):
        notify(line)
    for finding in verdict.judged:
        outcome = "pass" if finding.ok else "FAIL"
        print(f"{outcome}  {finding.line}")
    if not verdict.is_open:
        print(closed_box(verdict))
    print(f"written: {path}")
    return 0 if verdict.is_open else 1


if __name__ == "__main__":
    sys.exit(main())
