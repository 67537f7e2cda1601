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
HOOKS = [
    ("recorder:Recorder.after_step", "accumulate.py sync"),
    ("recorder:Recorder.backward", "accumulate.py sync"),
    ("recorder:Recorder.forward", "accumulate.py sync"),
    ("recorder:Recorder.zeroed", "accumulate.py sync"),
    ("recorder:Recorder.skipped", "amp.py"),
    ("recorder:Recorder.saved", "snapshots.py"),
    ("saves:_position", "snapshots.py"),
    ("recorder:Recorder.group_made", "accumulate.py sync"),
    ("recorder:Recorder.begin", "accumulate.py sync"),
    ("recorder:Recorder.enter", VALIDATES),
    ("recorder:Recorder.drawn", VALIDATES),
    ("recorder:Recorder.ended", VALIDATES),
    ("recorder:Recorder.mode", VALIDATES),
    ("hooks:Trained.holds", VALIDATES),
    ("hooks:_note_shards", "sharded.py fsdp1 flat"),
    ("hooks:_dimensions", "accumulate.py sync"),
    ("samplers:Loaders.begin", "accumulate.py sync"),
    ("samplers:Loaders.begin", "hf_accelerate.py shard"),
    ("samplers:Loaders.begin", "stateful.py --workers 1"),
    ("samplers:Loaders.begin", "loaders.py web_shuffled 0"),
    ("samplers:Loaders.epoch_of", "accumulate.py sync"),
    ("loader_hooks:LoaderHooks._count", "hf_accelerate.py shard"),
    ("loader_hooks:LoaderHooks._made", "accumulate.py sync"),
    ("loader_hooks:_announced_size", "accumulate.py sync"),
    ("loader_hooks:_announce", "accumulate.py sync"),
    ("loader_hooks:_share_times", "workers.py fork 1 2 persistent"),
    ("batch_sizes:digest", "accumulate.py sync"),
    ("ddp:DdpTimings.attach", "accumulate.py sync"),
    ("ddp:DdpTimings.read", "accumulate.py sync"),
    ("observer:TorchObserver._on_ddp", "accumulate.py sync"),
    ("observer:TorchObserver._on_optimizer", "accumulate.py sync"),
    ("observer:TorchObserver._on_pass", "accumulate.py sync"),
    ("observer:TorchObserver._on_process_group", "accumulate.py sync"),
    ("observer:TorchObserver._on_autocast", "amp.py"),
    ("states:States.before_step", "accumulate.py sync"),
    ("states:States.last", "accumulate.py sync"),
    ("stop:RunLimits.check", "accumulate.py sync"),
    ("stop:RunLimits.release", "accumulate.py sync"),
    ("measurement:Measurement._install", "accumulate.py sync"),
    ("measurement:Measurement._install_on", "sharded.py fsdp1 flat"),
    ("measurement:Measurement._read_marks", "accumulate.py sync"),
    ("measurement:Measurement._device_answers", "accumulate.py sync"),
    ("measurement:Measurement.end", "accumulate.py sync"),
    ("progress:Heartbeat.start", "accumulate.py sync"),
    ("progress:Heartbeat.stop", "accumulate.py sync"),
]


warm = warmed("torch", "torch._dynamo", "torch.distributed.tensor", "accelerate", "torchdata.stateful_dataloader")


@pytest.mark.parametrize(("hook", "line"), HOOKS)
def test_the_training_ends_as_without_it(warm: Warm, tmp_path: Path, hook: str, line: str) -> None:
    limits = {"max_steps": 1000, "max_seconds": 1000, "warn_at_s": 1.0}
    measured = run(warm, tmp_path, *line.split(), ranks=2, env={"BREAK_HOOK": hook}, **limits)
    for rank in (0, 1):
        assert (measured.ranks[rank].code, "Traceback" in measured.ranks[rank].err) == (0, False)
        assert measured.tally(rank)["samples"]  # the script writes them at its end
    notes = measured.ran.rank()["not_measured"]
    told = [note for note in notes if note.endswith(": ZeroDivisionError: broken by the test")]
    assert len(told) == len({*told}) > 0


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
