"""The finding of a check, and a list of findings as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ddp_ladder.common.messages import Problem, printable

Outcome = Literal["pass", "warn", "FAIL", "not checked"]

WIDTH = 100
OUTCOMES: tuple[Outcome, ...] = ("FAIL", "warn", "pass", "not checked")
WORDS = {"FAIL": "failed", "warn": "warned", "pass": "passed", "not checked": "not checked"}


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's list; next: what to do, unless it passed."""

    outcome: Outcome
    topic: str
    text: str
    next: str | None = None

    @classmethod
    def of(cls, problem: Problem, topic: str, outcome: Outcome = "FAIL") -> CheckResult:
        """Return a user's mistake as a finding."""
        details = [
            f"{label} {text}" for label, text in (("found", problem.found), ("allowed", problem.allowed)) if text
        ]
        text = f"{problem.where}: {problem.what}"
        return cls(outcome, topic, f"{text} ({'; '.join(details)})" if details else text, problem.next)


Section = tuple[str, Sequence[CheckResult]]  # title, findings


def listing(sections: Sequence[Section]) -> str:
    """Return the aligned list, with each next step below its finding and the counts at the end."""
    findings = [finding for _, found in sections for finding in found]
    topic_width = max(len(finding.topic) for finding in findings)
    lines: list[str] = []
    for title, found in sections:
        lines += ["", title] if lines else [title]
        for finding in found:
            lines += _lines(finding, topic_width)
    counts = {outcome: sum(finding.outcome == outcome for finding in findings) for outcome in OUTCOMES}
    summary = ", ".join(f"{count} {WORDS[outcome]}" for outcome, count in counts.items() if count)
    return "\n".join([*lines, "", summary])


def _lines(finding: CheckResult, topic_width: int) -> Iterator[str]:
    head = f"  {finding.outcome:<11}  {finding.topic:<{topic_width}}  "
    margin, text = " " * len(head), printable(finding.text)
    yield from textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=margin, break_on_hyphens=False)
    if finding.next:
        yield from textwrap.wrap(
            printable(finding.next),
            WIDTH,
            initial_indent=f"{margin}next: ",
            subsequent_indent=f"{margin}      ",
            break_on_hyphens=False,
        )
