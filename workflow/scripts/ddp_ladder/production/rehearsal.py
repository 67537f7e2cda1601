"""The judgement of a rehearsal: whether the second start of a script went on where the first one ended. Pure."""

from __future__ import annotations

from typing import Literal

from ddp_ladder.common.messages import Finding
from ddp_ladder.common.model import Model, Several
from ddp_ladder.records.raw_files import RawRun


class Rehearsal(Model):
    """What a rehearsal has shown."""

    verdict: Literal["ok", "failed", "unclear"]
    why: str
    next: str = ""
    findings: Several[Finding] = ()


def judge_rehearsal(first: RawRun, second: RawRun | None) -> Rehearsal:
    """Return what two starts of a script show. second: None if it was not started."""
    return Rehearsal(verdict="unclear", why="nothing is compared yet")
