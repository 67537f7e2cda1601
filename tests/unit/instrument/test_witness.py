"""Loops as people write them: the witness tells their own count of samples, or a doubt with it."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from ddp_ladder_instrument.contract import WITNESS_STEPS
from ddp_ladder_instrument.files import NotMeasured, RunSettings
from ddp_ladder_instrument.log import read_log
from ddp_ladder_instrument.observer import TorchObserver
from ddp_ladder_instrument.places import Place
from ddp_ladder_instrument.recorder import Recorder
from ddp_ladder_instrument.stop import RunLimits
from ddp_ladder_instrument.testimony import Drawn
from ddp_ladder_instrument.witness import NONE, RAW, WHOLE, Range, Tag, Tagged, Witness
from instrument_support import INSTRUMENT, python_named, run_plainly, script
from rank_support import on_ranks
from torch.utils.data import DataLoader
from witness_support import counted
from witnessed_loops import DOUBTS, LOOPS, OF_TWO_RANKS


class Told(NamedTuple):
    """What a run of a loop leaves: its own tally of each step's samples, its testimony, and its log with the places."""

    tally: list[int]
    testimony: dict[str, Any]
    log: bytes
    places: list[Place]


def followed(run: Callable[[list[int]], None]) -> Told:
    """Run a loop in this process, with all hooks."""
    if os.environ["WORLD_SIZE"] != "1":
        torch.distributed.init_process_group("gloo")
    recorder, tally = Recorder(), list[int]()
    settings = RunSettings(Path(), "", {}, warmup_steps=0, is_witness=True)
    observer = TorchObserver(settings, recorder, RunLimits(None, None, lambda: None), NotMeasured(), lambda: None)
    observer.install()
    recorder.begin()
    torch.manual_seed(0)
    run(tally)
    assert observer.witness is not None
    testimony = observer.witness.testimony()
    recorder.end()
    return Told(tally, json.loads(json.dumps(testimony)), recorder.log.to_bytes(), [*recorder.places])


def followed_in_turn(loops: dict[str, Callable[[list[int]], None]]) -> dict[str, Told]:
    """Run each loop in a fork of this process, whose hooks are new."""
    told = {}
    for name, run in loops.items():
        read, write = os.pipe()
        if not (child := os.fork()):
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(followed(run), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            told[name] = pickle.load(pipe)
        os.waitpid(child, 0)
    return told


LENGTHS = [3, 7, 2, 8, 5, 1, 8, 4]  # tokens of texts that are padded to 8; the first one of each is a prompt


def padded(tally: list[int]) -> None:
    """Train on texts of LENGTHS, two a step; their tally is of all tokens, those of texts, and those with a label."""
    rows = [
        {
            "input_ids": torch.randint(50, (8,)),
            "attention_mask": (torch.arange(8) < length).long(),
            "labels": torch.tensor([-100] + [1] * (length - 1) + [-100] * (8 - length)),
        }
        for length in LENGTHS
    ]
    model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 50))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in DataLoader(rows, 2):  # type: ignore[arg-type]
        loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for batch in DataLoader(rows[:2], 2):  # type: ignore[arg-type]
            model(batch["input_ids"])
    tally += [8 * len(LENGTHS), sum(LENGTHS), sum(LENGTHS) - len(LENGTHS)]


@pytest.fixture(scope="module")
def of_one() -> dict[str, Told]:
    told: dict[str, Told] = on_ranks(1, followed_in_turn, {**LOOPS, "padded": padded})[0]
    return told


def test_tokens_of_texts_are_told_beside_their_padding(of_one: dict[str, Told]) -> None:
    told = of_one["padded"]
    assert told.testimony["tokens"] == dict(zip(("all", "attended", "labelled"), told.tally, strict=True))
    assert of_one["plain"].testimony["tokens"] is None


@pytest.mark.parametrize("name", LOOPS)
def test_the_count_is_that_of_the_loop_or_doubted(of_one: dict[str, Told], name: str) -> None:
    told = of_one[name]
    if name in DOUBTS:
        assert DOUBTS[name] in {**told.testimony["doubts"], **told.testimony["not_followed"]}
    else:
        assert (told.testimony["samples"], told.testimony["not_followed"]) == (told.tally, {})


@pytest.mark.parametrize("name", LOOPS)
def test_so_is_that_of_other_runs(of_one: dict[str, Told], name: str) -> None:
    """Of a short log the end of the last step may be missing."""
    told = of_one[name]
    witness, samples = counted(told.testimony, read_log(told.log), told.places)
    if name in DOUBTS:
        assert witness.status in ("doubtful", "not followed")
    elif samples:  # else no step was seen, and the run has failed
        assert samples == pytest.approx(sum(told.tally), abs=max(told.tally) * (witness.status == "witnessed"))


@pytest.mark.parametrize("name", OF_TWO_RANKS)
def test_so_it_is_on_two_ranks(name: str) -> None:
    for told in on_ranks(2, followed, OF_TWO_RANKS[name]):
        assert (told.testimony["samples"], told.testimony["not_followed"]) == (told.tally, {})


def test_what_is_left_of_an_overwritten_batch_has_no_rows() -> None:
    """Else one of the three rows that are left of four would be a third of the batch."""
    tagged, batch = Tagged(torch.zeros(4).untyped_storage()), frozenset({Tag(0, RAW, False, WHOLE)})
    tagged.write(Range(0, 16, batch, row=4), replaces=True)
    tagged.write(Range(16, 32, NONE, 0), replaces=True)  # beside it
    assert {tag.part for tag in tagged.read(4, 8)} == {(0.25, 0.5)}
    tagged.write(Range(0, 4, NONE, 0), replaces=True)
    assert tagged.read(4, 8) == batch


@pytest.mark.parametrize("optimizers", [1, 2])
def test_tags_of_settled_steps_are_not_kept(optimizers: int) -> None:
    """Each step would be slower than the one before it: momenta remember all batches, and so does a carried state."""
    witness, held = Witness(), list[int]()
    models = [torch.nn.GRUCell(6, 6) for _ in range(optimizers)]
    made = [torch.optim.AdamW(model.parameters()) for model in models]
    state = torch.zeros(4, 6)
    with witness.mode:
        for _ in range(30):
            batch = torch.randn(4, 6)
            witness.drawn(Drawn(0, 0, 4, None), batch)
            for model, optimizer in zip(models, made, strict=True):
                optimizer.zero_grad()
                state = model(batch, state.detach() if optimizers == 1 else torch.zeros(4, 6))
                state.square().mean().backward()
                witness.before_step(optimizer)
                optimizer.step()
                witness.after_step(optimizer)
            alive = [tagged for tagged in witness._tagged.values() if not tagged.ref.expired()]
            held.append(sum(len(each.tags) for tagged in alive for each in tagged.ranges))
    assert [step.samples for step in witness.steps] == [{n // optimizers: 4.0} for n in range(30 * optimizers)]
    assert len({*held[5:]}) == 1


TRAIN = """
    import sys, torch
    from torch.utils.data import DataLoader, TensorDataset

    def loader(samples):
        return DataLoader(TensorDataset(torch.randn(samples, 8)), batch_size=4)

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(int(sys.argv[1])):
        for (x,) in loader(200):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        sum(model(x).mean().item() for (x,) in loader(20))  # neither no_grad nor eval
    print("trained")
    if sys.argv[2:]:
        raise MemoryError("DefaultCPUAllocator: can't allocate memory")
"""


@pytest.mark.parametrize("torch", ["newest", "oldest"])
def test_an_own_run_says_what_became_of_its_batches(tmp_path: Path, torch: str) -> None:
    def told(*args: str) -> tuple[Any, str, str]:
        env = {"DDP_LADDER_WITNESS": "1", "DDP_LADDER_DIRECTORY": "own" + "-".join(args)}
        done = run_plainly(tmp_path, INSTRUMENT, train, *args, env=env, python=python_named(torch))
        content = (tmp_path / env["DDP_LADDER_DIRECTORY"] / "ranks/rank0.witness.json").read_text()
        return json.loads(content), done.out, done.err

    train = script(tmp_path, TRAIN)
    whole, out, err = told("2")
    assert "trained" in out
    assert "was followed through 100 steps, and ended with exit code 0" in err
    assert re.search(r"trains +/\S+:10: 100 batches, 400 samples; trained on: all, 400 samples; 1 a step", err)
    assert re.search(r"does not train /\S+:14( \(called at /\S+:14\))?: 10 batches, 40 samples\n", err)
    assert "FLOPs          3.2e-08 GFLOP per sample" in err  # 2 x 8 forward, and as many for the weights
    assert "samples/s" not in err  # nothing is timed
    assert [(place["passes"], place["passes_that_train"]) for place in whole["places"]] == [(2, 2), (2, 0)]
    if torch == "newest":
        longer, out, err = told("9")
        assert (longer["steps"], "trained" in out) == (WITNESS_STEPS, False)
        assert "exit code 0" in err
        failed, _, err = told("1", "fail")
        assert failed["steps"] == 50
        assert "MemoryError" in err
