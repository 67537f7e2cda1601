"""What a witness makes of the count of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_ladder.records.raw_models import DrawingPlace, Witnessed
from ddp_ladder.records.witness import compared, doubt_on, factor
from ddp_ladder_instrument.log import Log
from ddp_ladder_instrument.machine import judge
from ddp_ladder_instrument.places import Place


def counted(testimony: Mapping[str, Any], log: Log, places: Sequence[Place]) -> tuple[Witnessed, float]:
    """Return what a witness says that saw this, and the samples that are then counted in a run with the same log."""
    verdict = compared(testimony, log, {"places": places, "samples_per_step": None})
    seen = [{**place, "counted": counted} for place, counted in zip(testimony["places"], verdict.counted, strict=True)]
    witness = Witnessed.from_json({"status": verdict.status, "why": verdict.why, "places": seen})
    assert doubt_on([], witness) or verdict.status != "doubtful"
    never = {place.lines for place in witness.places if not place.trained}
    beside = {k for k, place in enumerate(places) if witness.is_seen and place in never}
    judged = judge(log, None, beside)
    drawn = [
        DrawingPlace(lines=places[k], batches=batches, samples=samples, trained=trained)
        for k, (batches, samples, trained) in judged.places.items()
    ]
    times = factor(drawn, witness) if witness.status == "differs" else 1.0
    return witness, times * (sum(judged.table.samples) + sum(judged.table.padding_samples))
