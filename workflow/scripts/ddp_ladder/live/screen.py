"""The layout of a picture on a screen of any size: where there is little room, less of what has ended or is to come.

Pure: a screen is a tuple of styled lines, none of which is wider than the screen.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from ddp_ladder.common.formats import DASH, NARROW_SPACE, count
from ddp_ladder.live.picture import Picture, RunRow, ScaleRow, StageRow

STYLES = {"good": "green", "bad": "bold red", "busy": "bold cyan", "waits": "yellow", "plain": ""}
BAR, REST = "\u2588", "\u2591"  # full block, light shade
PLAIN = str.maketrans({BAR: "#", REST: ".", DASH: "-", NARROW_SPACE: " ", "\u2026": ".", "\u00b5": "u"})
INDENT = "    "
FOOTER = "q ends this view; the ladder goes on"


@dataclass(frozen=True)
class Room:
    """How much is shown: nodes of a run, finished scales and those to come as rows, lines of a note, notes."""

    nodes: int = 16
    finished: bool = True
    to_come: bool = True
    note_lines: int = 3
    notes: int = 8
    gaps: bool = True
    head: bool = True


FOLDED = Room(nodes=4, finished=False, to_come=False, note_lines=2, notes=4)
ROOMS = (
    Room(),
    Room(nodes=4),
    Room(nodes=4, finished=False, note_lines=2, notes=4),
    FOLDED,
    replace(FOLDED, gaps=False),
    replace(FOLDED, gaps=False, note_lines=1, notes=3),
    replace(FOLDED, gaps=False, note_lines=1, notes=2, nodes=2),
    replace(FOLDED, gaps=False, note_lines=1, notes=1, nodes=1),
    replace(FOLDED, gaps=False, note_lines=1, notes=1, nodes=1, head=False),
)


def screen_of(picture: Picture, width: int, height: int, footer: str = FOOTER) -> tuple[Text, ...]:
    """Return at most ``height`` lines, each at most ``width`` wide; what does not fit even in short is left out."""
    lines: list[Text] = []
    for room in ROOMS:
        lines = list(_lines(picture, width, room))
        if len(lines) + bool(footer) <= height:
            break
    last = [Text(footer, "dim")] if footer else []
    lines = [*lines[: max(0, height - len(last))], *last]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return tuple(lines)


def plain(text: str) -> str:
    """Return a text for a terminal whose encoding lacks more than ASCII."""
    return text.translate(PLAIN).encode("ascii", "replace").decode()


def _lines(picture: Picture, width: int, room: Room) -> Iterator[Text]:
    yield _ends(Text(f"ddp-ladder: {picture.title}", "bold"), picture.clock, width)
    if room.head:
        yield Text(f"results  {picture.results}")
    yield Text(f"start    {picture.start}")
    if room.gaps:
        yield Text()
    for stage in picture.stages:
        yield from _stage(stage, width, room)
    if room.gaps:
        yield Text()
    yield from _scales(picture.scales, width, room)
    for run in picture.running:
        if room.gaps:
            yield Text()
        yield from _run(run, width, room)
    if picture.notes and room.gaps:
        yield Text()
    yield from _notes(picture.notes, width, room)
    if picture.report:
        yield from map(Text, textwrap.wrap(picture.report, width))  # a path is of use only as a whole


def _ends(left: Text, right: str, width: int) -> Text:
    """Return a line with a text at its right end."""
    left.truncate(max(0, width - len(right) - 1), overflow="ellipsis", pad=True)
    return left.append(f" {right}")


def _stage(stage: StageRow, width: int, room: Room) -> Iterator[Text]:
    head = f"{stage.name}  {stage.word:<7}  "
    wrapped = _wrapped(stage.text, width - len(head), 2 if room.note_lines > 1 else 1)
    for index, part in enumerate(wrapped):
        line = Text(f"{stage.name}  ") if index == 0 else Text(" " * len(head))
        if index == 0:
            line.append(f"{stage.word:<7}", STYLES[stage.mood]).append("  ")
        yield line.append(part)


def _scales(scales: Sequence[ScaleRow], width: int, room: Room) -> Iterator[Text]:
    finished = [] if room.finished else [scale for scale in scales if scale.mood == "good"]
    # The first one that is to come is shown, with the reason.
    later = [] if room.to_come else [scale for scale in scales if scale.mood == "plain"][1:]
    shown = [scale for scale in scales if scale not in (*finished, *later)]
    figures = f"{'samples/s':>12}{'efficiency':>12}" if any(scale.rate for scale in shown) else ""
    names = max(5, *(len(scale.name) for scale in scales)) + 1
    yield Text(f"{'scale':<{names}}{'runs':>5}{figures}", "dim")
    if finished:
        yield _folded(finished, "finished", "green")
    for scale in shown:
        yield from _scale(scale, names, width, room)
    if later:
        yield _folded(later, "to come", "")


def _folded(scales: Sequence[ScaleRow], word: str, style: str) -> Text:
    last = scales[-1]
    figures = f"; {last.name}: {last.rate} samples/s, {last.efficiency}" if last.rate else ""
    names = f"{scales[0].name} to {last.name}" if len(scales) > 1 else last.name
    return Text(f"{count(len(scales), 'scale')} {word}: {names}{figures}", style)


def _scale(scale: ScaleRow, names: int, width: int, room: Room) -> Iterator[Text]:
    line = Text(f"{scale.name:<{names}}{scale.runs:>5}")
    if scale.rate:
        line.append(f"{scale.rate:>12}{scale.efficiency:>12}")
    line.append("  ")
    indent = " " * len(line)
    for index, part in enumerate(_wrapped(scale.text, width - len(line), 2 if room.to_come else 1)):
        yield (line if index == 0 else Text(indent)).append(part, STYLES[scale.mood])


def _run(run: RunRow, width: int, room: Room) -> Iterator[Text]:
    line = Text.assemble((run.name, "bold"), f"  {run.place}")
    share = "" if run.fraction is None else f" {100 * run.fraction:3.0f} %"
    bar = width - len(line) - len(share) - 2
    if run.fraction is not None and bar >= 10:
        done = int(bar * min(1.0, run.fraction))
        line.append("  ").append(BAR * done, "cyan").append(REST * (bar - done), "dim").append(share)
    yield line
    yield Text(f"{INDENT}{run.text}")
    yield from _nodes(run, room)


def _nodes(run: RunRow, room: Room) -> Iterator[Text]:
    """Yield a row for each node; where they do not fit, one for all and those of the nodes that do least."""
    shown = list(run.nodes)
    if len(shown) > room.nodes and run.all_nodes is not None:
        least = sorted(run.nodes, key=lambda node: (not node.is_stale, node.busy_fraction))
        shown = [run.all_nodes, *least[: room.nodes - 1]]
    if not shown:
        return
    names = min(20, max(12, *(len(node.node) for node in shown)))
    gpus = f"{'GPU':>7}{'GPU mem':>10}{'power':>9}" if run.has_gpus else ""
    yield Text(f"{INDENT}{'node':<{names}}{'CPU':>7}{'busiest':>9}{gpus}{'seen':>14}", "dim")
    for node in shown:
        figures = f"{node.gpu:>7}{node.gpu_memory:>10}{node.power:>9}" if run.has_gpus else ""
        row = f"{INDENT}{node.node[:names]:<{names}}{node.cpu:>7}{node.busiest:>9}{figures}"
        yield Text(row).append(f"{node.age:>14}", "yellow" if node.is_stale else "dim")


def _notes(notes: Sequence[str], width: int, room: Room) -> Iterator[Text]:
    for note in notes[: room.notes]:
        for index, part in enumerate(_wrapped(note, width - 2, room.note_lines)):
            yield Text("! " if index == 0 else "  ", "yellow").append(part, "")
    if len(notes) > room.notes:
        yield Text(f"  and {count(len(notes) - room.notes, 'more note')}", "dim")


def _wrapped(text: str, width: int, most: int) -> list[str]:
    """Return a text as at most so many lines; what is cut off is marked."""
    return textwrap.wrap(text, max(10, width), max_lines=most, placeholder=" \u2026") or [""]
