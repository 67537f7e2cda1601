"""What a witness has seen, as the content of its file: for each place that draws, what became of its batches. Pure."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

SCHEMA_VERSION = 1
MANUAL = -1
"""In place of an optimizer: the script changes parameters itself."""
LIBRARIES = ("site-packages", "dist-packages")
OWN = "/ddp_ladder_instrument/"
BETWEEN = ("torch/", OWN[1:], "accelerate/", "webdataset/", "torchdata/", "contextlib.py")
"""Packages, and a file, between the line that draws and the loader."""


class Drawn(NamedTuple):
    """A drawn batch. place: the lines that drew the first batch of its pass, innermost first; samples: 0: unknown."""

    pass_: int
    place: tuple[str, ...]
    samples: int


class Step(NamedTuple):
    """A step of an optimizer: the batches that it trained on, with the samples of each that the model was shown.

    targets: batches that only a loss saw (what a teacher has made of them).
    """

    optimizer: int
    samples: Mapping[int, float]
    targets: frozenset[int]


def lines_here() -> tuple[str, ...]:
    """Return the lines that are running, innermost first: that which draws, and who called it."""
    return tuple(_lines(sys._getframe(1)))


def frame_outside() -> FrameType:
    """Return the innermost frame that is none of the instrument's."""
    frame = sys._getframe(1)
    while OWN in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _lines(frame: FrameType | None) -> Iterator[str]:
    """Yield file:line, up to the outermost line of the script."""
    is_between = True
    while frame is not None:
        file = frame.f_code.co_filename
        is_between = is_between and any(f"/{name}" in file for name in BETWEEN)
        if not is_between and OWN in file:  # what runs the script
            return
        if not is_between:
            yield f"{_short(file)}:{frame.f_lineno}"
        frame = frame.f_back


def _short(file: str) -> str:
    """Return the path of a file, of a library's without the directory of all libraries."""
    return next((file.partition(f"/{name}/")[2] for name in LIBRARIES if f"/{name}/" in file), file)


def training_of(steps: Sequence[Step]) -> int | None:
    """Return the optimizer whose steps are the training: it trains on the most samples; None if none does.

    A script that changes parameters beside an optimizer's steps (SAM, averages) trains with the optimizer.
    """
    samples: dict[int, float] = {}
    for step in steps:
        seen = sum(step.samples.values()) or len(step.samples)
        samples[step.optimizer] = samples.get(step.optimizer, 0.0) + seen
    own = {optimizer: count for optimizer, count in samples.items() if optimizer != MANUAL} or samples
    return max(own, key=lambda optimizer: (own[optimizer], -optimizer)) if own else None


def content(
    batches: Sequence[Drawn], steps: Sequence[Step], doubts: Mapping[str, int], not_followed: Mapping[str, int]
) -> dict[str, Any]:
    """Return the content of witness.json. Samples of a place: those drawn, and those that the training was shown."""
    main = training_of(steps)
    training = [step for step in steps if step.optimizer == main]
    trained: Counter[int] = Counter()
    for step in training:
        trained.update(dict.fromkeys(step.samples, 1))
    shown: dict[int, float] = {}
    for step in training:
        for number, samples in step.samples.items():
            shown[number] = shown.get(number, 0.0) + samples
    return {
        "schema_version": SCHEMA_VERSION,
        "steps": len(training),
        "samples": [round(sum(step.samples.values())) for step in training],
        "optimizers": dict(Counter(str(step.optimizer) for step in steps)),
        "retrained": sum(count - 1 for count in trained.values()),
        "places": [_place(batches, numbers, trained, shown, training) for numbers in _by_place(batches)],
        "doubts": {text: count for text, count in doubts.items() if count},
        "not_followed": dict(not_followed),
    }


def _by_place(batches: Sequence[Drawn]) -> list[list[int]]:
    """Return the numbers of the batches of each place."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, batch in enumerate(batches):
        found.setdefault(batch.place, []).append(number)
    return [*found.values()]


def _place(
    batches: Sequence[Drawn],
    numbers: Sequence[int],
    trained: Mapping[int, int],
    shown: Mapping[int, float],
    training: Sequence[Step],
) -> dict[str, Any]:
    lines = batches[numbers[0]].place
    sizes = Counter(batches[number].samples for number in numbers)
    own = {*numbers}
    passes = {batches[number].pass_ for number in numbers}
    of_steps = Counter(len(own & set(step.samples)) for step in training)
    del of_steps[0]
    return {
        "lines": [lines[0], *(line for line in lines[1:] if line.startswith("/"))][:2],
        "passes": len(passes),
        "passes_that_train": len({batches[number].pass_ for number in numbers if number in trained}),
        "batches": len(numbers),
        "trained": sum(number in trained for number in numbers),
        "samples": sum(batches[number].samples for number in numbers),
        "samples_trained": round(sum(shown.get(number, 0) for number in numbers)),
        "sizes": dict(sorted(sizes.items())),
        "batches_of_a_step": dict(sorted(of_steps.items())),
        "targets": len(own & frozenset().union(*(step.targets for step in training))),
    }


def in_words(place: Mapping[str, Any]) -> str:
    """Return what became of the batches of a place, for a person."""
    lines = place["lines"]
    called = f" (called at {lines[1]})" if len(lines) > 1 else ""
    text = f"{lines[0]}{called}: {place['batches']:,} batches, {place['samples']:,} samples"
    if not place["trained"]:
        return text + (f"; the loss saw {place['targets']:,} of them beside others" if place["targets"] else "")
    usual = max(place["batches_of_a_step"], key=place["batches_of_a_step"].get)
    all_of = "all" if place["trained"] == place["batches"] else f"{place['trained']:,} of them"
    return f"{text}; trained on: {all_of}, {place['samples_trained']:,} samples; {usual} a step"
