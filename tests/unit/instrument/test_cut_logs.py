"""Logs of generated training loops that are cut: whatever is appended when, no event is lost, and none seen twice."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from ddp_ladder.records import judging
from ddp_ladder.records.raw_models import RankEnd
from ddp_ladder.records.steps import Steps
from ddp_ladder_instrument import log
from ddp_ladder_instrument.judgement import judged_fields
from ddp_ladder_instrument.log import Event, Log, read_log
from ddp_ladder_instrument.machine import Judged, Machine, judge
from ddp_ladder_instrument.recorder import Recorder
from worlds import CHOICES, Loop, Script, World, ordinary, place, sensible, worlds

FACTS = {
    "world_size": 1, "warmup_steps": 2, "samples_per_step": None, "source": "counted", "began_at_s": 1e9,
    "training_ended_at_s": 2e9, "digests": {}, "collectives": [],
    "places": [[*place(k)] for k in range(3)],
    "loaders": [{"num_workers": 0, "shards": True, "dataset": k, "unclear_sizes": []} for k in range(3)],
    "ddp": {"bucket_bytes": [400]},
}  # fmt: skip
END = {
    "schema_version": 2, "spec_hash": "5" * 64, "job": {"id": "1", "attempt": 1, "run_id": "6" * 32}, "rank": 0,
    "local_rank": 0, "node_rank": 0, "world_size": 1, "host": "h", "pid": 7, "backend": None, "exit_code": 0,
    "ended_by": "script", "exception": None, "ended_at_s": 2e9, "peak_memory_bytes": {}, "parameters": None,
    "device": {"kind": "cpu", "index": None, "name": None, "id": "cpu"}, "not_measured": [],
}  # fmt: skip


class Moments:
    """Appends the events of a script at random moments, also while the machine is fed, here or in another thread."""

    def __init__(self, script: Script, random: Random) -> None:
        self.recorder, self._random = Recorder(), random
        self.recorder.machine = Interrupted(self)
        self._left = [*script.log.events()][:-1]  # the recorder notes itself that the program is over
        self._left.reverse()

    def some(self) -> None:
        for _ in range(min(self._random.choice((0, 0, 1, 2)), len(self._left))):
            self.recorder.log.rows.extend(self._left.pop())

    def run(self) -> Recorder:
        while self._left:
            self.some()
            if self._random.random() < 0.2:
                self.recorder.feed()
            elif self._random.random() < 0.05:
                heartbeat = threading.Thread(target=self.recorder.feed)
                heartbeat.start()
                heartbeat.join()
        self.recorder.end()
        return self.recorder


class Interrupted(Machine):
    """While it is fed, events are appended, and something wants it to be fed."""

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self._moments = moments

    def feed(self, events: Iterator[Event]) -> None:
        for event in events:
            self._moments.some()
            self._moments.recorder.feed()
            super().feed(iter((event,)))


@pytest.fixture(scope="module", autouse=True)
def limits() -> Iterator[None]:
    before = log.WHOLE_STEPS, log.WHOLE_EVENTS
    yield
    log.WHOLE_STEPS, log.WHOLE_EVENTS = before


def cut_run(world: World) -> tuple[Script, Recorder]:
    """Run a loop whose log keeps few events."""
    random = Random(repr(world))
    script = Loop(world).run()
    log.WHOLE_STEPS, log.WHOLE_EVENTS = random.choice(((random.randint(1, 30), 10**6), (10**6, random.randint(1, 150))))
    return script, Moments(script, random).run()


def columns(judged: Judged) -> list[list[float]]:
    return [each.tolist() for each in judged.table._columns]


@worlds(600, sensible, *CHOICES)
def test_rows_are_those_of_the_kept_part_and_then_those_of_all_events(world: World) -> None:
    script, recorder = cut_run(world)
    online = Machine()
    online.feed(script.log.events())
    live, found = online.judged(), recorder.judged()
    assert columns(recorder.machine.judged()) == columns(live)
    if recorder.log.is_cut:
        kept = judge(Log(array("d", [figure for event in whole_part(recorder, script) for figure in event])), None)
        first = min(max(kept.table.count - 1, 0), live.table.count)
        wanted = [mine[:first] + others[first:] for mine, others in zip(columns(kept), columns(live), strict=True)]
    else:
        wanted = columns(judge(script.log, None))
    assert columns(found) == wanted
    check_file(recorder, found)


def whole_part(recorder: Recorder, script: Script) -> list[Event]:
    """Return the events of a script that the log keeps: its first ones."""
    kept, events = [*recorder.log.events()], [*script.log.events()]
    number = next((k for k, (one, other) in enumerate(zip(kept, events, strict=False)) if one != other), len(kept))
    return events[:number]


def check_file(recorder: Recorder, found: Judged) -> None:
    """The same record follows from the files of the rank."""
    facts = {**FACTS, "is_cut": recorder.log.is_cut}
    fields = judged_fields(found, facts)
    end = RankEnd.from_json(
        {**END, "log": facts, **fields, "fingerprint": fields["fingerprint"], "source": "counted",
         "steps": {"count": found.table.count, "sha256": "0" * 64}}
    )  # fmt: skip
    if not all(found.table.step_time_s):  # no reader takes such a row: in this world, its time is that of no step
        return
    matrix = np.array(found.table.columns())
    again, steps = judging.judged_anew(end, matrix, read_log(recorder.log.to_bytes()))
    assert again == end
    for name, column in vars(Steps.of(matrix)).items():
        if name != "ddp":
            np.testing.assert_array_equal(getattr(steps, name), column)


@worlds(600, ordinary, *(name for name in CHOICES if name != "ahead"))
def test_what_is_kept_gives_the_rows_of_the_whole(world: World) -> None:
    script, recorder = cut_run(world)
    table = recorder.judged().table
    assert list(zip(table.samples, table.padding_samples, strict=True)) == script.rows
