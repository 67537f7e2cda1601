"""Faults in whole climbs on the real Slurm: the cause is named soon, nothing is left behind, no later stage starts.

Faults that end a rank, at whatever time, and a port that is taken are in tests/workflow/test_ranks_that_fail.py, a full
disk in test_full_disk.py there, ends by Slurm in test_ends_by_slurm.py, what the preflight finds on a node in
tests/unit/preflight. `benchmarks/faults.py` measures all of them.
"""

from __future__ import annotations

import re

import pytest
from faults import FAULTS, tell

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("no_orphans")]

HERE = (
    "a slow link of one node",
    "two nodes that are cut off from each other",
    "a link that is cut during training",
)
WITHIN_S = 150.0  # on a busy machine; benchmarks/faults.py measures it


@pytest.mark.parametrize("name", HERE)
def test_the_injected_cause_is_named_soon_and_nothing_is_left(name: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    said = tell(fault)
    assert re.search(fault.named, said.why), said.text
    assert said.after_s < WITHIN_S
    assert (said.left, said.exit_code) == ([], 1)
    assert "Traceback" not in said.text
