"""Whether a link is slower than promised, what it measured, and the chain's table of windows."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import NotWritten, RunDirectory, write_json
from ddp_ladder.production.chain import (
    SAVE_FILE,
    STOP_FILE,
    End,
    Link,
    decide,
    expected_end_s,
    forget_requests,
    stopped_as_asked,
)
from ddp_ladder.production.slower import (
    AGAIN_S,
    Promise,
    SpeedWatch,
    Window,
    append_row,
    in_words,
    last_window,
    read_windows,
    row_of,
)
from ddp_ladder.records.raw_models import AgentTotals, RankTotals, RunFile, SlowFile
from hypothesis import given
from hypothesis import strategies as st
from make_jobs import make_chain
from make_records import make_plan_of, make_spec
from make_runs import write_run
from make_usage import make_monitor_file, samples_text


@given(st.lists(st.tuples(st.floats(1, 4000), st.floats(50, 150)), max_size=60))
def test_slow_is_news_when_it_was_well_before_or_an_hour_later(windows: list[tuple[float, float]]) -> None:
    promise, now_s, told_s = Promise(100.0, 15), 0.0, None
    for pause_s, rate in windows:
        now_s += pause_s
        wanted = rate < 85 and (told_s is None or now_s - told_s >= AGAIN_S)
        assert promise.is_news(now_s, rate) is wanted
        told_s = None if rate >= 85 else now_s if wanted else told_s


def test_a_slow_window_says_what_a_step_was_made_of() -> None:
    window, nodes = Window(1.0, 61.0, 600, 500.0, 0.138, 0.041, 0.01, 3), ("n1", "n2")
    words = "a step takes 138 ms, of which 41.0 ms data wait, 10.0 ms exposed communication on rank 3 (n2), which waits"
    assert in_words(window, nodes, 2) == f"{words} least"
    unknown = in_words(replace(window, exposed_comm_s=None, waits_least=None), nodes, 2)
    assert unknown == "a step takes 138 ms, of which 41.0 ms data wait, exposed communication is not known"


class Watched:
    """A link of two ranks whose agents write their sums, and the watch over it."""

    def __init__(self, results: Path, action: str) -> None:
        self.results, self.said = results, list[str]()
        self.directory: RunDirectory = write_run(results, make_spec("1x2", stage="production"))
        self.run = RunFile.from_json(_json(self.directory.run))
        self.watch = SpeedWatch(
            make_chain(slower=action), results, 3, "production 1x2 link 3", self.said.append, 0.0, 10
        )
        self.watch.begin(self.directory, self.run)
        self.at_s, self.steps, self.step_s = 1e9, 0, 0.0

    def minute(self, rate: float) -> float | None:
        """Make the steps of a minute at this rate; return what the watch says of the end."""
        self.at_s, self.steps, self.step_s = self.at_s + 60, self.steps + 100, self.step_s + 1600 / rate
        totals = (self.at_s, float(self.steps), 8.0 * self.steps, self.step_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        for agent in self.run.all_agents:
            ranks = tuple(RankTotals(rank=rank, totals=totals) for rank in self.run.ranks_of(agent))
            file = AgentTotals(**self.run.identity, ranks=ranks)
            write_json(self.directory.totals(agent), file.model_dump())
        return self.watch.look()


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_ten_slow_minutes_are_reported_once_and_kept(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "warn")
    for rate in [1000.0] * 11 + [500.0] * 4:  # the mean of ten minutes falls below 85 % with the third slow one
        assert watched.minute(rate) is None
    (line,) = watched.said
    assert line.startswith("production 1x2 link 3: slower than promised: ")
    assert "of the ladder's 1,000: a step takes 19.2 ms, of which 0" in line
    file = SlowFile.from_json(_json(watched.directory.slow))
    assert [round(slow.samples_per_s) for slow in file.slow] == [833]
    assert not watched.directory.warn_now.exists()
    lines = (tmp_path / "windows.csv").read_text().splitlines()
    assert len(lines) == 1 + 14
    last = last_window(tmp_path / "windows.csv")
    assert last is not None
    assert (last.link, last.samples_per_s) == (3, 500.0)


def test_a_link_that_is_to_stop_warns_the_ranks_and_has_an_end(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "stop")
    ends = [watched.minute(100.0) for _ in range(11)]
    assert ends[:-1] == [None] * 10
    assert ends[-1] is not None
    assert watched.directory.warn_now.exists()
    assert "gets SIGUSR1" in watched.said[1]


def test_what_a_person_asks_of_a_link_is_said_and_reaches_its_ranks(tmp_path: Path) -> None:
    watched, warned_ns = Watched(tmp_path, "warn"), set()
    for _ in range(2):  # it can be asked for again
        (tmp_path / SAVE_FILE).touch()
        assert watched.minute(1000.0) is None
        assert watched.minute(1000.0) is None
        warned_ns.add(watched.directory.warn_now.stat().st_mtime_ns)
        assert not (tmp_path / SAVE_FILE).exists()
    assert len(warned_ns) == 2
    (tmp_path / STOP_FILE).touch()
    assert None is not watched.minute(1000.0) == watched.minute(1000.0)
    assert watched.said == [
        *["production 1x2 link 3: it is to save, as asked: the script gets SIGUSR1"] * 2,
        "production 1x2 link 3: it is being ended (as asked); the script gets SIGUSR1",
    ]
    assert stopped_as_asked(tmp_path) is not None  # until the chain is started again
    forget_requests(tmp_path)
    assert stopped_as_asked(tmp_path) is None


def test_memory_that_would_fill_a_gpu_before_the_link_ends_is_said(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "warn")
    watched.watch.begin(watched.directory, watched.run.replace(warn_at_s=1e9 + 6 * 3600))
    about = make_monitor_file(gpu_count=1, node=watched.run.nodes[0])
    write_json(watched.directory.monitor(0), about.replace(**watched.run.identity).model_dump())
    size = about.gpus[0].memory_bytes
    assert size
    for minute in range(60):
        text = samples_text(about, 1, gpu0_memory_used_bytes=int(size * (0.2 + 0.01 * minute)))
        watched.directory.samples(0).write_text(text)
        watched.minute(1000.0)
    (line,) = watched.said
    assert line.startswith(f"production 1x2 link 3: the memory of GPU 0 of {about.node} grows by ")


def test_a_line_that_was_cut_costs_only_itself_and_a_pipe_stops_nobody(tmp_path: Path) -> None:
    path, row = tmp_path / "windows.csv", row_of(1, "8", Window(1.0, 61.0, 5, 10.0, 12.0, 0.1, None), None)
    append_row(path, row)
    path.write_bytes(path.read_bytes()[:-20])
    append_row(path, row)
    rows, damaged = read_windows(path)
    assert ([each.samples_per_s for each in rows], damaged) == ([10.0], 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotWritten):
        append_row(tmp_path / "pipe", row)


# The chain


def link(number: int = 1, end: End = "saved", **facts: Any) -> Link:
    times = {"begun_at_s": 1e9, "ended_at_s": 1e9 + 3600, "hours": 2.0}
    return Link(number=number, job_id=str(number), end=end, **times, **facts)


def test_a_link_that_was_ended_for_its_speed_stops_the_chain_and_one_that_was_reported_does_not(tmp_path: Path) -> None:
    made = Watched(tmp_path, "stop")
    for _ in range(11):
        made.minute(100.0)
    slow = SlowFile.from_json(_json(made.directory.slow))
    job = make_plan_of([make_spec("1x2", stage="production")]).jobs[0]
    step = decide(made.watch.chain, job, [link(steps=50, slow=slow)])
    assert (step.severity, step.measured) == ("error", "slower than promised")
    assert "a step takes 160 ms" in step.evidence[0]
    warned = slow.replace(action="warn")
    assert decide(made.watch.chain, job, [link(steps=50, slow=warned)]) is None
    assert decide(made.watch.chain, job, [link(end="complete", slow=slow)]).ok


@pytest.mark.parametrize(
    ("steps", "samples", "training_hours", "left_h"),
    [
        ([900, 900], 28_800, 1.0, 1.0),  # a half in an hour of the clock
        ([900, 900], 28_800, None, 1.0),
        ([1], 28_800, 1.0, 1.0),  # no trend yet
        ([1], 28_800, None, None),
        ([900, None], 28_800, 1.0, None),
        ([900, 900], None, 1.0, None),
        ([3600], 28_800, 1.0, None),  # more than a training has
        ([], 28_800, 1.0, None),
    ],
)
def test_the_expected_end_follows_what_was_done_so_far(
    steps: list[int | None], samples: float | None, training_hours: float | None, left_h: float | None
) -> None:
    chain = make_chain(training_hours=training_hours, training_samples=samples, promised_samples_per_s=8.0)
    links = [link(number, steps=made) for number, made in enumerate(steps, start=1)]
    now_s = 1e9 + 3600
    end_s = expected_end_s(chain, links, now_s, 8)
    assert end_s == (None if left_h is None else pytest.approx(now_s + 3600 * left_h, abs=2))
