"""Faults in whole climbs on the real Slurm: the cause is named soon, nothing is left behind, no later stage starts.

Faults that end a rank, at whatever time, and a port that is taken are in tests/workflow/test_ranks_that_fail.py, a full
disk in test_full_disk.py there, ends by Slurm in test_ends_by_slurm.py, what the preflight finds in
test_preflight_on_slurm.py. `benchmarks/faults.py` measures all of them.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from faults import FAULTS, Fault, Told, tell

pytestmark = pytest.mark.slurm

HERE = ("two nodes that are cut off from each other", "a link that is cut during training")
WITHIN_S = 150.0  # on a busy machine; benchmarks/faults.py measures it


@pytest.fixture(scope="module")
def told(no_orphans: None) -> dict[str, Told]:
    """What each climb said; they run side by side, each on a cluster of its own."""
    chosen = [fault for fault in FAULTS if fault.name in HERE]
    with ThreadPoolExecutor(len(chosen)) as pool:
        return {fault.name: said for fault, said in zip(chosen, pool.map(tell, chosen), strict=True)}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in HERE], ids=lambda fault: fault.name)
def test_the_injected_cause_is_named_soon_and_nothing_is_left(told: dict[str, Told], fault: Fault) -> None:
    said = told[fault.name]
    assert re.search(fault.named, said.why), said.text
    assert said.after_s < WITHIN_S
    assert said.left == []
    assert said.exit_code == 1
    assert "Traceback" not in said.text
