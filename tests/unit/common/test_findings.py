"""A finding: its words, which one decides, and that every kind is one that the code makes."""

from __future__ import annotations

import ast
from typing import Any, get_args

import pytest
from ddp_ladder.common.files import SCRIPTS
from ddp_ladder.common.findings import Finding, Kind, deciding


def found(**values: Any) -> Finding:
    return Finding(**{"kind": "node", "severity": "warning", "measured": "1 GPU", **values})


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "1 GPU"),
        ({"place": "node7"}, "node7: 1 GPU"),
        ({"place": "node7", "measured": "node7 has 1 GPU"}, "node7 has 1 GPU"),
        ({"place": "node7", "wanted": "4", "next": "leave it out"}, "node7: 1 GPU; wanted 4; next: leave it out"),
    ],
)
def test_a_finding_in_a_line(values: dict[str, Any], line: str) -> None:
    assert found(**values).line == line


def test_the_first_error_decides() -> None:
    note, first, second = found(severity="unknown"), found(severity="error"), found(severity="error", place="node7")
    assert deciding((note, first, second)) is first
    assert deciding((note, found())) is None


def test_every_kind_is_made_by_the_code_and_no_other_can_be() -> None:
    code = SCRIPTS / "ddp_ladder"
    sources = (file for file in code.rglob("*.py") if file != code / "common/findings.py")
    trees = (ast.parse(file.read_text()) for file in sources)
    named = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {*get_args(Kind)} - named == set()
    with pytest.raises(ValueError, match="kind"):
        found(kind="a new one")
