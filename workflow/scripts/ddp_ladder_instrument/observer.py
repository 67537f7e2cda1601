"""What the hooks on torch observe of the training in this rank."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_ladder_instrument import accelerator, batch_sizes, collectives, hooks, host, loader_hooks, torch_facts
from ddp_ladder_instrument.contract import FIRST_SAMPLES, FIRST_STATE
from ddp_ladder_instrument.ddp import DdpTimings
from ddp_ladder_instrument.files import NotMeasured, RunSettings, write_atomically
from ddp_ladder_instrument.recorder import NEVER, Recorder
from ddp_ladder_instrument.samplers import LoaderPass, Loaders
from ddp_ladder_instrument.saves import Saves
from ddp_ladder_instrument.stop import RunLimits
from ddp_ladder_instrument.torch_facts import Kept, Named, RankFacts, States

if TYPE_CHECKING:
    from ddp_ladder_instrument.witness import Witness


def _new_witness() -> Witness:
    from ddp_ladder_instrument.witness import Witness  # it imports parts of torch that other runs can do without

    return Witness()


class TorchObserver:
    """The facts that the hooks notify this of. device: of the first parameters that are trained."""

    def __init__(
        self,
        run: RunSettings,
        recorder: Recorder,
        limits: RunLimits,
        not_measured: NotMeasured,
        on_group: Callable[[], None],
    ) -> None:
        self._recorder = recorder
        self._on_group = on_group
        self._limits = limits
        self._not_measured = not_measured
        self._wants_gpu = run.device in accelerator.GPUS
        self.world = RankFacts()
        self.ddp = DdpTimings(recorder, run.warmup_steps, run.max_steps, not_measured)
        self.kept = Kept()
        self.loaders = Loaders(recorder)
        self.loader_hooks = loader_hooks.LoaderHooks(recorder, self.loaders, self._on_batch)
        self.workers = loader_hooks.WorkerTimes()
        self.saves = Saves(recorder.saved, self._shapes)
        self.device: torch.device | None = None
        self.optimizers: set[str] = set()
        self.autocast_dtypes: set[str] = set()
        self.slow_modes: set[str] = set()
        self.process_group_s: float | None = None
        self.first_compile_s: float | None = None  # until the end of the first step
        self.witness = _new_witness() if run.is_witness else None
        self._trained = hooks.Trained(recorder.stepped)
        self._run = run
        self._states = States(self.kept.named, lambda: recorder.is_capturing(), self._keep_first_state)

    def install(self) -> None:
        recorder, patch, eager = self._recorder, self._not_measured.attempt, hooks.eager
        # Each has its own guard: what fails in one of them does not end the recorder that calls it.
        read, check, epoch_of = eager(self.ddp.read), eager(self._limits.check), eager(self.loaders.epoch_of)

        def replayed(begin_s: float, args: Sequence[Any]) -> None:
            recorder.replayed(id(args[0]), begin_s)

        witness = self.witness
        if witness is not None:  # before the limits, which may end the program at a step
            patch("batches that are trained on", lambda: witness.watch(self.loader_hooks))
        recorder.on_optimizer = eager(self._on_optimizer)
        recorder.machine.on_pass = eager(self._on_pass)
        recorder.epoch_of = lambda number: -1 if (epoch := epoch_of(number)) is None else epoch
        recorder.read_times = lambda step: read(step) or NEVER
        recorder.check_limits = lambda step, now_s: check(step, now_s) or NEVER
        recorder.check_at = self._limits.first_check
        patch("steps", lambda: hooks.patch_optimizers(recorder.after_step))
        if self._run.is_link:
            patch("first_state, last_state", lambda: hooks.patch_before_steps(self._states.before_step))
        patch("samples, data_wait_s", self.loader_hooks.patch_torch)
        patch("steps that GradScaler skips", lambda: hooks.patch_grad_scaler(recorder))
        patch("samples by their indices", loader_hooks.patch_indices)
        patch("worker_batch_s", loader_hooks.patch_workers)
        patch("evaluation without a DataLoader", lambda: hooks.patch_modes(recorder, self._trained))
        patch("gradients that are discarded", lambda: hooks.patch_zero_grad(recorder.zeroed, self._trained))
        # It makes the reducer of a module that is wrapped.
        patch("ddp", lambda: hooks.patch_call(DistributedDataParallel, "_ddp_init_helper", self._on_ddp))
        patch("forward passes", lambda: hooks.patch_forward(recorder.forward, self.ddp.modules))
        # Tensor.backward calls this one, too.
        patch("backward passes", lambda: hooks.patch_call(torch.autograd, "backward", self._on_backward))
        patch("phases.saves_s", self.saves.patch_torch)
        patch("steps of CUDA graphs", lambda: hooks.patch_call(accelerator.graphs(), "replay", replayed))
        patch("captures of CUDA graphs", lambda: hooks.patch_captures(accelerator.graphs(), accelerator.CAPTURES.set))
        patch("communication", lambda: collectives.patch_collectives(recorder.collective, recorder.mark_collective))
        patch("uneven inputs", lambda: collectives.patch_join(recorder.joined_unevenly))
        patch("phases.compiles_s", lambda: hooks.patch_compilation(recorder.compiled))
        patch("exclusion of the hooks from torch.compile", hooks.patch_compiler)
        patch("ranks that the script starts", hooks.refuse_spawn)
        patch("startup_s.process_group", lambda: hooks.patch_process_group(recorder.on_joins, self._on_process_group))
        patch("autocast_dtype", lambda: hooks.watch_autocast(self._on_autocast, lambda: recorder.steps))

    def _on_process_group(self, begin_s: float) -> None:
        now_s = time.perf_counter()
        self.world.observe()
        # A group that is made again later is no part of the start-up.
        self.process_group_s = (self.process_group_s or 0.0) + (0.0 if self._recorder.steps else now_s - begin_s)
        self._recorder.group_made(begin_s, now_s)
        self._on_group()

    def _on_ddp(self, _begin_s: float, args: Sequence[Any]) -> None:
        module = args[0]
        self.world.observe()
        self._use_device(self.kept.add_module(module))
        if self.device is not None:
            self.ddp.attach(module, self.device)
            self._recorder.read_at = 0

    def _on_optimizer(self, optimizer: Any) -> None:
        if not self.optimizers:
            self.first_compile_s = self._not_measured.attempt("startup_s.compile", host.compile_s)
        self.optimizers.add(torch_facts.optimizer_name(optimizer))
        self.world.observe()
        self._use_device(self.kept.add_optimizer(optimizer))
        self._trained.forget()
        self._states.give_up()

    def _keep_first_state(self, state: Mapping[str, Any]) -> None:
        """Write the state before the first step now: the end of the job's time leaves no end record."""
        content = {"spec_hash": self._run.spec_hash, "job": self._run.job, "rank": self.world.rank, "state": state}
        path = self._run.directory / "ranks" / FIRST_STATE.format(self.world.rank)
        write_atomically(path, [json.dumps({"schema_version": 1, **content}, allow_nan=False)], durable=False)

    def _use_device(self, named: Named) -> None:
        """Use the device of these parameters for the timing, unless one is set."""
        if self.device is not None or not named:
            return
        self.device = named[0][1].device
        if accelerator.is_gpu(self.device):
            self._recorder.use_device(accelerator.Marks(self.device), accelerator.is_capturing)

    def _on_batch(self, pass_: LoaderPass, batch: object) -> None:
        """Digest the first batches of each pass; only later is it known which passes are training."""
        digest = self._not_measured.attempt(FIRST_SAMPLES, lambda: batch_sizes.digest(batch))
        if digest:
            self.loaders.digests.setdefault(pass_.number, []).append(digest)

    def _on_pass(self, number: int) -> None:
        pass_ = self.loaders.passes.get(number)
        if pass_ is not None and pass_.iterator is not None:
            self.workers.add(pass_.iterator())

    def _on_backward(self, begin_s: float, _args: object) -> None:
        self._recorder.backward(begin_s)
        self._states.had_backward = True
        if self._recorder.steps < hooks.FIRST_STEPS:  # a mode may be on in a `with` around the passes alone
            self.slow_modes.update(torch_facts.slow_modes())

    def _shapes(self) -> set[torch.Size]:
        """Return the shapes of the trained tensors but for vectors, whose shapes others have, too."""
        return {tensor.shape for _, tensor in self.kept.named() if tensor.dim() > 1}

    def _on_autocast(self, dtype: torch.dtype) -> None:
        self.autocast_dtypes.add(str(dtype).partition(".")[2])

    def facts(self, device_answers: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the record's fields on torch, and those of its fingerprint.

        device_answers: results can be read from the device.
        """
        device, described = self.device, accelerator.describe(self.device)
        on_gpu = accelerator.is_gpu(device)
        named, attempt, read = self.kept.named(), self._not_measured.attempt, self._not_measured.read
        can_read = device_answers or not on_gpu
        if named and not can_read:
            self._not_measured.append("parameters: not read after a failure, which could wait for an ended rank")
        record = {
            "backend": self.world.backend(described["kind"]),
            "device": described,
            "gpus_seen": attempt("gpus_seen", accelerator.gpus_seen) if self._wants_gpu and not on_gpu else None,
            "peak_memory_bytes": attempt("peak_memory_bytes.device", lambda: accelerator.peak_memory_bytes(device)),
            "memory_limit_bytes": attempt("memory_limit_bytes.device", lambda: accelerator.memory_limit_bytes(device)),
            "parameters": None,
            "worker_batch_s": self.workers.batch_s(),
            "first_state": self._states.first,
        }
        if named and can_read:
            record["parameters"] = attempt("parameters", lambda: torch_facts.summary(named, self.world.rank == 0))
            record["last_state"] = attempt("last_state", self._states.last)
        return record, {
            "backend_class": self.world.backend_class(described["kind"]),
            "parameter_dtype": torch_facts.main_dtype(named) if named else None,
            "autocast_dtype": " + ".join(sorted(self.autocast_dtypes)) or None,
            "float32_products": read("float32_products", lambda: accelerator.float32_products(on_gpu)),
            "compiled_graphs": read("compiled_graphs", torch_facts.compiled_graphs),
            "optimizer": " + ".join(sorted(self.optimizers)) or None,
            **accelerator.versions(on_gpu, read),
        }
