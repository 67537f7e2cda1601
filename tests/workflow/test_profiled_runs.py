"""A run with measure.profile_steps in the job of a scale: its record, and the traces."""

from __future__ import annotations

import gzip
import json

from one_run import Here
from project_copy import loop_with

TRAIN = loop_with("time.sleep(0.03 * (dist.get_rank() == 0))")
LIMITS = {"warmup_steps": 2, "min_steps": 6, "max_steps": 14, "profile_steps": 3}


def test_the_traces_of_all_ranks_are_kept(here: Here) -> None:
    record = here.run(TRAIN, "1x2", launcher="srun", args=("4",), **LIMITS)
    assert record.status == "ok", record.failure
    assert {rank.steps for rank in record.ranks} == {14}
    assert not record.remarks
    ran = here.directory(record.spec)
    for rank in (0, 1):
        events = json.loads(gzip.decompress(ran.trace(rank).read_bytes()))["traceEvents"]
        steps = [each for each in events if each["name"].startswith("ProfilerStep#")]
        assert len(steps) == 3
        assert sum(each["dur"] for each in steps) * 1e-6 > 3 * 0.03
