"""The width of what is printed: that of the terminal, at most 96 columns, and 96 without a terminal."""

from __future__ import annotations

import io

import pytest
from ddp_ladder.common.messages import MOST_COLUMNS, Problem, box, notify

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


@pytest.mark.parametrize(("terminal", "columns", "width"), [(True, 80, 80), (True, 200, 96), (False, 80, 999)])
def test_a_message_fits_the_terminal_and_commands_and_paths_stay_whole(
    terminal: bool, columns: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = ["`snakemake --profile profiles/slurm stage2 --config run_again=yes`", f"/{'a-directory/' * 9}file"]
    advice = f"start it again with {copied[0]} {copied[1]}"
    text = str(Problem("config.yaml, line 3: repeats", "is wrong " * 20, allowed="a number " * 9, next=advice))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr", stream := Terminal() if terminal else io.StringIO())
    notify(text)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines if "/a-directory" not in line)
    assert all(words in stream.getvalue() for words in copied)
    assert (stream.getvalue() == f"{text}\n") is not terminal
    assert not terminal or f"{' ' * 11}{copied[1]}" in lines  # below the text of next
