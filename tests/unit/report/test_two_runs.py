"""Two runs side by side: what is not alike is said, above all what the arguments do not show."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ddp_ladder.common.formats import UNKNOWN
from ddp_ladder.records.record import Record
from ddp_ladder.report.two_runs import two_runs
from ddp_ladder_instrument.contract import NO_SPEC
from make_records import make_record, make_spec


def seen(scale: str, batch: int, passes: int | None, mode: str = "weak") -> Record:
    """Return a run of which each rank saw a batch of this size in a step, in so many backward passes."""
    spec = make_spec(scale, mode=mode)
    record = make_record(spec, 1000.0)
    changes = {"batch_per_gpu": batch, "backward_passes": passes, "global_batch": batch * spec.world_size}
    return record.replace(fingerprint=record.fingerprint.replace(**changes))


ALIKE = "Like for like: no field of the fingerprint differs"


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (("1x2", 64, 1), ("1x2", 64, 1), f"{ALIKE}."),
        (("1x2", 64, 1), ("1x2", 64, None), f"{ALIKE}."),
        (("1x2", 64, 1), ("1x4", 64, 1), f"{ALIKE}; as in weak scaling, each rank has as many samples in a step."),
        (("1x2", 64, 1), ("1x4", 32, 1), f"{ALIKE}; as in strong scaling, all ranks together have as many samples in"),
        (("1x2", 64, 1), ("1x2", 64, 4), "  backward passes in a step, whose gradients are accumulated: 1 / 4"),
        (("1x2", 64, 1), ("1x2", 32, 1), "  samples of a rank in a step: 64 / 32\n  samples of all ranks in a step: 1"),
        (("1x2", 64, 1), ("1x4", 48, 1), "  samples of a rank in a step: 64 / 48\n  samples of all ranks in a step: 1"),
        (("1x2", 64, 1), ("1x2", 64, 1, "strong"), f"{ALIKE}."),
    ],
)
def test_what_is_alike(first: Any, second: Any, wanted: str) -> None:
    text = two_runs([("a", seen(*first)), ("b", seen(*second))])
    assert wanted in text
    assert ("Not like for like:" in text) == wanted.startswith("  ")


def test_samples_that_nobody_counted_are_no_batch_of_one() -> None:
    """Of a run that the ladder did not start there is no plan that could say it."""
    unseen = seen("1x2", 1, 1)
    unseen = unseen.replace(spec_hash=NO_SPEC, fingerprint=unseen.fingerprint.replace(global_batch=None))
    text = two_runs([("a", unseen), ("b", unseen)])
    assert "  samples of all ranks in a step: not known of both runs" in text
    assert "per rank)" not in text
    none = unseen.throughput and unseen.throughput.replace(samples_per_s=0.0, samples_per_s_total=0.0)
    text = two_runs([("a", unseen.replace(throughput=none)), ("b", unseen)])
    assert re.search(rf"^samples/s +{UNKNOWN} +\S", text, re.MULTILINE)
    assert "second / first" not in text
