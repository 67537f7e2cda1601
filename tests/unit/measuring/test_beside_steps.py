"""What ranks do beside the training, in generated worlds whose truth is known: only that is in no step.

Each world is a loop of one to three ranks on a simulated clock, which writes the events that the hooks would write. The
ranks meet in each backward pass, as DDP's do, and in a barrier where the loop has one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.measuring.owners import BESIDE
from ddp_ladder.records.record import Record
from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import Log
from ddp_ladder_instrument.machine import judge
from hypothesis import given, settings
from hypothesis import strategies as st
from make_records import make_spec
from make_runs import STARTED_AT_S, edit_rank, end_run, write_run, write_steps

STEPS, WARMUP, BATCH = 120, 10, 8
BEGUN_AT_S = STARTED_AT_S + 4.0
OF_TURN = ("data", "forward", "backward", "rest")


@dataclass(frozen=True)
class World:
    """A loop. Seconds of a step without what is added: step_s.

    varies: how much computation varies from step to step (the sigma of a lognormal). stalls: which part of a turn
    takes a second more in some steps of a random rank: pauses of Python, a slow storage, a compiler. slow: factor of
    the last rank.
    """

    ranks: int = 2
    step_s: float = 0.1
    varies: float = 0.0
    stalls: str = ""
    slow: float = 1.0
    every: int = 0  # steps between two times at which something is done beside the training; 0: never
    beside_s: float = 1.0
    alone: bool = True  # by rank 0, not by all
    barrier: bool = False
    seed: int = 0


class Ranks:
    """The clocks and logs of the ranks of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now_s = np.zeros(world.ranks)
        self.logs = [Log() for _ in range(world.ranks)]
        self.ended_s: list[float] = []  # when the last rank ended each step
        self.spent_s: list[float] = []  # how much longer the loop was until then by what is beside the training
        self.added_s = 0.0
        for rank, events in enumerate(self.logs):
            events.add(log.RANK, 0.0, 0.0, rank, BEGUN_AT_S, log.FORMAT)
            events.add(log.PASS, 0.0, 0.0, 1, 0, -1, log.NO_MARK)

    def spend(self, kind: int, seconds: object, *amounts: float) -> None:
        begun_s, self.now_s = self.now_s, self.now_s + seconds
        for events, begin_s, end_s in zip(self.logs, begun_s, self.now_s, strict=True):
            events.add(kind, begin_s, end_s, *amounts)

    def meet(self, kind: int, seconds: object, *amounts: float) -> None:
        self.spend(kind, (self.now_s + seconds).max() - self.now_s, *amounts)

    def run(self) -> None:
        world, random = self.world, np.random.default_rng(self.world.seed)
        usual_s = dict(zip(OF_TURN, world.step_s * np.array([0.1, 0.3, 0.55, 0.05]), strict=True))
        factors = np.ones(world.ranks)
        factors[-1] = world.slow
        for step in range(1, STEPS + 1):
            turn_s = {part: seconds * factors for part, seconds in usual_s.items()}
            for part in ("forward", "backward"):
                turn_s[part] = turn_s[part] * random.lognormal(0.0, world.varies, world.ranks)
            if world.stalls and random.random() < 0.1:
                stalled = np.arange(world.ranks) == random.integers(world.ranks)
                turn_s[world.stalls] = turn_s[world.stalls] + stalled
            self.spend(log.DRAW, turn_s["data"], 1, BATCH, 0, log.NO_MARK)
            self.now_s = self.now_s + turn_s["forward"]
            self.meet(log.BACKWARD, turn_s["backward"])
            self.spend(log.STEP, 0.0)
            self.ended_s.append(float(self.now_s.max()))
            self.spent_s.append(self.added_s)
            self.now_s = self.now_s + turn_s["rest"]
            if world.every and step % world.every == 0:
                self.beside()

    def beside(self) -> None:
        who = np.arange(self.world.ranks) == 0 if self.world.alone else np.ones(self.world.ranks, bool)
        before_s = self.now_s.max()
        self.now_s = self.now_s + who * self.world.beside_s
        self.added_s += float(self.now_s.max() - before_s)
        if self.world.barrier:
            self.meet(log.COLLECTIVE, 0.0, 0, 0, self.world.ranks, log.NO_MARK)


@dataclass(frozen=True)
class Truth:
    """Samples/s of the measured steps. without: of the same loop that does nothing beside the training.

    hidden: of this loop without what is beside it: a stall of another rank meanwhile costs nothing. beside_s: of all,
    beside_least_s: without such stalls.
    """

    without: float
    hidden: float
    beside_s: float
    beside_least_s: float


def measured(world: World) -> tuple[Record, Truth]:
    """Return the record of a world's run, and what is true of it."""
    ranks, without = Ranks(world), Ranks(replace(world, every=0))
    ranks.run()
    without.run()
    with TemporaryDirectory() as path:
        run = write_run(Path(path), make_spec(f"1x{world.ranks}").replace(warmup_steps=WARMUP))
        for rank, events in enumerate(ranks.logs):
            judged = judge(events, None)
            columns = [*map(list, judged.table.columns())]
            write_steps(run, rank, [[*map(str, row)] for row in zip(*columns, strict=True)])
            edit_rank(run, rank, phases=judged.phases, ended_at_s=BEGUN_AT_S + float(ranks.now_s[rank]))
        end_run(run, BEGUN_AT_S + ranks.now_s.max())
        record = assemble(run)
    first = record.timing.warmup_steps - 1
    samples = (STEPS - first - 1) * BATCH * world.ranks
    spent_s = ranks.spent_s[-1] - ranks.spent_s[first]
    whole_s, without_s = (each.ended_s[-1] - each.ended_s[first] for each in (ranks, without))
    beside_s = ranks.spent_s[-1] - ranks.spent_s[0]
    least_s = (ranks.ended_s[-1] - ranks.ended_s[0]) - (without.ended_s[-1] - without.ended_s[0])
    return record, Truth(samples / without_s, samples / (whole_s - spent_s), beside_s, least_s)


WORLDS = st.builds(
    World,
    ranks=st.integers(1, 3),
    step_s=st.sampled_from([0.01, 0.1, 0.4]),
    varies=st.sampled_from([0.0, 0.3, 0.8]),
    stalls=st.sampled_from(["", "", "data", "forward", "backward"]),
    slow=st.sampled_from([1.0, 1.0, 1.5]),
    every=st.sampled_from([0, 7, 20, 40]),
    beside_s=st.sampled_from([0.5, 1.0, 8.0]),
    alone=st.booleans(),
    barrier=st.booleans(),
    seed=st.integers(0, 1000),
)


@settings(max_examples=60, deadline=None)
@given(WORLDS)
def test_the_figure_is_that_of_the_training(world: World) -> None:
    record, truth = measured(world)
    rate, loop_s = record.throughput.samples_per_s_total, STEPS * BATCH * world.ranks / truth.without
    assert 0.95 * truth.without < rate < 1.05 * truth.hidden
    slack_s = 0.05 * (loop_s + truth.beside_s)
    assert truth.beside_least_s - slack_s <= record.owners_s.get(BESIDE, 0.0) <= truth.beside_s + slack_s
    said = {remark.kind for remark in record.remarks}
    is_alone = world.alone and world.ranks > 1
    if truth.beside_s > 0.2 * loop_s:
        assert ("one rank alone" in said, "whole loop" in said) == (is_alone, not is_alone)
    if not world.every:
        assert not said
