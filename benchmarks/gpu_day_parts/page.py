"""The day as a page of text, from the content of gpu_day.json."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 120
LIMITS = (("at_least", "at least"), ("at_most", "at most"))


def page(day: Mapping[str, Any]) -> str:
    """Return the checklist, a table of the parts, then each part's targets, figures and notes."""
    parts = (line for part in day["parts"] for line in _part(part))
    return "\n".join([*_head(day), "", *seen(day["checklist"]), "", *_table(day), *parts, ""])


def seen(checklist: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the checklist."""
    for row in checklist:
        why = f" ({row['why']})" if row["why"] else ""
        line = f"{row['number']:2} {row['status']:17}  {row['text']}{why}"
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * 22)


def _head(day: Mapping[str, Any]) -> Iterator[str]:
    machine = day["machine"]
    yield f"GPU day of {day['date']} on {machine.get('gpu') or machine.get('cpu') or 'an unknown machine'}"
    if day["device"] == "cpu":
        yield "NO GPU: small sizes on the CPU; these figures do not show the speed of a GPU"
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("python", "torch", "cuda", "cudnn", "nccl") if name in machine
    )
    yield versions or "versions unknown: the part card did not end well"
    yield f"commit {day['commit'] or 'unknown'}; {day['wall_s']:.0f} s of a budget of {day['budget_s']:.0f} s"
    yield day["verdict"]


def _table(day: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'part':10} {'status':12} {'s':>4}  {'targets':7}  what"
    for part in day["parts"]:
        judged = [check["met"] for check in part["checks"] if check["met"] is not None]
        targets = f"{sum(judged)} of {len(judged)}" if judged else "-"
        what = part["why"] or part["headline"] or ""
        yield f"{part['name']:10} {part['status']:12} {part['wall_s']:4.0f}  {targets:7}  {what}".rstrip()


def _part(part: Mapping[str, Any]) -> Iterator[str]:
    if not (part["figures"] or part["checks"] or part["notes"]):
        return
    yield from ("", f"{part['name']}: {part['title']}")
    for check in part["checks"]:
        wanted = " and ".join(f"{word} {check[key]:g}" for key, word in LIMITS if check[key] is not None)
        verdict = {True: "met", False: "MISSED", None: "not judged"}[check["met"]]
        yield f"  target {verdict}: {check['what']}: {_text(check['value'])}, wanted {wanted}"
    yield from _figures(part["figures"], "  ")
    for note in part["notes"]:
        lines = [note] if "\n" in note else textwrap.wrap(note, WIDTH - 2)
        yield from (textwrap.indent(line, "  ") for line in lines)


def _figures(figures: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}"
            yield from _figures(value, indent + "  ")
        else:
            yield f"{indent}{name}: {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
