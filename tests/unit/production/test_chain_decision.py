"""Whether another link follows: chains of any links, and the cases that are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_ladder.common.findings import Finding
from ddp_ladder.production.chain import Chain, Link, decide
from ddp_ladder.production.plan import Production, dry_run_text
from ddp_ladder.records.record import Failure
from ddp_ladder.settings.keys import CentreHours
from hypothesis import given
from hypothesis import strategies as st
from make_jobs import make_chain
from make_records import make_plan_of, make_spec

CRASH = Failure(verdict="killed", why="SIGKILL", next="look at the node", rank=1, node="node2")
OTHER = Failure(verdict="CUDA out of memory", why="full", next="lower the batch", rank=0, node="node1")
STEP_CANCELLED = Failure(kind="interrupted", verdict="ended from outside", why="its job step got SIGTERM", next="ask")
DOUBT = Failure(verdict="ranks on the same data", why="no sampler", next="use a sampler")
CHAIN = make_chain(scale="2x1", warn_before_s=60.0, promised_samples_per_s=None)
JOB = replace(make_plan_of([make_spec("2x1")]).jobs[0], runtime_min=CHAIN.runtime_min)


def link(end: str, number: int = 1, **changes: Any) -> Link:
    common = {"number": number, "job_id": str(number), "begun_at_s": float(number), "ended_at_s": None, "hours": 2.0}
    return Link.from_json({**common, "steps": 10, "saves": 1, "end": end, **changes})


def chain_of(*ends: tuple[str, dict[str, Any]]) -> list[Link]:
    return [link(end, number, **changes) for number, (end, changes) in enumerate(ends, start=1)]


SAVED, TIME_UP, COMPLETE = ("saved", {}), ("time limit", {}), ("complete", {})
NO_STEP = ("saved", {"steps": 0, "saves": 1})
OWN_SAVES = ("time limit", {"saves": None})
FAILED = ("failed", {"failure": CRASH})
NO_SAVE = ("failed", {"failure": CRASH, "saves": 0})
NODE_FAIL = ("failed", {"failure": OTHER, "state": "NODE_FAIL"})
LEFT_NOTHING = ("failed", {"steps": 0, "saves": 0})


@pytest.mark.parametrize(
    ("links", "kind", "verdict"),
    [
        ([SAVED, ("time limit", {"is_anew": True})], "stop", "the chain goes in a circle"),
        ([NODE_FAIL, SAVED, ("failed", {"failure": OTHER, "is_anew": True})], "stop", "the chain goes in a circle"),
        ([("failed", {"failure": OTHER, "state": "NODE_FAIL", "saves": 0}), ("saved", {"is_anew": True})], "go on", ""),
        ([], "go on", "link 1"),
        ([SAVED], "go on", "link 2"),
        ([TIME_UP, TIME_UP, SAVED], "go on", "link 4"),
        ([SAVED, COMPLETE], "complete", "the training is complete"),
        ([("complete", {"doubt": DOUBT})], "stop", "the training ended, and its result is doubtful: ranks on the same"),
        ([("saved", {"doubt": DOUBT})], "stop", "ranks on the same data"),
        # Progress
        ([NO_STEP], "go on", "link 2"),  # the signal came early
        ([NO_STEP, NO_STEP], "stop", "the chain goes in a circle"),
        ([NO_STEP, OWN_SAVES], "stop", "the chain goes in a circle"),
        ([("saved", {"steps": None, "saves": None})] * 3, "go on", "link 4"),  # code 75 says so
        ([("time limit", {"saves": 0})], "stop", "a link ended without progress"),
        ([("time limit", {"steps": 0})], "stop", "a link ended without progress"),
        ([OWN_SAVES], "go on", "link 2"),
        ([OWN_SAVES, OWN_SAVES], "stop", "the chain goes in a circle"),
        ([OWN_SAVES, SAVED, OWN_SAVES], "go on", "link 4"),
        # Failures
        ([FAILED], "go on", "link 2"),
        ([FAILED, FAILED], "stop", "the same failure twice"),
        ([FAILED, SAVED, FAILED], "go on", "link 4"),
        ([FAILED, ("failed", {"failure": OTHER})], "go on", "link 3"),
        ([NO_SAVE], "stop", "a link ended without progress"),
        ([("failed", {"failure": CRASH, "saves": None, "steps": None})], "go on", "link 2"),
        ([LEFT_NOTHING], "stop", "a link ended without progress"),
        # Slurm's ends
        ([NODE_FAIL, NODE_FAIL, NODE_FAIL], "go on", "link 4"),
        ([("failed", {"state": "PREEMPTED", "steps": 0, "saves": 0})], "go on", "link 2"),
        ([("failed", {"state": "PREEMPTED", "steps": 0, "saves": 0})] * 2, "stop", "the chain goes in a circle"),
        ([("failed", {"state": "CANCELLED", "failure": CRASH})], "stop", "the job was cancelled"),
        ([("saved", {"state": "CANCELLED"})], "stop", "the job was cancelled"),  # at SIGTERM the script saved
        ([("complete", {"state": "CANCELLED"})], "complete", "the training is complete"),
        ([COMPLETE, LEFT_NOTHING], "complete", "the training is complete"),  # a job that was submitted before
        # Ends by a person
        ([("failed", {"failure": CRASH, "signal": "SIGINT"})], "stop", "the link was ended from outside"),
        ([("failed", {"failure": STEP_CANCELLED})], "stop", "the link was ended from outside"),
        ([("saved", {"signal": "SIGTERM", "job_id": "local-a"})], "stop", "the link was ended from outside"),
        ([("saved", {"signal": "SIGTERM", "state": "TIMEOUT"})], "go on", "link 2"),
        ([("failed", {"failure": CRASH, "signal": "SIGKILL"})], "go on", "link 2"),  # nothing tells who did it
        # Hours
        ([("saved", {"hours": 38.0})], "go on", "link 2"),
        ([("saved", {"hours": 39.0})], "go on", "link 2"),  # the next one is half as long
        (
            [("saved", {"hours": 39.9})],
            "stop",
            "production.up_to_hours has no room for a link",
        ),  # 3 min, of which 70 s are its end
    ],
)
def test_what_follows(links: Sequence[tuple[str, dict[str, Any]]], kind: str, verdict: str) -> None:
    found = decide(*_next(chain_of(*links)))
    assert kind_of(found) == kind, found
    assert found is None or found.measured.startswith(verdict), found


def kind_of(found: Finding | None) -> str:
    return "go on" if found is None else "complete" if found.ok else "stop"


def _next(links: list[Link], chain: Chain = CHAIN, since: int = 0) -> tuple[Any, ...]:
    return chain, chain.within_hours(JOB, sum(each.hours for each in links)), links, since


@pytest.mark.parametrize(("runtime_min", "up_to_hours", "links"), [(6, 3.0, 15), (6, 2.999, 14), (60, 0.05, 0)])
def test_as_many_links_follow_as_are_announced(runtime_min: int, up_to_hours: float, links: int) -> None:
    """Two ranks for 6 min are 0.2 h, and 3.0 // 0.2 is 14.0 in floats."""
    job = replace(JOB, runtime_min=runtime_min)
    chain = CHAIN.replace(runtime_min=runtime_min, up_to_hours=up_to_hours)
    made = [link("saved", number, hours=chain.most_hours(job)) for number in range(1, links + 1)]
    production = Production(replace(make_plan_of([make_spec("2x1")]), jobs=(job,)), chain, "a rule", ())
    assert f"at most {links} further links of full length" in dry_run_text(production, (), "")
    assert [kind_of(decide(chain, job, made[:number])) for number in range(links + 1)] == ["go on"] * links + ["stop"]
    assert "is reached" not in decide(chain, job, made).measured  # by no link, of none


FAILURES = st.one_of(st.none(), st.sampled_from([CRASH, OTHER]))
LINKS = st.builds(
    lambda end, **changes: link(end, **changes),
    st.sampled_from(["saved", "time limit", "failed", "complete"]),
    steps=st.sampled_from([None, 0, 7]),
    saves=st.sampled_from([None, 0, 2]),
    failure=FAILURES,
    doubt=st.sampled_from([None, None, None, DOUBT]),
    state=st.sampled_from([None, "COMPLETED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "CANCELLED"]),
    signal=st.sampled_from([None, None, "SIGINT", "SIGTERM", "SIGKILL"]),
)


@given(
    worlds=st.lists(st.tuples(LINKS, st.floats(0.01, 1.0)), max_size=40),
    up_to_hours=st.floats(0.05, 30),
    held=st.sampled_from([0, 8]),
    stopped_after=st.integers(0, 3),
)
def test_no_chain_goes_in_a_circle_or_over_its_hours(
    worlds: list[tuple[Link, float]], up_to_hours: float, held: int, stopped_after: int
) -> None:
    """worlds: how each link ends, if it is begun, and the part of its time that it takes."""
    chain, links = CHAIN.replace(up_to_hours=up_to_hours, gpus_held=held), list[Link]()
    since, restarts = 0, 0
    for number, (end, part) in enumerate(worlds, start=1):
        _, job, *_ = arguments = _next(links, chain, since)
        step = decide(*arguments)
        if step is not None and step.ok:
            assert links[-1].end == "complete"
            assert links[-1].doubt is None
        if step is not None and not step.ok:
            assert step.evidence
            assert step.next
            if restarts == stopped_after or (links and links[-1].end == "complete"):
                return
            # A person starts it again: what has happened stops it no more, only what is used up.
            since, restarts = len(links), restarts + 1
            step = decide(*_next(links, chain, since))
            assert step is None or "up_to_hours" in step.measured
        if step is not None:
            return
        hours = part * chain.most_hours(job)
        assert sum(each.hours for each in links) + hours <= up_to_hours * (1 + 1e-12)
        links.append(end.replace(number=number, hours=hours))
        recent = links[since:][-3:]
        assert len(recent) < 3 or any(each.has_progressed for each in recent)


def test_what_a_chain_costs_is_said_in_the_hours_of_the_centre_too() -> None:
    """Two nodes of one GPU each; 1.5 per node hour, so 1.5 per GPU hour here."""
    hours = CentreHours(name="node h", per_node_hour=1.5)
    chain = CHAIN.replace(centre_hours=hours, training_hours=20.0)
    production = Production(replace(make_plan_of([make_spec("2x1")]), jobs=(JOB,)), chain, "a rule", ())
    text = dry_run_text(production, chain_of(SAVED, SAVED), "done")
    assert "at most 1 h 00 min, 2.00 process h (3.00 node h); SIGUSR1" in text
    assert "4.00 of 40.0 process h (6.00 of 60.0 node h) used by 2 links" in text
    assert "about 20.0 h, 40.0 process h (60.0 node h) (report)" in text
    assert "4.00 of 40.0 process h used" in dry_run_text(replace(production, chain=CHAIN), chain_of(SAVED, SAVED), "")
