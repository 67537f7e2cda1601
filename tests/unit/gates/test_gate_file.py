from __future__ import annotations

import re

import pytest
from ddp_ladder.common.messages import numbered
from ddp_ladder.gates.verdict import Verdict, closed_box, outcome_line
from make_records import make_gate, make_judged

BOX = """\
+----------------------------------------------------------------------------------------------+
| verdict   the gate of stage2 is closed; nothing above it was started                         |
| measured  default/weak/1x2: efficiency 0.62 (95 % interval 0.60 to 0.64)                     |
| wanted    at least 0.80 (stages.stage2.gate.min_efficiency)                                  |
| next      raise workload.batch_per_gpu, so that each exchange of gradients serves more       |
|           samples; or lower stages.stage2.gate.min_efficiency if this is good enough for you |
+----------------------------------------------------------------------------------------------+"""


def test_closed_box() -> None:
    gate = make_gate(
        "stage2",
        "closed",
        why="default/weak/1x2: efficiency 0.62 (95 % interval 0.60 to 0.64)",
        next_step=(
            "raise workload.batch_per_gpu, so that each exchange of gradients serves more samples; "
            "or lower stages.stage2.gate.min_efficiency if this is good enough for you"
        ),
    )
    gate["wanted"] = "at least 0.80 (stages.stage2.gate.min_efficiency)"
    assert closed_box(Verdict.from_json(gate)) == BOX


BOX_OF_A_RUN = """\
+----------------------------------------------------------------------------------------------+
| verdict   CUDA out of memory (rank 1 on node7)                                               |
|           the gate of stage2 is closed; nothing above it was started                         |
| run       default/weak/1x2/r1                                                                |
| why       the GPU has no 2.00 GiB left: the batch is too large for it, or another process    |
|           uses its memory                                                                    |
| evidence  rank 1 (node7): File "/home/ada/train.py", line 20, in main                        |
| next      1. lower workload.batch_per_gpu in config.yaml, or the model's size in             |
|              workload.args                                                                   |
|           2. run `nvidia-smi` on node7                                                       |
+----------------------------------------------------------------------------------------------+"""


def test_the_box_of_a_failed_run() -> None:
    why = "the GPU has no 2.00 GiB left: the batch is too large for it, or another process uses its memory"
    steps = (
        "lower workload.batch_per_gpu in config.yaml, or the model's size in workload.args",
        "run `nvidia-smi` on node7",
    )
    judged = make_judged("1x2", "CUDA out of memory", ok=False, measured=why, repeat=1)
    said = ['rank 1 (node7): File "/home/ada/train.py", line 20, in main']
    failed = {**judged, "place": "rank 1 on node7", "evidence": said}
    gate = Verdict.from_json(make_gate("stage2", "closed", why="w", judged=[failed], next_step=numbered(steps)))
    assert closed_box(gate) == BOX_OF_A_RUN
    later = Verdict.from_json({**gate.model_dump(), "judged": [{**failed, "at_s": 1_800_000_000.0}]})
    first = closed_box(later).splitlines()[1]
    assert re.search(r"\(rank 1 on node7\) at [0-9]{2}:[0-9]{2}:00 ", first)


@pytest.mark.parametrize(
    ("gate", "line"),
    [
        (make_gate("stage1"), "gate stage1: open"),
        (
            make_gate("stage1", variants={"default": "open", "a": "closed", "b": "closed"}),
            "gate stage1: open (without a, b: see the report)",
        ),
        (make_gate("stage2", "closed", why="because"), "gate stage2: CLOSED, because"),
    ],
)
def test_outcome_line(gate: dict[str, object], line: str) -> None:
    assert outcome_line(Verdict.from_json(gate)) == line
