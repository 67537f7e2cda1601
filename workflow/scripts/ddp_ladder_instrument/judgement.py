"""The fields of a rank's end record that the rules decide: from what its log means, and the facts beside the log.

The rank writes them at its end; the workflow makes them anew from the same log when the rules have changed. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_ladder_instrument.machine import RULES, Judged
from ddp_ladder_instrument.table import DdpTimes, StepTable

Facts = Mapping[str, Any]


def judged_fields(judged: Judged, facts: Facts) -> dict[str, Any]:
    """Return the fields of an end record; of startup_s and fingerprint those that are judged.

    facts: the record's ``log``: world_size, warmup_steps, source, began_at_s and training_ended_at_s (unix time),
    loaders, digests, collectives (their names), ddp, places.
    """
    table = judged.table
    loader = training_loader(judged, facts["loaders"], facts["world_size"])
    is_guessed = facts["source"] == "counted" and loader is not None and loader["unclear_sizes"]
    first_s, end_s = judged.first_step_ended_at_s, facts["training_ended_at_s"]
    return {
        "rules": RULES,
        "source": "guessed" if is_guessed else facts["source"],
        "training_s": None if first_s is None or end_s is None else max(0.0, end_s - first_s),
        "phases": judged.phases,
        "loader": loader,
        "first_samples": facts["digests"].get(str(judged.first_pass), []),
        "ddp": ddp_summary(table, facts["ddp"], facts["warmup_steps"]),
        "communication": [
            {"name": facts["collectives"][name], "calls": calls, "bytes": size, "seconds": _known(seconds)}
            for name, (calls, size, seconds) in sorted(judged.collectives.items())
        ],
        "joins_uneven": judged.is_uneven,
        "batches": judged.batches._asdict(),
        "places": [
            {"lines": facts["places"][number], "batches": batches, "samples": samples, "trained": trained}
            for number, (batches, samples, trained) in sorted(judged.places.items())
        ],
        "startup_s": {
            "first_step": table.step_time_s[0] if table.count else None,
            "total": None if first_s is None else first_s - facts["began_at_s"],
        },
        "fingerprint": {"batch_per_gpu": table.batch_per_gpu(), "backward_passes": table.usual_backwards or None},
    }


def training_loader(judged: Judged, loaders: Sequence[Facts], world_size: int) -> dict[str, Any] | None:
    """Return the record's ``loader``: the one that trained last; None inside means unknown, or not needed."""
    trained = [number for number in judged.epochs if "num_workers" in loaders[number]]
    if not trained:
        return None
    facts = dict(loaders[trained[-1]])
    del facts["dataset"]
    facts.pop("token_lengths", None)  # logs of earlier versions have none
    lengths = {length for number in trained for length in loaders[number].get("token_lengths", [0])}
    passes: Counter[Any] = Counter()
    whole: Counter[Any] = Counter()
    epochs: set[int] = set()
    for number in trained:
        of = loaders[number]["dataset"]
        key = ("loader", number) if of is None else of
        passes[key] += sum(judged.epochs[number].values())
        whole[key] += judged.whole[number]
        epochs |= {*judged.epochs[number]} - {-1}
    is_known = any(epoch >= 0 for epoch in judged.epochs[trained[-1]])
    return {
        **facts,
        "shards": world_size == 1 or facts["shards"],
        "set_epoch_called": epochs != {0} if is_known else None,
        "epochs_set": len(epochs) or None,
        "passes": max(passes.values()),
        "whole_passes": max(whole.values()),
        "unclear_sizes": sorted({size for number in trained for size in loaders[number]["unclear_sizes"]}),
        "tokens_per_sample": (lengths.pop() or None) if len(lengths) == 1 else None,
    }


def ddp_summary(table: StepTable, facts: Facts | None, warmup_steps: int) -> dict[str, Any] | None:
    """Return the record's ``ddp``: medians of the timed steps, in seconds; None if no module was wrapped."""
    if facts is None:
        return None
    rows: dict[int, DdpTimes] = table.ddp
    used = [times for row, times in rows.items() if row >= warmup_steps] or [*rows.values()]
    sent = [*filter(None, table.sent[: table.single])]
    exposed_s = [max(0.0, times.comm_s - times.overlap_s) for times in used]
    return {
        **facts,
        "exchanges": int(statistics.mode(sent)) if sent else None,
        "samples": len(used),
        "exposed_comm_s": statistics.median(exposed_s) if exposed_s else None,
    }


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds
