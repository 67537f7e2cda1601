"""Run the scripts of tests/scripts and compare the measurement with the scripts' own counts and times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder_instrument.contract import LEAST_UNCLEAR
from instrument_support import NEWEST, Ran, run_json
from warm import RankRan, Warm

SCRIPTS = Path(__file__).parent / "scripts"
TOLERANCE = 0.01
OF_TWO = 0.03  # ranks, which wait for each other: what interrupts one between two readings of the clock costs both
FIRST = 2  # steps that are not compared: the first has the start-up, the second writes progress.json
MISSING = "ddp: DDP timed no"  # is allowed
TRIES = 5  # for the times: another process may get the core between the script's reading of the clock and ours


@dataclass(frozen=True)
class Measured:
    """One run: its ranks' output and its directory."""

    ranks: list[RankRan]
    ran: Ran

    def tally(self, rank: int) -> dict[str, list[float]]:
        tally: dict[str, list[float]] = json.loads((self.ran.directory.parent / f"tally.{rank}.json").read_text())
        return tally

    def samples(self, rank: int) -> list[float]:
        return [row["samples"] for row in self.ran.rows(rank)]


def warmed(*modules: str, python: Callable[[], Path] = lambda: NEWEST) -> Any:
    """Return a fixture: one process for the tests of a module, which has imported these modules."""

    @pytest.fixture(scope="module")
    def warm() -> Iterator[Warm]:
        process = Warm(*modules, python=python())
        yield process
        process.close()

    return warm


def run(
    warm: Warm,
    directory: Path,
    script: str,
    *args: object,
    ranks: int,
    env: dict[str, str] | None = None,
    **measure: Any,
) -> Measured:
    directory.mkdir(parents=True, exist_ok=True)
    run_file = run_json(directory / "run", **measure)
    words = ["-m", script[3:]] if script.startswith("-m ") else [str(SCRIPTS / script)]
    files = {"DDP_LADDER_RUN": str(run_file), "DDP_LADDER_HEARTBEATS": str(run_file.parent)}
    variables = {**files, "PYTHONPATH": str(SCRIPTS), **(env or {})}
    ran = warm.run(directory, [*words, *map(str, args)], ranks, **variables)
    return Measured(ran, Ran(0, "", "", directory / "run"))


def off_by(measured: Measured, rank: int) -> float:
    """Return the relative difference between the measured time and the script's, but for the step that differs most."""
    pairs = list(zip(measured.ran.rows(rank), measured.tally(rank)["seconds"], strict=True))[FIRST:]
    times = [(row["step_time_s"], seconds) for row, seconds in pairs if seconds is not None]
    times.sort(key=lambda pair: abs(pair[0] - pair[1]))
    kept = times[:-1] or times  # another process may have taken the core between the two readings of the clock
    return abs(sum(ours for ours, _ in kept) / sum(own for _, own in kept) - 1)


def check(warm: Warm, directory: Path, script: str, *args: object, ranks: int, **measure: Any) -> Measured:
    """Run the script: samples and steps are exact and without a doubt, times within the tolerance."""
    tolerance = TOLERANCE if ranks == 1 else OF_TWO
    for attempt in range(TRIES):
        measured = run(warm, directory / str(attempt), script, *args, ranks=ranks, **measure)
        for rank in range(ranks):
            assert measured.ranks[rank].code == 0, measured.ranks[rank].err
            assert measured.samples(rank) == measured.tally(rank)["samples"]
            assert measured.samples(rank)
            batches = measured.ran.rank(rank)["batches"]
            assert batches["unclear"] <= LEAST_UNCLEAR * batches["drawn"]
            missing = measured.ran.rank(rank)["not_measured"]
            assert [reason for reason in missing if not reason.startswith(MISSING)] == []
        if max(off_by(measured, rank) for rank in range(ranks)) < tolerance:
            break
    for rank in range(ranks):
        assert off_by(measured, rank) < tolerance
    return measured
