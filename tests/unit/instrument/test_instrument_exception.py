"""The exception in a rank's end record: one line, and of a traceback only its end."""

from __future__ import annotations

import pytest
from ddp_ladder_instrument.files import one_line
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError(f"sample {index} is broken\n  in two lines") from error


def test_of_a_loaders_worker_the_last_lines_are_reported() -> None:
    text, line = "", ""
    try:
        next(iter(DataLoader(Broken(), batch_size=1, num_workers=1, multiprocessing_context="fork")))
    except ValueError as error:  # not pytest.raises, which would keep the worker until some other test
        text, line = str(error), one_line(error)
    assert text.count("\n") > 10
    assert line == (
        "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: sample 0 is broken in two lines"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "RuntimeError"),
        ("a\n  b\tc", "RuntimeError: a b c"),
        ("Traceback (most recent call last):\n  File x\n", "RuntimeError: File x"),
        ("x" * 5000, "RuntimeError: " + "x" * 800 + "..."),
    ],
)
def test_one_line(text: str, line: str) -> None:
    assert one_line(RuntimeError(text)) == line
