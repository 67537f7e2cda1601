"""Kept logs of small loops, with what the rules made of them: another judgement needs another version of the rules.

    export PYTHONPATH=workflow/scripts:tests
    .venv/bin/python tests/unit/instrument/test_kept_logs.py            judges them anew, once RULES has risen
    .venv/bin/python tests/unit/instrument/test_kept_logs.py NAME...    runs these loops again, and keeps their logs

A file has a line for each event (its columns of module ``log``, without zeros at the end, times in microseconds after
the first one), and after an empty line the version of the rules, the rows, and what else was judged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import Log, read_log
from ddp_ladder_instrument.machine import RULES, judge

FOLDER = Path(__file__).parent / "kept_logs"
LOOPS = {
    "accumulation": "accumulate.py sync",
    "adversarial": "eval_mode.py adversarial",
    "behind": "left_out.py behind",
    "closures": "optimizers.py lbfgs",
    "gan": "gan.py twice",
    "layers": "optimizers.py per_layer",
    "no_grad": "left_out.py no_grad",
    "saves": "snapshots.py",
    "scaler": "amp.py fused",
    "thrown": "left_out.py thrown",
    "validation": "validate.py --where before_use --grad grad",
    "validation_inside": "validate.py --where inside --grad grad --data cut_short",
}


def text_of(events: Log) -> str:
    lines = []
    (_, start_s, *_), *_ = events.events()
    for kind, begin_s, end_s, *rest in events.events():
        if kind == log.RANK:
            rest[1] = 0  # the unix time
        times_s = (begin_s if kind == log.DDP else begin_s - start_s, end_s - start_s)
        times = (round(1e6 * each) for each in times_s)
        figures = [int(kind), *times, *(int(each) if each == int(each) else round(each, 6) for each in rest)]
        while figures[-1] == 0 and len(figures) > 3:
            figures.pop()
        lines.append(" ".join(map(str, figures)))
    return "\n".join(lines)


def log_in(text: str) -> Log:
    events = Log()
    for line in text.splitlines():
        kind, begin_us, end_us, *rest = map(float, line.split())
        events.add(int(kind), begin_us / 1e6, end_us / 1e6, *rest)
    return events


def judged_text(events: Log) -> str:
    """Return what the rules of now make of a log."""
    judged = judge(events, None)
    table = judged.table
    columns = (table.samples, table.padding_samples, table.backwards)
    seconds = (table.step_time_s, table.data_wait_s, table.ended_at_s)
    rows = [
        " ".join(map(str, (*counts, *(round(1e6 * each) for each in times))))
        for counts, times in zip(zip(*columns, strict=True), zip(*seconds, strict=True), strict=True)
    ]
    others = {"ddp": table.ddp, **judged._asdict(), "batches": judged.batches._asdict()}
    del others["table"], others["places"]  # none in these logs
    lines = (f"{name} {json.dumps(_rounded(value))}" for name, value in others.items())
    return "\n".join([f"rules {RULES}", *rows, *lines])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


@pytest.mark.parametrize("name", LOOPS)
def test_the_same_log_is_judged_as_before(name: str) -> None:
    events, judged = (FOLDER / f"{name}.txt").read_text().split("\n\n")
    now = judged_text(log_in(events))
    assert now == judged.strip(), (
        "raise RULES, and judge the kept logs anew: python tests/unit/instrument/test_kept_logs.py"
    )


def judge_anew() -> None:
    """Write what the rules of now make of the kept logs. Raises SystemExit without a new version of them."""
    for name in LOOPS:
        path = FOLDER / f"{name}.txt"
        events, judged = path.read_text().split("\n\n")
        now = judged_text(log_in(events))
        if now != judged.strip() and judged.startswith(f"rules {RULES}\n"):
            raise SystemExit(f"{path}: rules {RULES} judged it otherwise: raise RULES in machine.py first")
        path.write_text(f"{events}\n\n{now}\n")


def keep(names: list[str]) -> None:
    from scripts_support import run
    from warm import Warm

    warm = Warm("torch", "torch._dynamo")
    for name in names:
        with TemporaryDirectory() as directory:
            measured = run(
                warm, Path(directory), *LOOPS[name].split(), ranks=1, max_steps=34 if name == "saves" else 16
            )
            content = measured.ran.path(0, "log").read_bytes()
        events = text_of(read_log(content))
        (FOLDER / f"{name}.txt").write_text(f"{events}\n\n{judged_text(log_in(events))}\n")
    warm.close()


if __name__ == "__main__":
    keep(sys.argv[1:]) if sys.argv[1:] else judge_anew()
