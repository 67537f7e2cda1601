"""Start-up: the time until the end of the first step and its parts, on the slowest rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_ladder.records.record import Rank

PARTS = ("spawn", "import_torch", "process_group", "first_step")


@dataclass(frozen=True)
class StartUp:
    """A start-up in seconds. All but ``compile_s`` (mostly in the first step) add up to ``total_s``. None: unknown."""

    spawn_s: float | None  # from the launcher's start to the first line in the rank
    import_torch_s: float | None
    process_group_s: float | None
    script_s: float  # the rest: the script itself between the other parts
    first_step_s: float | None
    total_s: float
    compile_s: float | None


def startup_of(ranks: Sequence[Rank]) -> StartUp | None:
    """Return the start-up of the rank with the largest total, so that all parts are of one process; None if unknown."""
    known = [(total, rank.startup_s) for rank in ranks if (total := rank.startup_s.get("total")) is not None]
    if not known:
        return None
    total_s, seen = max(known, key=lambda pair: pair[0])
    rest_s = total_s - sum(seen.get(part) or 0.0 for part in PARTS)
    return StartUp(
        spawn_s=seen.get("spawn"),
        import_torch_s=seen.get("import_torch"),
        process_group_s=seen.get("process_group"),
        script_s=max(0.0, rest_s),  # the total and most parts come from different clocks
        first_step_s=seen.get("first_step"),
        total_s=total_s,
        compile_s=seen.get("compile"),
    )
