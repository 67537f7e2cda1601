"""What a witness has seen, as the content of its file: for each place that draws, what became of its batches. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ddp_ladder_instrument import places
from ddp_ladder_instrument.places import Place

SCHEMA_VERSION = 1
MOST_PASSES = 200
"""Passes of a place whose shares are told."""
MANUAL = -1
"""In place of an optimizer: the script changes parameters itself."""

UNSEEN = "parameters were changed by a kernel that torch's dispatcher does not show"
NO_TENSORS = "batches without tensors, which cannot be followed"
NO_BATCH = "steps that changed parameters by data of no loader"
MIXED = "steps that train on a batch of an earlier step beside a new one"
ROWS = "batches of which the loss saw only some rows"
CLOSURE = "batches that a closure draws inside an optimizer's step, which may call it several times"


class Tokens(NamedTuple):
    """The tokens of a batch: those of input_ids, those of them that attention_mask shows, those with a label.

    None: the batch has no attention_mask, or no labels of its shape.
    """

    all: int
    attended: Optional[int]
    labelled: Optional[int]


class Drawn(NamedTuple):
    """A drawn batch. place: what drew the first batch of its pass; samples: 0: unknown; tokens: None: it has none."""

    pass_: int
    place: Place
    samples: int
    tokens: Optional[Tokens] = None


class Step(NamedTuple):
    """A step of an optimizer: the batches that it trained on, with the samples of each that the model was shown.

    targets: batches that only a loss saw (what a teacher has made of them).
    """

    optimizer: int
    samples: Mapping[int, float]
    targets: frozenset[int]


def training_steps(batches: Sequence[Drawn], steps: Sequence[Step]) -> list[Step]:
    """Return the steps of the training: those of the optimizer that trains on the most samples.

    A script that changes parameters beside an optimizer's steps (SAM, averages) trains with the optimizer. Several
    steps in a row on the same batches are one step of the training, and these batches count once; but if there are no
    others in the whole run, each step counts.
    """
    samples: dict[int, float] = {}
    for step in steps:
        seen = sum(step.samples.values()) or len(step.samples)
        samples[step.optimizer] = samples.get(step.optimizer, 0.0) + seen
    own = {optimizer: count for optimizer, count in samples.items() if optimizer != MANUAL} or samples
    most = max(own, key=lambda optimizer: (own[optimizer], -optimizer), default=None)
    training = [step for step in steps if step.optimizer == most]
    in_a_row = [[*group] for _, group in itertools.groupby(training, key=lambda step: {*step.samples})]
    if len(in_a_row) == 1:
        return training
    return [_joined(batches, group) if len(group) > 1 else group[0] for group in in_a_row]


def _joined(batches: Sequence[Drawn], steps: Sequence[Step]) -> Step:
    samples = {
        number: min(float(batches[number].samples), sum(step.samples[number] for step in steps))
        for number in steps[0].samples
    }
    return Step(steps[0].optimizer, samples, frozenset().union(*(step.targets for step in steps)))


def content(
    batches: Sequence[Drawn],
    steps: Sequence[Step],
    training: Sequence[Step],
    doubts: Mapping[str, int],
    not_followed: Mapping[str, int],
) -> dict[str, Any]:
    """Return the content of witness.json. Samples of a place: those drawn, and those that the training was shown.

    training: ``training_steps`` of the steps.
    """
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
        "steps_in_a_row": sum(step.optimizer == training[0].optimizer for step in steps) / len(training)
        if training
        else 0,
        "optimizers": dict(Counter(str(step.optimizer) for step in steps)),
        "retrained": sum(count - 1 for count in trained.values()),
        "tokens": _tokens([batches[number].tokens for number in trained]),
        "places": [_place(batches, numbers, trained, shown, training) for numbers in _by_place(batches)],
        "doubts": {text: count for text, count in doubts.items() if count},
        "not_followed": dict(not_followed),
    }


def _tokens(of_batches: Sequence[Optional[Tokens]]) -> Optional[dict[str, Optional[int]]]:
    """Return the sums over the batches of the training; None if one of them has no tokens."""
    known = [tokens for tokens in of_batches if tokens is not None]
    if not known or len(known) < len(of_batches):
        return None
    sums = [None if None in values else sum(values) for values in zip(*known)]
    return dict(zip(Tokens._fields, sums))


def _by_place(batches: Sequence[Drawn]) -> list[list[int]]:
    """Return the numbers of the batches of each place."""
    found: dict[Place, list[int]] = {}
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
    sizes = Counter(batches[number].samples for number in numbers)
    own = {*numbers}
    passes = {batches[number].pass_ for number in numbers}
    of_steps = Counter(len(own & set(step.samples)) for step in training)
    del of_steps[0]
    return {
        "lines": [*batches[numbers[0]].place],
        "passes": len(passes),
        "passes_that_train": len({batches[number].pass_ for number in numbers if number in trained}),
        "batches": len(numbers),
        "trained": sum(number in trained for number in numbers),
        "samples": sum(batches[number].samples for number in numbers),
        "samples_trained": round(sum(shown.get(number, 0) for number in numbers)),
        "sizes": dict(sorted(sizes.items())),
        "batches_of_a_step": dict(sorted(of_steps.items())),
        "targets": len(own & frozenset().union(*(step.targets for step in training))),
        "shares": _shares(batches, numbers, shown),
    }


def _shares(batches: Sequence[Drawn], numbers: Sequence[int], shown: Mapping[int, float]) -> list[float]:
    """Return the share of the samples of each pass that was trained on, but for a last one that is shorter."""
    of_passes: dict[int, list[int]] = {}
    for number in numbers:
        of_passes.setdefault(batches[number].pass_, []).append(number)
    passes = [*of_passes.values()]
    if len(passes) > 1 and len(passes[-1]) < len(passes[-2]):
        passes.pop()
    drawn = [sum(batches[number].samples for number in of_pass) for of_pass in passes]
    return [
        sum(shown.get(number, 0.0) for number in of_pass) / samples
        for of_pass, samples in zip(passes[:MOST_PASSES], drawn)
        if samples
    ]


def in_words(place: Mapping[str, Any]) -> str:
    """Return what became of the batches of a place, for a person."""
    text = f"{places.in_words(place['lines'])}: {place['batches']:,} batches, {place['samples']:,} samples"
    if not place["trained"]:
        return text + (f"; the loss saw {place['targets']:,} of them beside others" if place["targets"] else "")
    usual = max(place["batches_of_a_step"], key=place["batches_of_a_step"].get)
    all_of = "all" if place["trained"] == place["batches"] else f"{place['trained']:,} of them"
    return f"{text}; trained on: {all_of}, {place['samples_trained']:,} samples; {usual} a step"
