"""Two ranks with NCCL on one GPU: the end by max_steps while the host is ahead of the device, and the flight record."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from gpu_day_parts.figures import Figures, Setting
from gpu_day_parts.runs import Ran, train

TIMES = {"cuda": 20, "cpu": 1}
STEPS = {"cuda": 200, "cpu": 20}
AT_ONCE = 4
STARTED_WITHIN_S = 60.0
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}  # the second one is the older name
OLDER = {"TORCH_DIST_USE_NCCL2": "0"}


def measure(setting: Setting, figures: Figures) -> None:
    """Repeat the end by max_steps; let a rank pause; with torch 2.15 or newer, both with NCCL's older backend, too."""
    until_s = time.monotonic() + STARTED_WITHIN_S
    steps, times = STEPS[setting.device], TIMES[setting.device]

    def end_early(name: str, **env: str) -> Ran:
        return train(setting.work / name, ["ahead", setting.device, 10**9], 2, True, steps, **env)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        each = pool.map(lambda k: end_early(f"ahead{k}") if not k or time.monotonic() < until_s else None, range(times))
        ran = [run for run in each if run is not None]
    bad = [why for run in ran if (why := spoilt(run, steps))]
    figures.put(runs=len(ran), steps=steps, spoilt=bad)
    figures.check("runs of two ranks that max_steps ended badly", len(bad), at_most=0, shows=3)
    figures.check("such runs", len(ran), at_least=times, shows=3)
    figures.headline(f"{len(ran) - len(bad)} of {len(ran)} runs of {steps} steps ended with equal, finite parameters")
    if good := [run for run in ran if not run.problem]:
        ahead = min(run.result(rank)["ahead"] for run in good for rank in (0, 1))
        figures.check("steps that the host was ahead at the end, at least", ahead, at_least=2, shows=3)
        training = min(run.record()["training_s"] / sum(run.step_times_s()[1:]) for run in good)
        figures.check("end to end / sum of step times, though the host was ahead", training, at_least=0.98)
        figures.put(startup_s=good[0].record()["startup_s"])
    _pause(setting, figures, "pause", {})
    if torch.__version__ >= "2.15":
        older = end_early("older", **OLDER)
        why = spoilt(older, steps)
        figures.put(older_spoilt=why, older_startup_s=None if older.problem else older.record()["startup_s"])
        figures.check("runs with NCCL's older backend that ended badly", int(bool(why)), at_most=0, shows=4)
        _pause(setting, figures, "older_pause", OLDER)


def spoilt(ran: Ran, steps: int) -> str:
    """Return what is wrong with a run that max_steps ended; empty if nothing is."""
    if ran.problem:
        return ran.problem
    ends, parameters = [], []
    for record in (ran.record(rank) for rank in (0, 1)):
        ends.append((record["ended_by"], record["steps"]["count"]))
        parameters.append(record["parameters"] or {"checksum": None, "not_finite": {"count": record["not_measured"]}})
    if ends != [("max_steps", steps)] * 2:
        return f"{ran.directory.name}: ended by {ends}"
    if parameters[0]["checksum"] != parameters[1]["checksum"]:
        return f"{ran.directory.name}: parameters differ"
    bad = [each["not_finite"]["count"] for each in parameters]
    return f"{ran.directory.name}: parameters that are not finite: {bad}" if any(bad) else ""


def _pause(setting: Setting, figures: Figures, name: str, env: dict[str, str]) -> None:
    """Let rank 1 pause, and count the collective calls in the flight records of both ranks."""
    words: list[object] = ["pause", setting.device, STEPS[setting.device]]
    ran = train(setting.work / name, words, 2, True, **RECORDER, **env)
    files = [ran.directory / "ranks" / f"flight_{rank}" for rank in (0, 1)]
    calls = [len(pickle.loads(file.read_bytes())["entries"]) if file.exists() else 0 for file in files]
    figures.put(**{f"{name}_recorded_calls": calls, f"{name}_problem": ran.problem})
    figures.check(f"{name}: calls in the flight record of the rank with fewer", min(calls), at_least=1, shows=4)
