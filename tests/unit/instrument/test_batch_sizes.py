"""How many samples a batch has: by its sampler, if the batch agrees, else by what arrived; its digest. No processes."""

from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ddp_ladder_instrument.batch_sizes import FIRST_BATCHES, BatchSizes, digest
from torch import Size, Tensor, nested, zeros
from torch.nn.utils.rnn import pack_sequence


def of(*lengths: int) -> list[Tensor]:
    return [zeros(length, 4) for length in lengths]


PROMPTS = [{"prompt": [{"role": "user", "content": "2 + 2?"}] * turns} for turns in (1, 3)]
BOXES = [{"image": zeros(3, 5, 7), "boxes": zeros(count, 4)} for count in (1, 0)]
ITSELF = SimpleNamespace(x=zeros(8, 2))
ITSELF.me = ITSELF
READ: dict[str, tuple[Any, int, tuple[int, ...]]] = {  # size; what it may be if it is not clear
    "a tensor": (zeros(6, 3), 6, ()),
    "inputs and labels": ([zeros(6, 3, 8, 8), zeros(6)], 6, ()),
    "a mapping": (UserDict(ids=zeros(6, 9), mask=zeros(6, 9), scale=zeros(())), 6, ()),
    "an object": (SimpleNamespace(name="train", x=zeros(6, 3), epoch=2), 6, ()),
    "graphs": (SimpleNamespace(num_graphs=6, x=zeros(40, 3)), 6, ()),
    "a nested tensor": (nested.nested_tensor(of(5, 3, 1)), 3, ()),
    "a packed sequence": (pack_sequence(of(5, 3, 1)), 3, ()),
    "conversations": (PROMPTS, 2, (1, 2, 3)),
    "texts and labels": ((["a", "b"], ["c", "d"]), 2, ()),
    "a mapping in a mapping": ({"ids": {"inner": zeros(6, 1)}, "n": 2}, 6, ()),
    "a scalar before": ((zeros(()), [zeros(2)]), 2, ()),
    "an object that says its size": (SimpleNamespace(batch_size=4), 4, ()),
    "an object with a shape of batches": ([SimpleNamespace(batch_size=Size([3, 2]))], 3, ()),
    "an object that holds itself": (ITSELF, 8, ()),
    "an array of numpy": (np.zeros((9, 2)), 9, ()),
    "a scalar": (zeros(()), 0, ()),
    "nothing": ({"name": "a"}, 0, ()),
    "packed rows": ({"cu_seqlens": zeros(9), "input_ids": zeros(4, 7)}, 4, (4, 9)),
    "one row": ({"cu_seqlens": zeros(9), "input_ids": zeros(1, 70)}, 1, (1, 9)),
    "images of different lengths": (of(3, 5, 4, 5), 3, (3, 4, 5)),
    "images and boxes": (BOXES, 2, (0, 1, 2, 3)),
}


@pytest.mark.parametrize("batch", READ)
def test_a_size_that_nobody_announced_is_read(batch: str) -> None:
    content, size, unclear = READ[batch]
    sizes = BatchSizes()
    assert [sizes.measure(content, None)[0] for _ in range(3 * FIRST_BATCHES)] == 3 * FIRST_BATCHES * [size]
    assert tuple(sizes.unclear) == unclear


def test_items_that_a_loader_takes_from_a_stream_are_samples_and_its_last_batch_has_what_is_left() -> None:
    whole, last, packed = zeros(8, 9), zeros(3, 9), zeros(4, 70)
    sizes, of_packed = BatchSizes(is_stream=True), BatchSizes(is_stream=True)
    assert [sizes.measure(batch, 8)[0] for batch in (whole, whole, last)] == [8, 8, 3]
    assert [of_packed.measure(packed, 16)[0] for _ in range(3)] == [16] * 3
    assert [sizes.unclear, of_packed.unclear] == [[], []]


COMPARED: dict[str, tuple[Any, int, tuple[int, ...]]] = {  # of 6 indices
    "inputs and labels": ([zeros(6, 3), zeros(6)], 6, ()),
    "texts": (["a"] * 6, 6, ()),
    "images, each with its boxes": ((tuple(of(3, 3, 3, 3, 3, 3)), [{"boxes": zeros(k, 4)} for k in range(6)]), 6, ()),
    "packed, and one row for each": ({"cu_seqlens": zeros(9), "input_ids": zeros(6, 7)}, 6, ()),
    "time first": (zeros(4, 6), 6, ()),
    "time first, with lengths": ((zeros(9, 6, 3), zeros(6)), 6, ()),
    "some are left out": ([zeros(5, 3, 8, 8), zeros(5)], 5, ()),
    "some are left out, no labels": (zeros(5, 3), 5, ()),
    "some images are left out, and their boxes": ([zeros(5, 3, 8, 8), zeros(40, 5)], 5, ()),
    "some texts are left out": (["a"] * 5, 5, ()),
    "all are left out": (None, 0, ()),
    "all in one row": ({"input_ids": zeros(1, 70), "position_ids": zeros(1, 70)}, 6, ()),
    "packed into fewer rows": ({"cu_seqlens": zeros(9), "input_ids": zeros(2, 7)}, 6, ()),
    "points, or batches": ([zeros(500, 3), zeros(500)], 6, (6, 500)),
    "two sizes that may be what arrived": ([zeros(5, 3), zeros(4)], 6, (4, 5, 6)),
    "as they are": ([(zeros(3, 8, 8), 1)] * 6, 6, ()),
    "as they are, some are left out": ([(zeros(4), zeros(()))] * 5, 5, ()),
    "half of them are left out": ([zeros(2, 3), zeros(2)], 2, ()),
    "of which nothing is known": (object(), 6, ()),
}


@pytest.mark.parametrize("batch", COMPARED)
def test_what_the_sampler_gave_is_compared_with_what_arrived(batch: str) -> None:
    content, size, unclear = COMPARED[batch]
    sizes, count = BatchSizes(), 3 * FIRST_BATCHES
    assert [sizes.measure(content, 6) for _ in range(count)] == count * [(size, 6 - size)]
    assert tuple(sizes.unclear) == unclear


def test_once_some_were_left_out_every_batch_is_examined() -> None:
    whole, left = ([(zeros(4), zeros(()))] * count for count in (6, 5))
    sizes = BatchSizes()
    batches = [left, *[whole] * 2 * FIRST_BATCHES, *[left, whole] * 10]
    assert sum(sizes.measure(batch, 6)[0] for batch in batches) == sum(map(len, batches))


def test_a_tensor_of_one_does_not_make_a_streams_item_one_sample() -> None:
    item = [zeros(64, 3, 8, 8), zeros(64), zeros(1)]
    sizes, of_one = BatchSizes(items=True), BatchSizes(items=True)
    assert (sizes.measure(item, None), sizes.unclear) == ((64, 0), [1, 64])
    assert (of_one.measure([zeros(1, 3, 8, 8), zeros(1)], None), of_one.unclear) == ((1, 0), [])


def test_what_a_stream_gives_as_it_is_is_a_sample_or_a_batch() -> None:
    """Nothing tells which."""
    for item in (zeros(3, 8, 8), {"input_ids": zeros(1024), "labels": zeros(1024)}):
        sizes = BatchSizes(items=True)
        size, _ = sizes.measure(item, None)
        assert sizes.unclear == [1, size]


# What the dataset gives; its indices, size, what it may be.
ITEMS: dict[str, tuple[Any, int | None, int, list[int]]] = {
    "detectron2's dict": ({"image": zeros(3, 9, 9), "instances": [zeros(4)], "height": 9}, 1, 1, []),
    "an image": (zeros(3, 8, 8), 1, 1, []),
    "packed tokens": ({"input_ids": zeros(1024), "labels": zeros(1024)}, 1, 1, []),
    "a batch that the dataset has made, perhaps": ([zeros(64, 3, 8, 8), zeros(64)], 1, 1, [1, 64]),
    "a batch of a list of indices": ([zeros(64, 3, 8, 8), zeros(64)], 64, 64, []),
    "nothing": (None, 1, 0, []),
}


@pytest.mark.parametrize("item", ITEMS)
def test_what_a_dataset_has_for_an_index_is_one_sample(item: str) -> None:
    content, announced, size, unclear = ITEMS[item]
    sizes = BatchSizes(items=True)
    assert {sizes.measure(content, announced)[0] for _ in range(3 * FIRST_BATCHES)} == {size}
    assert sizes.unclear == unclear


def test_batches_with_which_a_sampler_pads_are_no_samples() -> None:
    sizes = BatchSizes(real=2)
    assert [sizes.measure(zeros(6, 3), 6) for _ in range(3)] == [(6, 0), (6, 0), (0, 6)]


class Touchy:
    def __getattr__(self, name: str) -> object:
        raise ValueError(f"no {name}")


class TouchyTensor(Tensor):
    @classmethod
    def __torch_function__(cls, *_: object) -> object:
        raise ValueError("not for others")


class TouchyMapping(UserDict[str, object]):
    def values(self) -> Any:
        raise ValueError("not now")


def test_what_raises_when_it_is_asked_is_taken_as_it_is() -> None:
    sizes = BatchSizes()
    assert sizes.measure([zeros(6, 3).as_subclass(TouchyTensor), Touchy()], 6) == (6, 0)
    assert sizes.unclear == []
    assert sizes.measure(TouchyMapping(x=zeros(6, 3)), 6) == (6, 0)
    assert sizes.unclear == [6]  # not seen: a guess


TOKENS: dict[str, tuple[list[Any], list[int]]] = {  # batches of 4; the different lengths of their samples
    "all alike": ([{"input_ids": zeros(4, 9)}, UserDict(input_ids=zeros(4, 9))], [9]),
    "arrays": ([{"input_ids": np.zeros((4, 9))}], [9]),
    "padded to the longest": ([{"input_ids": zeros(4, length)} for length in (9, 8, 7)], [9, 8]),
    "time first": ([{"input_ids": zeros(9, 4), "labels": zeros(4)}], [0]),
    "without": ([{"pixels": zeros(4, 9)}, zeros(4, 9), None], [0]),
    "one without": ([{"input_ids": zeros(4, 9)}, {"pixels": zeros(4, 9)}], [9, 0]),
    "nested": ([{"input_ids": nested.nested_tensor(of(5, 3, 1, 2))}], [0]),
}


@pytest.mark.parametrize("batches", TOKENS)
def test_the_tokens_of_a_sample_are_the_one_length_of_input_ids(batches: str) -> None:
    given, lengths = TOKENS[batches]
    sizes = BatchSizes()
    for batch in given:
        sizes.measure(batch, 4)
    assert sizes.lengths == lengths


def test_batches_that_differ_anywhere_have_different_digests() -> None:
    x, y = torch.randn(12, 3), torch.arange(12)
    images = zeros(2, 3, 300, 300)
    lit = images.clone()
    lit[1, :, 200:] = 1.0
    long = torch.arange(1_000_000).reshape(1, -1)
    batches = [(x, {"label": y}), (x, {"label": y + 1}), images, lit, long, long + 1]
    found = [digest(batch) for batch in batches]
    assert len({*found}) == len(batches)
    assert digest(lit.to(memory_format=torch.channels_last)) == found[3]
