"""Whatever fails in a hook of the instrument: the training ends as it would have, and the end record tells."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

import pytest
from ddp_ladder_instrument import hooks
from ddp_ladder_instrument.files import NotMeasured
from ddp_ladder_instrument.python_hooks import on_hard_exit
from scripts_support import run, warmed
from warm import Warm

VALIDATES = "validate.py --where inside --grad no_grad --eval-mode"
FLAT = "sharded.py fsdp1 flat"
# Hooks that break in one training: each is still called where the others of its row do nothing.
HOOKS = [
    ("accumulate.py sync", "recorder:Recorder.after_step recorder:Recorder.group_made progress:Heartbeat.start"),
    ("accumulate.py sync", "recorder:Recorder.backward ddp:DdpTimings.attach progress:Heartbeat.stop"),
    ("accumulate.py sync", "recorder:Recorder.forward loader_hooks:_announce stop:RunLimits.check"),
    ("accumulate.py sync", "recorder:Recorder.zeroed observer:TorchObserver._on_optimizer stop:RunLimits.release"),
    ("accumulate.py sync", "recorder:Recorder.begin batch_sizes:digest observer:TorchObserver._on_pass"),
    ("accumulate.py sync", "samplers:Loaders.epoch_of measurement:Measurement._read_marks"),
    ("accumulate.py sync", "samplers:Loaders.begin ddp:DdpTimings.read torch_facts:States.last"),
    (
        "accumulate.py sync",
        "loader_hooks:LoaderHooks._made observer:TorchObserver._on_ddp torch_facts:States.before_step",
    ),
    ("accumulate.py sync", "loader_hooks:_announced_size observer:TorchObserver._on_process_group"),
    ("accumulate.py sync", "measurement:Measurement._device_answers"),
    ("accumulate.py sync", "measurement:Measurement._install"),
    ("accumulate.py sync", "measurement:Measurement.end"),
    ("amp.py foreach", "recorder:Recorder.skipped observer:TorchObserver._on_autocast"),
    ("snapshots.py", "recorder:Recorder.saved"),
    ("snapshots.py", "saves:_position"),
    (VALIDATES, "recorder:Recorder.enter hooks:Trained.holds"),
    (VALIDATES, "recorder:Recorder.drawn recorder:Recorder.mode"),
    (VALIDATES, "recorder:Recorder.ended"),
    (FLAT, "hooks:_note_shards"),
    (FLAT, "measurement:Measurement._install_on"),
    ("hf_accelerate.py shard", "samplers:Loaders.begin"),
    ("hf_accelerate.py shard", "loader_hooks:LoaderHooks._count"),
    ("stateful.py --workers 1", "samplers:Loaders.begin"),
    ("loaders.py web_shuffled 0", "samplers:Loaders.begin"),
    ("workers.py fork 1 2 persistent", "loader_hooks:_share_times"),
]


warm = warmed("torch", "torch._dynamo", "torch.distributed.tensor", "accelerate", "torchdata.stateful_dataloader")


@pytest.mark.parametrize(("line", "hooks"), HOOKS)
def test_the_training_ends_as_without_them(warm: Warm, tmp_path: Path, line: str, hooks: str) -> None:
    limits = {"max_steps": 1000, "max_seconds": 1000, "warn_at_s": 1.0}
    measured = run(warm, tmp_path, *line.split(), ranks=2, env={"BREAK_HOOKS": hooks}, **limits)
    for rank in (0, 1):
        assert (measured.ranks[rank].code, "Traceback" in measured.ranks[rank].err) == (0, False)
        assert measured.tally(rank)["samples"]  # the script writes them at its end
    notes = [note for note in measured.ran.rank()["not_measured"] if "ZeroDivisionError" in note]
    assert len(notes) == len({*notes})
    assert {note.partition(": ZeroDivisionError: broken by the test: ")[2] for note in notes} == {*hooks.split()}


def test_a_hook_that_failed_is_noted_once_and_does_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, calls = NotMeasured(), []
    monkeypatch.setattr(hooks, "FAILED_HOOKS", notes)

    def hook(step: int) -> int:
        calls.append(step)
        return 1 // (2 - step)

    guarded = hooks.eager(hook)
    assert [guarded(step) for step in (1, 2, 3)] == [1, None, None]
    assert calls == [1, 2]
    (note,) = notes
    assert note.startswith("hook ")
    assert note.endswith("hook: ZeroDivisionError: integer division or modulo by zero")


def test_what_a_signal_s_handler_raises_inside_a_hook_reaches_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "FAILED_HOOKS", NotMeasured())

    def preempted(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError("of the script")

    before = signal.signal(signal.SIGUSR1, preempted)
    try:
        guarded = hooks.eager(lambda: signal.raise_signal(signal.SIGUSR1))
        for _ in range(2):  # the hook is as good as before
            with pytest.raises(TimeoutError):
                guarded()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert hooks.FAILED_HOOKS == []


def test_a_record_that_fails_changes_no_hard_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    on_hard_exit(lambda code: 1 // 0)
    os._exit(3)
    assert codes == [3]
