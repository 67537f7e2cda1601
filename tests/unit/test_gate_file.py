from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.files import write_json
from ddp_ladder.gate_file import closed_box, closed_variants, outcome_line, read_gate, read_gates
from make_records import make_gate

BOX = """\
+----------------------------------------------------------------------------------------------+
| verdict   the gate of stage2 is closed; nothing above it was started                         |
| measured  default/weak/1x2: efficiency: efficiency 0.62 (95 % interval 0.60 to 0.64)         |
| wanted    at least 0.80 (stages.stage2.gate.min_efficiency)                                  |
| next      see data wait, exposed communication and start-up in the report; a larger          |
|           workload.batch_per_gpu hides communication; lower                                  |
|           stages.stage2.gate.min_efficiency if this is good enough for you                   |
+----------------------------------------------------------------------------------------------+"""


def test_closed_box() -> None:
    gate = make_gate(
        "stage2",
        "closed",
        why="default/weak/1x2: efficiency: efficiency 0.62 (95 % interval 0.60 to 0.64)",
        next_step=(
            "see data wait, exposed communication and start-up in the report; a larger "
            "workload.batch_per_gpu hides communication; lower stages.stage2.gate.min_efficiency "
            "if this is good enough for you"
        ),
    )
    gate["wanted"] = "at least 0.80 (stages.stage2.gate.min_efficiency)"
    assert closed_box(gate) == BOX


def test_the_box_holds_words_and_lines_of_any_length() -> None:
    gate = make_gate("stage2", "closed", why="ß" * 300 + "\nTraceback:\n\n  y", next_step="")
    lines = closed_box(gate).splitlines()
    assert {len(line) for line in lines} == {96}
    assert all(line[0] + line[-1] in ("||", "++") for line in lines)
    assert closed_box(gate).count("ß") == 300


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
    assert outcome_line(gate) == line


def test_gates_that_exist_are_read_by_stage(tmp_path: Path) -> None:
    write_json(tmp_path / "stage1.json", make_gate("stage1"))
    write_json(tmp_path / "stage2.closed.json", make_gate("stage2", "closed", why="because"))
    gates = read_gates(tmp_path, ("stage1", "stage2", "stage3"))
    assert {stage: gate["verdict"] for stage, gate in gates.items()} == {
        "stage1": "open",
        "stage2": "closed",
    }


def test_closed_variants_of_an_open_gate(tmp_path: Path) -> None:
    write_json(tmp_path / "stage1.json", make_gate("stage1", variants={"default": "open"}))
    assert closed_variants(tmp_path / "stage1.json") == {}
    variants = {"default": "open", "gloo": "closed"}
    write_json(tmp_path / "stage1.json", make_gate("stage1", variants=variants))
    assert closed_variants(tmp_path / "stage1.json") == {"gloo": "variant gloo did not pass the gate of stage1"}


def test_a_gate_file_that_is_not_json_names_itself(tmp_path: Path) -> None:
    (tmp_path / "stage1.json").write_text("open")
    with pytest.raises(ValueError, match=r"stage1\.json is not JSON"):
        read_gate(tmp_path / "stage1.json")
