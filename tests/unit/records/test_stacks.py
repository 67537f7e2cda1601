"""What a rank was doing, from stacks as faulthandler prints them."""

from __future__ import annotations

import pytest
from ddp_ladder.records.hangs import doing, in_collective, is_at_work, main_stack, of_script, without_own

TORCH = "/site/lib/python3.11/site-packages/torch"
BACKWARD = f"""Stack (most recent call first):
  File "{TORCH}/autograd/graph.py", line 1072 in _engine_run_backward
  File "{TORCH}/autograd/__init__.py", line 395 in backward
  File "/checkout/workflow/scripts/ddp_ladder_instrument/backwards.py", line 54 in backward
  File "{TORCH}/_tensor.py", line 623 in backward
  File "/home/me/train.py", line 19 in <module>
  File "/checkout/workflow/scripts/ddp_ladder_instrument/program.py", line 98 in _run_file
  File "/checkout/workflow/scripts/instrument.py", line 26 in <module>"""
BARRIER = f"""Stack (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 5320 in barrier
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 21 in validate
  File "/home/me/train.py", line 40 in <module>"""
LOADER = """Stack (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 947 in wait
  File "/site/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1255 in _try_get_data
  File "/home/me/train.py", line 12 in train_and_evaluate"""
MAIN_ALONE = """Stack (most recent call first):
  File "/home/me/train.py", line 7 in wait_for_ever
  File "/home/me/train.py", line 19 in <module>"""


def saving(function: str, file: str = "/home/me/train.py") -> str:
    return f'Stack (most recent call first):\n  File "{file}", line 7 in {function}'


def test_the_last_of_two_answers_counts() -> None:
    assert main_stack(f"{BACKWARD}\n{MAIN_ALONE}") == main_stack(MAIN_ALONE)
    assert main_stack("") == []


@pytest.mark.parametrize(
    ("text", "waits", "place", "what"),
    [
        (BACKWARD, True, 'File "/home/me/train.py", line 19, in <module>', "in backward()"),
        (BARRIER, True, 'File "/home/me/train.py", line 21, in validate', "in barrier()"),
        (
            LOADER,
            False,
            'File "/home/me/train.py", line 12, in train_and_evaluate',
            "waiting for a batch of its DataLoader",
        ),
        (MAIN_ALONE, False, 'File "/home/me/train.py", line 7, in wait_for_ever', ""),
    ],
    ids=["backward", "barrier", "loader", "alone"],
)
def test_what_a_rank_was_doing(text: str, waits: bool, place: str, what: str) -> None:
    stack = main_stack(text)
    assert (in_collective(stack), of_script(stack)[0].text, doing(stack)) == (waits, place, what)


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        (saving("save_checkpoint"), True),
        (saving("validate"), True),
        (saving("_save", f"{TORCH}/serialization.py"), True),
        (saving("_convert_frame", f"{TORCH}/_dynamo/convert_frame.py"), True),
        (saving("checkpoint", f"{TORCH}/utils/checkpoint.py"), False),  # recomputes activations, inside a step
        (saving("train_and_evaluate"), False),  # the whole training may be in it
        (saving("main"), False),
        (LOADER, False),
    ],
)
def test_a_rank_that_saves_validates_or_compiles_is_at_work(text: str, busy: bool) -> None:
    assert is_at_work(main_stack(text)) == busy


def test_the_instruments_own_frames_are_left_out() -> None:
    shown = without_own(BACKWARD)
    assert "instrument" not in shown
    assert main_stack(shown) == [frame for frame in main_stack(BACKWARD) if "instrument" not in frame.file]
