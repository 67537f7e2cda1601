"""The measurement of one rank, from the start of its program to its end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from ddp_ladder_instrument import host, progress
from ddp_ladder_instrument.clock import StepClock
from ddp_ladder_instrument.files import NotMeasured
from ddp_ladder_instrument.program import Program, ProgramEnd, exit_code
from ddp_ladder_instrument.progress import Heartbeat, signs
from ddp_ladder_instrument.python_hooks import when_imported
from ddp_ladder_instrument.settings import RunSettings
from ddp_ladder_instrument.stop import ProfiledSteps, RunLimits

if TYPE_CHECKING:
    from ddp_ladder_instrument.observer import TorchObserver
    from ddp_ladder_instrument.torch_facts import GroupStore


TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"
FSDP = "torch.distributed.fsdp._flat_param"


class Measurement:
    """The state of one rank's measurement; ``watch`` starts it, ``end`` ends it.

    observer: None until torch is imported. device_answers: results can be read from the device at the end.
    """

    def __init__(self, run: RunSettings, program: Program, started_at_s: float) -> None:
        self.run = run
        self.program = program
        self.started_at_s = started_at_s
        self.not_measured = NotMeasured()
        self.clock = StepClock(run.samples_per_step)
        self.observer: TorchObserver | None = None
        self.import_torch_s: float | None = None
        self.configuration = host.configuration_files(program.args)
        self._reported = progress.announce(run.directory)
        self.source = "counted" if run.samples_per_step is None else "samples_per_step"
        self.own_processes = 0
        self.program_end = ProgramEnd()
        self.training_s: float | None = None
        self.profiled = ProfiledSteps(run.profile_steps, self._end_measured)
        self._limits = RunLimits(run.max_steps, run.max_seconds, _find_store, self.profiled.go_on)
        self.ended = False
        self.device_answers = True
        self._heartbeat = Heartbeat(
            run.directory, self.clock, lambda: signs(self.clock, self._reported, self.ended), self._world_size
        )

    def _world_size(self) -> int:
        return int(os.environ.get("WORLD_SIZE") or 1) if self.observer is None else self.observer.world.size

    def watch(self) -> None:
        """Install the hooks on torch and on libraries that work with it, each once the script has imported it.

        All are registered at once: a library that imports torch is not yet imported itself when torch is.
        """
        with contextlib.suppress(OSError):  # writing the record then fails too, and that error is reported
            self._heartbeat.start()
        when_imported("torch", self._install)
        for module in ("accelerate.data_loader", "webdataset.compat", TORCHDATA, FSDP):
            when_imported(module, lambda _took_s, module=module: self._install_on(module))  # type: ignore[misc]

    def _install_on(self, module: str) -> None:
        """Install the hooks on a library that works with torch."""
        from ddp_ladder_instrument import hooks, loader_hooks

        name, patch = {
            "accelerate.data_loader": ("samples of accelerate's loaders", loader_hooks.patch_accelerate),
            "webdataset.compat": ("samples of webdataset's loader", loader_hooks.patch_webdataset),
            TORCHDATA: ("samples of torchdata's loader", loader_hooks.patch_torchdata),
            FSDP: ("shards of FullyShardedDataParallel", hooks.patch_fsdp),
        }[module]
        self.not_measured.attempt(name, lambda: patch(sys.modules[module], self.clock))

    def _install(self, import_torch_s: float) -> None:
        """Install the hooks on torch, which has just been imported."""
        from ddp_ladder_instrument.observer import TorchObserver

        self.import_torch_s = import_torch_s
        self.observer = TorchObserver(self.run, self.clock, self._limits, self.not_measured)
        self.observer.install()
        self.clock.timer.started()

    def _end_measured(self) -> None:
        """End the measured steps; some follow that are only traced."""
        self.clock.table.end_measured()
        if self.observer is not None:
            self.observer.backwards.wanted = False
            if self.observer.device is not None and self.observer.device.type == "cuda":
                self.profiled.device = self.observer.device

    def count_own_process(self) -> None:
        """Count a process that the script starts."""
        self.own_processes += 1

    def end(self, error: BaseException | None) -> BaseException | None:
        """Close the measurement; return the exception that must end the process, if any."""
        self.ended = True
        with contextlib.suppress(OSError):
            self._heartbeat.stop()
        table = self.clock.table
        if table.first_step_ended_at_s is not None:
            self.training_s = max(0.0, (self.profiled.began_at_s or time.time()) - table.first_step_ended_at_s)
        if self._limits.ended_by is not None and exit_code(error) == 0:
            if error is not None:
                # The frames of the traceback keep the script's loaders and their workers alive.
                error.__traceback__ = None
            error = _leave_process_group()
        self.program_end.note(error)
        if self._limits.ended_by is not None:
            self.program_end.ended_by = self._limits.ended_by
            self.program_end.after_training = error is not None
        self.device_answers = self._device_answers()
        if not any(table.samples):
            self._adopt_metrics()
        if self.observer is not None:
            self.not_measured.attempt("max_seconds", self._limits.release)
            self._close_timeline()
            table.drop_unmeasured()
        elif "torch" in sys.modules:
            loader = type(getattr(sys.modules["torch"], "__loader__", None)).__name__
            self.not_measured.append(f"steps: torch was imported without the instrument seeing it (loader {loader})")
        return error

    def _adopt_metrics(self) -> None:
        """Use the steps that the program reported itself, because no samples were counted."""
        rows = self.not_measured.attempt("steps", lambda: progress.read_metrics(self._reported))
        if rows:
            self.clock.timer.timeline = None
            self.clock.table.adopt(rows)
            self.source = "metrics"
        elif not self.clock.table.count:
            self.source = "none"

    def _close_timeline(self) -> None:
        timeline, times_s = self.clock.timer.timeline, self.clock.table.step_time_s
        if timeline is None:
            return
        # After a failure the device may wait for a rank that is gone; waiting for the device would hang.
        ended_well = self.program_end.exit_code == 0
        left = self.not_measured.attempt("step_time_s", lambda: timeline.finish(times_s, ended_well))
        if left:
            self.not_measured.append(
                f"step_time_s: the device had not finished the last {left} steps; their times are host times"
            )

    def _device_answers(self) -> bool:
        """Return True if results can be read from the device: after a failure, only if it has nothing left to do."""
        device = self.observer.device if self.observer is not None else None
        if self.program_end.exit_code == 0 or device is None or device.type != "cuda":
            return self.program_end.exit_code == 0 or self.program_end.after_training
        from ddp_ladder_instrument.torch_facts import is_idle

        return self.program_end.after_training and is_idle(device)


def _find_store() -> GroupStore | None:
    from ddp_ladder_instrument.torch_facts import find_store

    return find_store()


def _leave_process_group() -> BaseException | None:
    """Destroy the process group, as the script would at its end."""
    from ddp_ladder_instrument.torch_facts import has_group

    if not has_group():
        return None
    import torch.distributed

    try:
        torch.distributed.destroy_process_group()
    except RuntimeError as error:
        return error
    return None
