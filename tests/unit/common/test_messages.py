"""The width of what is printed: that of the terminal, at most 96 columns, and 96 without a terminal."""

from __future__ import annotations

import io
import os
import pty
import termios

import pytest
from ddp_ladder.common.messages import BEHIND_PIPE, MOST_COLUMNS, Problem, box, columns, for_terminal, notify

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


def test_behind_a_pipe_of_a_rule_both_are_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BEHIND_PIPE, "80")
    monkeypatch.setattr("sys.stdout", stream := io.StringIO())
    assert {len(line) for line in box(ROWS).splitlines()} == {80}
    assert max(map(len, for_terminal("is wrong " * 20, stream).splitlines())) <= 80


def test_a_rule_whose_standard_output_is_a_log_has_the_width_of_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", io.StringIO())
    other_end, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 70))
    with open(terminal, "w") as stream:
        assert columns(stream) == 70
        assert {len(line) for line in box(ROWS, stream).splitlines()} == {70}
    os.close(other_end)


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
