"""The width of what is printed: that of the terminal, at most 96 columns, and 96 without a terminal."""

from __future__ import annotations

import io

import pytest
from ddp_ladder.common.messages import MOST_COLUMNS, box

ROWS = (("verdict", "the gate of stage2 is closed; nothing above it was started"), ("next", "raise it " * 20))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "columns", "width"), [(True, 80, 80), (True, 200, 96), (False, 80, 96)])
def test_a_box_is_as_wide_as_the_terminal(
    terminal: bool, columns: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout", Terminal() if terminal else io.StringIO())
    assert {len(line) for line in box(ROWS).splitlines()} == {width}
    assert MOST_COLUMNS == 96
