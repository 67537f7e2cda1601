"""Whether the loops of the training were over when a script failed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from ddp_ladder_instrument.program import LastStep

CASES = {
    "clean-up after the loops": (
        True,
        """
        for epoch in range(2):
            for batch in range(3):
                step()
        fail()
        """,
    ),
    "between two epochs": (
        False,
        """
        for epoch in range(2):
            for batch in range(3):
                step()
            fail()
        """,
    ),
    "loops in functions": (
        True,
        """
        def epoch():
            for batch in range(3):
                step()
        def train():
            number = 0
            while number < 2:
                epoch()
                number += 1
        def main():
            train()
            for path in ["a", "b"]:
                fail()
        main()
        """,
    ),
    "clean-up because the training failed": (
        False,
        """
        def train():
            for batch in range(3):
                step()
                if batch == 1:
                    raise ValueError("bad batch")
        def main():
            try:
                train()
            finally:
                fail()
        main()
        """,
    ),
    "clean-up that caught an error of its own": (
        True,
        """
        def main():
            for batch in range(3):
                step()
        def clean_up():
            try:
                fail()
            except RuntimeError as error:
                raise OSError("disk full") from error
        main()
        clean_up()
        """,
    ),
    "before any step": (False, "fail()"),
}


def fail() -> None:
    raise RuntimeError("no such tracker")


def ended(file: Path, source: str, last: LastStep) -> bool:
    try:
        exec(compile(source, file, "exec"), {"step": last.note, "fail": fail})
    except Exception as error:
        return last.loops_were_over(error)
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("case", CASES)
def test_loops_were_over(tmp_path: Path, case: str) -> None:
    over, text = CASES[case]
    source = textwrap.dedent(text).lstrip()
    file = tmp_path / "train.py"
    file.write_text(source)
    assert ended(file, source, LastStep()) is over
    unread = tmp_path / "gone.py"  # then it is not known
    assert ended(unread, source, LastStep()) is False
