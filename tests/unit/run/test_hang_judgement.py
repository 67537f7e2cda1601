"""Does a rank go on, or is it stuck? From its heartbeat, its process and its stack."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

import pytest
from ddp_ladder.node.launch import LOOPBACK, free_port
from ddp_ladder.records.raw_models import HeartbeatHeader, LoopPhase, ProcessState
from ddp_ladder.run import hangs
from ddp_ladder.run.hangs import Seen, State, is_suspect, judge, next_look_s, why_unreached
from ddp_ladder.settings.keys import Hang

BOUNDS = Hang(times_median_step=10.0, at_least_s=60.0, first_step_s=1800.0)
SLEEPS = 'Current thread 0x01 (most recent call first):\n  File "train.py", line 7 in train'
SAVES = SLEEPS.replace("in train", "in save_checkpoint")
WAITS = SLEEPS.replace("train.py", "/site-packages/torch/distributed/distributed_c10d.py")
MEETS = """Thread 0x01 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 669 in _create_gloo_process_group
  File "/site-packages/torch/distributed/distributed_c10d.py", line 2874 in _new_process_group_helper
  File "/site-packages/torch/distributed/distributed_c10d.py", line 2553 in init_process_group
  File "/site-packages/torch/distributed/c10d_logger.py", line 97 in wrapper
  File "train.py", line 3 in <module>"""


def seen(
    phase: LoopPhase | None = "training",
    silent_s: float = 70.0,
    stack: str | None = SLEEPS,
    process: ProcessState = "alive",
    step_s: float | None = 0.5,
) -> Seen:
    heartbeat = phase and HeartbeatHeader(
        pid=7,
        signal=63,
        phase=phase,
        steps=0 if phase == "starting" else 12,
        step_s=None if phase == "starting" else step_s,
        moved_monotonic_s=5.0,
        written_monotonic_s=5.0,
        sequence=None,
    )
    return Seen(1, heartbeat or None, silent_s, process if heartbeat else "unknown", 7, stack)


STUCK, GOES_ON, NOT_JUDGED = "stuck", "goes on", "not judged"


@pytest.mark.parametrize(
    ("rank", "state"),
    [
        (seen(silent_s=59), GOES_ON),
        (seen(), STUCK),
        (seen(step_s=10.0), GOES_ON),  # 10 times the median are 100 s
        (seen(step_s=10.0, silent_s=101), STUCK),
        (seen(step_s=None), GOES_ON),  # the second step may compile
        (seen(step_s=None, silent_s=1801), STUCK),
        (seen(stack=WAITS), STUCK),
        (seen(stack=SAVES), GOES_ON),
        (seen(stack=SAVES, silent_s=1801), STUCK),
        (seen(stack=None), GOES_ON),  # nothing is known of what it does
        (seen(stack=None, silent_s=1801), STUCK),
        (seen(stack=None, process="uninterruptible"), STUCK),
        (seen(stack=None, process="stopped"), STUCK),
        (seen("evaluating"), GOES_ON),
        (seen("evaluating", stack=WAITS), STUCK),
        (seen("evaluating", silent_s=1801), STUCK),
        (seen("between passes"), GOES_ON),
        (seen("between passes", stack=WAITS), STUCK),
        (seen("unknown"), GOES_ON),
        (seen("unknown", stack=WAITS), GOES_ON),
        (seen("unknown", silent_s=1801), STUCK),
        (seen("starting", stack=WAITS), GOES_ON),
        (seen("starting", stack=MEETS), STUCK),  # a rank that has yet to come is one that goes on
        (seen("starting", stack=MEETS, silent_s=59), GOES_ON),
        (replace(seen("starting", stack=MEETS), computes=True), GOES_ON),
        (seen("starting", process="stopped", stack=None), STUCK),
        (seen("starting", silent_s=1801), STUCK),
        (seen(None), GOES_ON),
        (seen(None, silent_s=1801), STUCK),
        (replace(seen("between passes"), one_ended=True), STUCK),  # it sleeps after its loop
        (replace(seen("between passes", stack=SAVES), one_ended=True), GOES_ON),
        (replace(seen("between passes"), one_ended=True, computes=True), GOES_ON),
        (replace(seen("unknown"), one_ended=True), GOES_ON),
        (replace(seen("starting", stack=WAITS), one_ended=True), STUCK),  # in vain, in init_process_group()
        (replace(seen("starting", stack=WAITS), one_ended=True, computes=True), GOES_ON),
        (replace(seen("starting"), one_ended=True), GOES_ON),
        (seen("ended", silent_s=59), GOES_ON),
        (seen("ended"), STUCK),  # a thread of the script that is no daemon
        (seen("ended", stack=None), STUCK),
        (replace(seen("ended", stack=None), computes=True), NOT_JUDGED),
        (seen(process="gone"), NOT_JUDGED),
        (seen(process="gone", silent_s=1801), NOT_JUDGED),
    ],
)
def test_a_rank_is_stuck_only_after_the_bound_of_what_it_does(rank: Seen, state: State) -> None:
    assert judge(rank, BOUNDS) == state


@pytest.mark.parametrize(
    ("bounds", "stuck"),
    [
        ({"times_median_step": None}, {"starting", "evaluating", "unknown", "ended"}),
        ({"first_step_s": None}, {"training", "ended"}),
    ],
)
def test_a_bound_that_is_null_is_switched_off(bounds: dict[str, None], stuck: set[str]) -> None:
    off = BOUNDS.replace(**bounds)
    phases: tuple[LoopPhase, ...] = ("starting", "training", "evaluating", "unknown", "ended")
    assert {phase for phase in phases if judge(seen(phase, silent_s=1e6), off) == STUCK} == stuck


def test_the_next_look_is_not_later_than_a_bound() -> None:
    training = [one for one in [seen(step_s=7.0).heartbeat] if one]
    looks = [next_look_s(silent_s, BOUNDS, training) for silent_s in (60, 70, 100, 1700, 1800)]
    assert looks == [70, 105, 150, 1800, 2700]
    assert next_look_s(1700, BOUNDS, []) == 1800


def test_a_first_step_may_have_the_shorter_bound() -> None:
    short = BOUNDS.replace(first_step_s=3.0)
    assert judge(seen("starting", silent_s=4), short) == STUCK
    assert judge(seen(silent_s=4), short) == GOES_ON
    assert not is_suspect(seen("starting", silent_s=2), short)


def test_a_node_whose_port_is_closed_is_reached_and_one_that_does_not_answer_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert why_unreached(LOOPBACK, free_port("1")) is None
    monkeypatch.setattr(hangs, "REACH_S", 0.2)
    with socket.create_server((LOOPBACK, 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        address = server.getsockname()
        for _ in range(3):  # it accepts none, so that further ones are dropped
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(address)
        assert why_unreached(*address) == f"{LOOPBACK}, port {address[1]}: timed out"
