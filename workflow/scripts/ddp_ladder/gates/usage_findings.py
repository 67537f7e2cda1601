"""Findings on what the runs of a scale used: each once for all repeats. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddp_ladder.common.model import IN_A_MODEL
from ddp_ladder.records.record import Record
from ddp_ladder.usage.models import FindingKind, UsageFinding

LEAST_SHARE = 0.5  # of the repeats: what fewer of them show was chance
EVERY_REPEAT = ("slow node",)  # to leave out a node that is slow in some repeats only would not help


@dataclass(frozen=True)
class ScaleFinding:
    """A finding on the runs of a scale, in the words of the first repeat that has it. repeats: how many have it.

    of: how many were monitored. kind, node, gpu and everywhere: see ``usage.models.UsageFinding``.
    """

    __pydantic_config__: ClassVar = IN_A_MODEL
    kind: FindingKind
    what: str
    next: str
    node: str | None
    gpu: int | None
    repeats: int
    of: int
    everywhere: bool = False

    @property
    def in_words(self) -> str:
        """Return what was found, with the number of repeats if not all have it."""
        return self.what if self.repeats == self.of else f"{self.what} (in {self.repeats} of {self.of} repeats)"


def findings_of_repeats(records: Sequence[Record]) -> tuple[ScaleFinding, ...]:
    """Return the findings that at least half of the repeats of a scale have; a slow node must be so in all of them."""
    monitored = [record.usage for record in records if record.usage is not None]
    found: dict[Hashable, list[UsageFinding]] = {}
    for usage in monitored:
        numbers: dict[str, int] = {}
        for each in usage.findings:
            number = numbers[each.kind] = numbers.get(each.kind, 0) + 1
            place = (each.node, each.gpu) if each.kind == "slow node" else number
            found.setdefault((each.kind, place), []).append(each)
    return tuple(
        ScaleFinding(**several[0].model_dump(), repeats=len(several), of=len(monitored))
        for several in found.values()
        if len(several) >= (1.0 if several[0].kind in EVERY_REPEAT else LEAST_SHARE) * len(monitored)
    )
