"""The measurement of one rank: it connects the hooks, the step clock and the limits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument import metrics, output, provenance
from ddp_ladder_instrument.after_import import when_imported
from ddp_ladder_instrument.job import Job
from ddp_ladder_instrument.loops import Loop
from ddp_ladder_instrument.program import Program
from ddp_ladder_instrument.progress import Progress
from ddp_ladder_instrument.steps import Steps
from ddp_ladder_instrument.stop import Limits

if TYPE_CHECKING:
    import torch

    from ddp_ladder_instrument.backwards import Backwards
    from ddp_ladder_instrument.ddp import DdpTimings
    from ddp_ladder_instrument.loaders import Passes
    from ddp_ladder_instrument.model_hooks import Trained
    from ddp_ladder_instrument.parameters import Kept, Named
    from ddp_ladder_instrument.world import World

AUTOCAST_STEPS = 3
"""Autocast regions are watched during the first steps only."""
WAIT_UNKNOWN = (
    "data_wait_s: another thread draws the batches and does not hand them over by queue.Queue, Future or Thread.join; "
    "how long the training waited for them is not known"
)


class Measurement:
    """The state of one rank's measurement; ``install`` starts it when torch is imported, ``end`` ends it.

    not_measured: the quantities that could not be measured, each with the reason.
    """

    def __init__(self, job: Job, program: Program, started_at_s: float) -> None:
        self.job = job
        self.program = program
        self.started_at_s = started_at_s
        self.not_measured: list[str] = []
        self.steps = Steps(job.samples_per_step)
        self.import_torch_s: float | None = None
        self.process_group_s: float | None = None
        self.world: World | None = None
        self.ddp: DdpTimings | None = None
        self.device: torch.device | None = None
        self.kept: Kept | None = None
        self.trained: Trained | None = None
        self.optimizers: set[str] = set()
        self.autocast_dtypes: set[str] = set()
        self.backwards: Backwards | None = None
        self.configuration = provenance.configuration_files(program.args)
        self.loader: dict[str, Any] | None = None
        self.first_samples: list[str] = []
        self.metrics = metrics.announce(job.directory)
        self.source = "counted" if job.samples_per_step is None else "samples_per_step"
        self.own_processes = 0
        self.exit_code = 0
        self.training_s: float | None = None
        self.ended_by = "script"
        self.exception: str | None = None
        self.limits = Limits(job.max_steps, job.max_seconds, self._find_board)
        self._progress: Progress | None = Progress(job.directory / "progress.json")
        self._progress_row = 0
        self._epoch_steps: int | None = None
        self._passes: Passes | None = None
        self._epochs: frozenset[str] | None = None
        self._stop_watching: Callable[[], None] | None = None

    def watch(self) -> None:
        """Install the hooks on torch, accelerate, torchdata and FSDP1, each once the script has imported it.

        All are registered at once: a library that imports torch is not yet imported itself when torch is.
        """

        self.attempt("output", lambda: output.keep_from_failing(self._on_lost_output))

        def hook_accelerate(_took_s: float) -> None:
            from ddp_ladder_instrument.loader_hooks import patch_accelerate

            self.hook("samples of each step", lambda: patch_accelerate(self.steps))

        def hook_torchdata(_took_s: float) -> None:
            from ddp_ladder_instrument.loader_hooks import patch_torchdata

            self.hook("samples of torchdata's loader", lambda: patch_torchdata(self.steps))

        def hook_fsdp(_took_s: float) -> None:
            from ddp_ladder_instrument.hooks import patch_fsdp
            from ddp_ladder_instrument.parameters import FSDP_SHARDS

            self.hook("shards of FullyShardedDataParallel", lambda: patch_fsdp(FSDP_SHARDS))

        when_imported("torch", self.install)
        when_imported("accelerate.data_loader", hook_accelerate)
        when_imported("torchdata.stateful_dataloader.stateful_dataloader", hook_torchdata)
        when_imported("torch.distributed.fsdp._flat_param", hook_fsdp)

    def install(self, import_torch_s: float) -> None:
        """Install the hooks on torch, which has just been imported."""
        import torch

        from ddp_ladder_instrument import compiler, handovers, hooks, loader_hooks, model_hooks
        from ddp_ladder_instrument.backwards import Backwards
        from ddp_ladder_instrument.ddp import DdpTimings
        from ddp_ladder_instrument.parameters import Kept
        from ddp_ladder_instrument.world import World

        self.import_torch_s = import_torch_s
        self.world = World()
        self.ddp = DdpTimings(self.job.warmup_steps, self.not_measured)
        self.kept = Kept()
        self.trained = trained = model_hooks.Trained()
        steps = self.steps
        steps.grad_enabled = torch.is_grad_enabled
        steps.on_optimizer = self._on_optimizer
        self.backwards = Backwards(lambda: steps.count, self.not_measured, steps.before_backward)
        steps.on_batch = self._on_batch
        steps.on_loop = self._on_loop
        steps.on_tick = self._on_tick
        steps.on_wait_unknown = lambda: self.not_measured.append(WAIT_UNKNOWN)
        steps.check_limits = self.limits.check
        steps.check_at = self.limits.first_check
        patches: dict[str, Callable[[], str | None]] = {
            "steps": lambda: hooks.patch_optimizers(steps),
            "samples, data_wait_s": lambda: loader_hooks.patch_loaders(steps),
            "batches that other threads draw": lambda: handovers.patch_handovers(steps),
            "steps that GradScaler skips": lambda: hooks.patch_grad_scaler(steps),
            "samples by their indices": loader_hooks.patch_indices,
            "loader.set_epoch_called": loader_hooks.patch_set_epoch,
            "evaluation without a DataLoader": lambda: model_hooks.patch_modes(steps, trained),
            "ddp": lambda: hooks.patch_ddp(self._on_ddp),
            "loss": self.backwards.install,
            "exclusion of the hooks from torch.compile": compiler.patch_compiler,
            "startup_s.process_group": lambda: hooks.patch_process_group(self._on_process_group),
        }
        for quantity, patch in patches.items():
            self.hook(quantity, patch)
        self._stop_watching = self.attempt("autocast_dtype", lambda: hooks.watch_autocast(self._on_autocast))
        steps.started()

    def begin_in_fork(self) -> None:
        """Continue in a rank that was forked from the process with the hooks."""
        self.started_at_s = time.time()
        self.import_torch_s = 0.0
        self.own_processes = 0
        self.steps.trainers.add(threading.get_ident())
        self.steps.started()

    def _on_lost_output(self, error: OSError) -> None:
        lost = f"output: the log is incomplete: {error.strerror}"
        if lost not in self.not_measured:
            self.not_measured.append(lost)

    def hook(self, quantity: str, patch: Callable[[], str | None]) -> None:
        """Patch torch; if that fails, note that ``quantity`` is not measured."""
        problem = self.attempt(quantity, patch)
        if problem is not None:
            self.not_measured.append(f"{quantity}: {problem}")

    # Callbacks of the hooks.

    def _on_process_group(self, took_s: float) -> None:
        assert self.world is not None
        self.world.observe()
        self.steps.check_at = self.limits.new_group(self.steps.count)
        # A group that is made again later is no part of the start-up.
        self.process_group_s = (self.process_group_s or 0.0) + (0.0 if self.steps.count else took_s)
        self.steps.started()

    def _on_ddp(self, module: Any) -> None:
        assert self.world is not None
        assert self.ddp is not None
        assert self.kept is not None
        self.world.observe()
        self._use_device(self.kept.add_module(module))
        if self.device is not None:
            self.ddp.attach(module, self.device)

    def _on_optimizer(self, optimizer: Any) -> None:
        assert self.world is not None
        assert self.kept is not None
        assert self.trained is not None
        from ddp_ladder_instrument import torch_facts

        self.optimizers.add(torch_facts.optimizer_name(optimizer))
        self.world.observe()
        self._use_device(self.kept.add_optimizer(optimizer))
        self.trained.add(optimizer)

    def _use_device(self, named: Named) -> None:
        """Use the device of these parameters for the timing, unless one is set."""
        if self.device is not None or not named:
            return
        self.device = named[0][1].device
        if self.device.type == "cuda":
            from ddp_ladder_instrument.cuda import CudaTimeline

            self.steps.timeline = CudaTimeline(self.device)

    def _on_batch(self, loop: Loop, batch: object) -> None:
        """Digest the first batches of each pass; only later is it known which passes are training."""
        from ddp_ladder_instrument import shards

        if len(loop.first_samples) < shards.MOST_DIGESTS:
            loop.first_samples += self.attempt("first samples", lambda: shards.digests(batch)) or []

    def _on_loop(self, loop: Loop) -> None:
        from ddp_ladder_instrument import loaders

        assert self.world is not None
        loader = loop.loader()
        if loader is None:
            return
        before = self.loader
        if before is None:
            self.first_samples = loop.first_samples
        if self._passes is None:
            self._passes = loaders.Passes()
        passes = self._passes.begin(loader)
        self.loader = loaders.facts(loader, self.world.size, passes)
        epochs = loaders.epochs_set(loader)
        if before is not None and before["set_epoch_called"]:
            self.loader["set_epoch_called"] = True
            epochs = None if self._epochs is None or epochs is None else self._epochs | epochs
        self._epochs = epochs
        self.loader["epochs_set"] = len(epochs) if epochs else None
        self.loader["passes"] = max(passes, before["passes"] if before is not None else 0)
        self._epoch_steps = loaders.epoch_batches(loader)

    def _on_autocast(self, dtype: torch.dtype) -> None:
        self.autocast_dtypes.add(str(dtype).partition(".")[2])

    def _on_tick(self, now_s: float) -> None:
        assert self.world is not None
        assert self.ddp is not None
        step = self.steps.count
        if self._stop_watching is not None and step >= AUTOCAST_STEPS:
            self._stop_watching()
            self._stop_watching = None
        self.ddp.poll(step)
        if self.backwards is not None:
            self.backwards.wanted = True
        if self.world.rank == 0 and self._progress is not None:
            self._write_progress(self._progress, now_s, step, self.world.size)

    def _write_progress(self, progress: Progress, now_s: float, step: int, world_size: int) -> None:
        samples = sum(self.steps.samples[self._progress_row :])
        try:
            if progress.update(now_s, step, samples, world_size, self._epoch_steps):
                self._progress_row = len(self.steps.samples)
        except OSError as error:
            # Progress is for display only: the training continues without it.
            self.not_measured.append(f"progress: {error}")
            self._progress = None

    def _find_board(self) -> Any:
        from ddp_ladder_instrument.world import find_board

        return find_board()

    # The end.

    def end(self, error: BaseException | None) -> BaseException | None:
        """Close the measurement; return the exception that must end the process, if any."""
        if self.steps.first_step_ended_at_s is not None:
            self.training_s = max(0.0, time.time() - self.steps.first_step_ended_at_s)
        if self.limits.ended_by is not None and _exit_code(error) == 0:
            if error is not None:
                # The frames of the traceback keep the script's loaders and their workers alive.
                error.__traceback__ = None
            error = self._leave_process_group()
            self.ended_by = self.limits.ended_by
        self.exit_code = _exit_code(error)
        if error is not None and not isinstance(error, SystemExit):
            self.ended_by = "exception"
            self.exception = one_line(error)
        if not any(self.steps.samples):
            self._adopt_metrics()
        if self.world is None and "torch" in sys.modules:
            loader = type(getattr(sys.modules["torch"], "__loader__", None)).__name__
            self.not_measured.append(f"steps: torch was imported without the instrument seeing it (loader {loader})")
        if self.world is not None:
            self.attempt("max_seconds", self.limits.release)
            self._close_timeline()
        return error

    def _adopt_metrics(self) -> None:
        """Use the steps that the program reported itself, because no samples were counted."""
        rows = self.attempt("steps", lambda: metrics.read(self.metrics))
        if rows:
            self.steps.adopt(rows)
            self.source = "metrics"
        elif not self.steps.count:
            self.source = "none"

    def _leave_process_group(self) -> BaseException | None:
        """Destroy the process group, as the script would at its end."""
        from ddp_ladder_instrument.world import has_group

        if not has_group():
            return None
        import torch.distributed

        try:
            torch.distributed.destroy_process_group()
        except RuntimeError as error:
            return error
        return None

    def _close_timeline(self) -> None:
        timeline = self.steps.timeline
        if timeline is None:
            return
        # After a failure the device may wait for a rank that is gone; waiting for the device would hang.
        left = self.attempt("step_time_s", lambda: timeline.finish(self.steps.step_time_s, self.device_answers))
        if left:
            self.not_measured.append(
                f"step_time_s: the device had not finished the last {left} steps; their times are host times"
            )

    @property
    def parameters(self) -> Named:
        """The trained parameters, by name."""
        return self.kept.named() if self.kept is not None else []

    @property
    def device_answers(self) -> bool:
        """True if synchronising with the device at the end is safe: not after a failure."""
        return self.exit_code == 0

    def attempt(self, quantity: str, measure: Callable[[], Any]) -> Any:
        """Return the result of ``measure``; if it raises, return None and add the reason to not_measured."""
        try:
            return measure()
        except Exception as error:
            self.not_measured.append(f"{quantity}: {one_line(error)}")
            return None


def _exit_code(error: BaseException | None) -> int:
    """Return the exit code that python would end with; 130 for Ctrl-C, as shells show it."""
    if error is None:
        return 0
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


_LONGEST_TEXT = 1000
_TRACEBACK = "Traceback (most recent call last):"


def one_line(error: BaseException) -> str:
    """Return an exception's text on one line; of a traceback inside it (a loader's worker) only the last lines."""
    text = str(error)
    before, traceback, after = text.rpartition(_TRACEBACK)
    if traceback:
        lines = after.strip("\r\n").splitlines()
        start = next((k for k, line in enumerate(lines) if line[:1].strip()), 0)
        text = "\n".join([*before.lstrip().splitlines()[:1], *lines[start:]])
    text = " ".join(text.split())
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}..."
    name = type(error).__name__
    return f"{name}: {text}" if text else name
