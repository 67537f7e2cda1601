"""Ladders that run on a cluster in the background, several at the same time."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from project_copy import Checkout

TIMEOUT_S = 180


@dataclass
class Climb:
    """A ladder that is running on the cluster; its output is in a file."""

    checkout: Checkout
    process: subprocess.Popen[str]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text()

    def job(self) -> tuple[int, str]:
        """Wait for its job to run; return job id and node."""
        found = self.await_line(r"job (\d+) runs on (\w+)")
        return int(found[1]), found[2]

    def await_line(self, pattern: str) -> re.Match[str]:
        """Wait for ``pattern`` in the output; return the match."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(pattern, self.text)):
            assert self.process.poll() is None, f"ended without {pattern!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"{pattern!r} not within {TIMEOUT_S} s:\n{self.text}"
            time.sleep(0.1)
        return found

    def end(self, timeout_s: float = TIMEOUT_S) -> int:
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not ended within {timeout_s} s:\n{self.text}")


def climb(checkout: Checkout, *arguments: str) -> Climb:
    """Start a climb, with further arguments of snakemake."""
    output = checkout.path.with_suffix(".output")  # its disk may be full
    with output.open("w") as file:
        return Climb(checkout, checkout.start("--profile", "profiles/slurm", *arguments, output=file), output)
