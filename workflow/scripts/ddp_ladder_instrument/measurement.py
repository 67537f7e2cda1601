"""The measurement of one rank, from the start of its program to its end: its steps and end record, written once."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_ladder_instrument import host, progress, slow_settings
from ddp_ladder_instrument.contract import FIRST_STATE, HEARTBEATS_VARIABLE, WITNESS, WITNESS_PASSES
from ddp_ladder_instrument.files import FAILED_HOOKS, NotMeasured, RunSettings, one_line, write_atomically
from ddp_ladder_instrument.judgement import judged_fields
from ddp_ladder_instrument.machine import Judged
from ddp_ladder_instrument.own_run import agreed
from ddp_ladder_instrument.program import Program, ProgramEnd, exit_code
from ddp_ladder_instrument.progress import Heartbeat, signs
from ddp_ladder_instrument.python_hooks import when_imported
from ddp_ladder_instrument.recorder import Recorder
from ddp_ladder_instrument.redaction import redacted_words
from ddp_ladder_instrument.stop import ProfiledSteps, RunLimits, wait_for
from ddp_ladder_instrument.table import csv_lines, little_endian

if TYPE_CHECKING:
    import torch

    from ddp_ladder_instrument.observer import TorchObserver
    from ddp_ladder_instrument.torch_facts import GroupStore


SCHEMA_VERSION = 2
TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"
FSDP = "torch.distributed.fsdp._flat_param"
CHECKPOINTS = "torch.distributed.checkpoint.state_dict_saver"
CHECKPOINT_FILES = "torch.distributed.checkpoint.filesystem"
WATCHED = {
    "torch": "steps",
    "accelerate.data_loader": "samples of accelerate's loaders",
    "webdataset.compat": "samples of webdataset's loader",
    TORCHDATA: "samples of torchdata's loader",
    FSDP: "shards of FullyShardedDataParallel",
    CHECKPOINTS: "saves of torch.distributed.checkpoint",
    CHECKPOINT_FILES: "bytes that torch.distributed.checkpoint saves",
}


class Measurement:
    """The state of one rank's measurement; ``watch`` starts it, ``end`` ends it.

    observer: None until torch is imported. device_answers: results can be read from the device at the end.
    """

    def __init__(self, run: RunSettings, program: Program, started_at_s: float) -> None:
        self.run = run
        self.program = program
        self.started_at_s = started_at_s
        self.not_measured = NotMeasured()
        self.recorder = Recorder(run.samples_per_step, host.place().rank, run.never_train)
        self.judged: Judged | None = None
        self.observer: TorchObserver | None = None
        self.import_torch_s: float | None = None
        self.configuration = host.configuration_files(program.args)
        self._reported = progress.announce(run.directory)
        self.source = "counted" if run.samples_per_step is None else "samples_per_step"
        self.program_end = ProgramEnd()
        self.training_ended_at_s: float | None = None
        self.profiled = ProfiledSteps(run.profile_steps, self._end_measured)
        is_enough = self._has_passes if run.is_witness else None
        self._limits = RunLimits(run.max_steps, run.max_seconds, _find_store, self.profiled.go_on, is_enough)
        self.ended = False
        self.device_answers = True
        self.heartbeat = Heartbeat(
            run.directory, self.recorder, lambda: signs(self.recorder, self._reported, self.ended), self._world_size
        )

    @property
    def _gpu(self) -> torch.device | None:
        """The GPU that trains, if one does."""
        if self.observer is None:
            return None
        from ddp_ladder_instrument import accelerator

        return self.observer.device if accelerator.is_gpu(self.observer.device) else None

    def _has_passes(self) -> bool:
        """Return True if enough passes over a loader that trains have gone to their ends for a witness."""
        return max(self.recorder.machine.whole.values(), default=0) >= WITNESS_PASSES

    def _world_size(self) -> int:
        return host.place().size if self.observer is None else self.observer.world.size

    def watch(self) -> None:
        """Install the hooks on torch and on libraries that work with it, each once the script has imported it.

        All are registered at once: a library that imports torch is not yet imported itself when torch is.
        """
        if heartbeats := os.environ.get(HEARTBEATS_VARIABLE):  # without an agent nobody reads it
            self.not_measured.attempt("heartbeat", partial(self.heartbeat.start, Path(heartbeats)))
        for module in WATCHED:
            when_imported(module, partial(self._on_import, module))

    def _on_import(self, module: str, took_s: float) -> None:
        install = partial(self._install, took_s) if module == "torch" else partial(self._install_on, module)
        self.not_measured.attempt(WATCHED[module], install)

    def _install_on(self, module: str) -> None:
        from ddp_ladder_instrument import hooks

        assert self.observer is not None  # it works with torch
        loaders, saves = self.observer.loader_hooks, self.observer.saves
        patch: dict[str, Callable[[Any], None]] = {
            "accelerate.data_loader": loaders.patch_accelerate,
            "webdataset.compat": loaders.patch_webdataset,
            TORCHDATA: loaders.patch_torchdata,
            FSDP: hooks.patch_fsdp,
            CHECKPOINTS: saves.patch_checkpoint,
            CHECKPOINT_FILES: saves.patch_writer,
        }
        patch[module](sys.modules[module])

    def _install(self, import_torch_s: float) -> None:
        from ddp_ladder_instrument.observer import TorchObserver

        self.import_torch_s = import_torch_s
        self.observer = TorchObserver(self.run, self.recorder, self._limits, self.not_measured, self._on_group)
        self.observer.install()
        self.recorder.begin()

    def _on_group(self) -> None:
        store = _find_store()
        if self.run.is_own and store is not None:
            self.run = self.not_measured.attempt("directory of rank 0", lambda: agreed(self.run, store)) or self.run
            self._reported = progress.announce(self.run.directory)

    def _end_measured(self) -> None:
        """End the measured steps; some follow that are only traced."""
        self.recorder.end_measured()
        self.profiled.device = self._gpu

    def end(self, error: BaseException | None) -> BaseException | None:
        """Close the measurement; return the exception that must end the process, if any."""
        self.ended = True
        self.not_measured.attempt("heartbeat", self.heartbeat.stop)
        if exit_code(error) == 0:
            self.not_measured.attempt("training_s", lambda: wait_for(self._gpu))
        self.training_ended_at_s = self.profiled.began_at_s or time.time()
        if self._limits.ended_by is not None and exit_code(error) == 0:
            if error is not None:
                # The frames of the traceback keep the script's loaders and their workers alive.
                error.__traceback__ = None
            error = _leave_process_group(self._gpu)
        self.program_end.note(error)
        if self._limits.ended_by is not None:
            self.program_end.ended_by = self._limits.ended_by
            self.program_end.after_training = error is not None
        self.device_answers = bool(self.not_measured.attempt("parameters", self._device_answers))
        if self.observer is not None:
            self.not_measured.attempt("max_seconds", self._limits.release)
            self.not_measured.attempt("step_time_s", self._read_marks)
        elif "torch" in sys.modules:
            loader = type(getattr(sys.modules["torch"], "__loader__", None)).__name__
            self.not_measured.append(f"steps: torch was imported without the instrument seeing it (loader {loader})")
        return error

    def judge(self) -> Judged:
        """End the log, and return what it means; or the steps that the program reported, if no samples were counted."""
        if self.judged is not None:
            return self.judged
        self.recorder.end()
        judged = self.recorder.judged()
        if not any(judged.table.samples):
            reported = self.not_measured.attempt("steps", lambda: progress.read_metrics(self._reported))
            if reported is not None and reported.count:
                judged, self.source = judged._replace(table=reported), "metrics"
            elif not judged.table.count:
                self.source = "none"
        self.judged = judged
        return judged

    def testimony(self) -> dict[str, Any] | None:
        """Return what a run that follows its batches has seen; None of another one."""
        witness = None if self.observer is None else self.observer.witness
        return None if witness is None else witness.testimony()

    def _read_marks(self) -> None:
        marks = self.recorder.marks
        if marks is None:
            return
        # After a failure the device may wait for a rank that is gone; waiting for the device would hang.
        left = marks.finish(self.program_end.exit_code == 0)
        if left:
            self.not_measured.append(f"step_time_s: the device had not passed the last {left} marks of the steps")
        if marks.unreadable:
            self.not_measured.append(f"step_time_s: {marks.unreadable} marks of the device could not be read")

    def _device_answers(self) -> bool:
        """Return True if results can be read from the device: after a failure, only if it has nothing left to do.

        Exit code 75 says that the state is saved: nothing has failed, but only this rank may have ended.
        """
        end = self.program_end
        is_good = end.after_training or end.exit_code == os.EX_TEMPFAIL
        if end.exit_code == 0 or self._gpu is None:
            return end.exit_code == 0 or is_good
        from ddp_ladder_instrument.accelerator import is_idle

        return is_good and is_idle(self._gpu)


def _find_store() -> GroupStore | None:
    from ddp_ladder_instrument.torch_facts import find_store

    return find_store()


def _leave_process_group(device: torch.device | None) -> BaseException | None:
    """Destroy the process group, as the script would at its end."""
    from ddp_ladder_instrument import accelerator
    from ddp_ladder_instrument.torch_facts import has_group

    if not has_group():
        return None
    import torch.distributed

    try:
        # The host is ahead of the device. Until torch 2.6 leaving aborts NCCL's collectives that are under way, and the
        # last gradients are wrong (pytorch PR 141510); all ranks end at the same step, so none waits in vain.
        if device is not None:
            accelerator.synchronize(device)
            # NCCL holds what captured graphs use: leaving would wait for that for ever, or raise.
            if any(issubclass(type(each), accelerator.graphs()) for each in gc.get_objects()):
                return None
        torch.distributed.destroy_process_group()
    except Exception as error:
        return error
    return None


def write_or_note(measurement: Measurement) -> dict[str, Any] | None:
    """Write the rank's steps and end record; return the record.

    If that fails, the error is printed, and noted for the verdict; the training ends as it would have.
    """
    try:
        return _write(measurement)
    except Exception as error:  # a full disk or a bug of ours must not fail the training
        print(f"instrument.py: cannot write the record of this rank: {error}", file=sys.stderr)
        if not isinstance(error, OSError):
            traceback.print_exception(type(error), error, error.__traceback__)
        note = {"host": socket.gethostname(), "error": one_line(error)}
        path = measurement.run.directory / "ranks" / f"rank{_place(measurement)['rank']}.unwritten"
        # If this fails too, the job will probably fail to write as well, and report it.
        with contextlib.suppress(OSError):
            write_atomically(path, [json.dumps(note) + "\n"])
        return None


def _write(measurement: Measurement) -> dict[str, Any]:
    """Write ranks/rank<k>.steps and .log, then ranks/rank<k>.json, and return the latter. Raises OSError."""
    record = end_record(measurement)
    ranks = measurement.run.directory / "ranks"
    name = f"rank{record['rank']}"
    columns = measurement.judge().table.columns()
    record["steps"]["sha256"] = write_atomically(ranks / f"{name}.steps", map(little_endian, columns))
    if measurement.run.is_own:  # of the ladder's runs, the workflow writes what people open
        write_atomically(ranks / f"{name}.csv", csv_lines(columns))
    record["log"]["sha256"] = write_atomically(ranks / f"{name}.log", [measurement.recorder.log.to_bytes()])
    testimony = measurement.testimony()
    if testimony is not None:
        write_atomically(ranks / WITNESS.format(record["rank"]), [json.dumps(testimony, indent=2) + "\n"])
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    # A message may quote a file name that is not valid Unicode.
    write_atomically(ranks / f"rank{record['rank']}.json", [text.encode("utf-8", "replace")])
    if measurement.run.is_link:
        (ranks / FIRST_STATE.format(record["rank"])).unlink(missing_ok=True)
    facts = {key: record[key] for key in ("schema_version", "spec_hash", "job", "rank")}
    measurement.profiled.write(ranks, facts, measurement.program_end.exit_code == 0)
    return record


def end_record(measurement: Measurement) -> dict[str, Any]:
    """Return the rank's end record, without the digests of its steps and its log."""
    end, place, judged = measurement.program_end, _place(measurement), measurement.judge()
    observed, precision = _observed(measurement)
    modes = sorted(measurement.observer.slow_modes) if measurement.observer is not None else ()
    device, facts = observed["device"], _log_facts(measurement, place["world_size"])
    fields = judged_fields(judged, facts)
    if fields["ddp"] is not None and not fields["ddp"]["samples"]:
        measurement.not_measured.append("ddp: DDP timed no step")
    return {
        "schema_version": SCHEMA_VERSION,
        "spec_hash": measurement.run.spec_hash,
        "job": measurement.run.job,
        **place,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "ended_at_s": time.time(),
        "exit_code": end.exit_code,
        "ended_by": end.ended_by,
        "exception": end.exception,
        "handled": end.handled,
        "own_rendezvous": measurement.heartbeat.own_rendezvous,
        "after_training": end.after_training,
        **observed,
        **fields,
        "startup_s": {**_startup(measurement), **fields["startup_s"]},
        "fingerprint": {
            **fields["fingerprint"],
            "script_sha256": measurement.not_measured.read("script_sha256", measurement.program.sha256),
            "args": redacted_words(measurement.program.args),
            "sources": measurement.not_measured.read("sources", host.source_files),
            "configuration": measurement.configuration,
            **precision,
            "slow_settings": [*slow_settings.variables(os.environ), *modes],
            "num_workers": fields["loader"]["num_workers"] if fields["loader"] else None,
            "python": platform.python_version(),
            "gpu": device["name"] if device["kind"] != "cpu" else None,
            "cpu_model": host.cpu_model(),
            "cpus": host.cpus(),
            "cpu_set": host.cpu_set(),
            "libraries": measurement.not_measured.read("libraries", host.libraries),
            "unread": measurement.not_measured.unread,
        },
        "log": {**facts, "sha256": None},
        "steps": {"count": judged.table.count, "sha256": None},
        "not_measured": [*measurement.not_measured, *FAILED_HOOKS],
    }


def _log_facts(measurement: Measurement, world_size: int) -> dict[str, Any]:
    """Return what is needed beside the log to judge it."""
    run, observer, launched_at_s = measurement.run, measurement.observer, measurement.run.launched_at_s
    return {
        "world_size": world_size,
        "warmup_steps": run.warmup_steps,
        "samples_per_step": run.samples_per_step,
        "source": measurement.source,
        "began_at_s": measurement.started_at_s if launched_at_s is None else launched_at_s,
        "training_ended_at_s": measurement.training_ended_at_s,
        "is_cut": measurement.recorder.log.is_cut,
        "loaders": [] if observer is None else observer.loaders.facts,
        "digests": {} if observer is None else {str(key): found for key, found in observer.loaders.digests.items()},
        "collectives": [*measurement.recorder.collectives],
        "places": [[*place] for place in measurement.recorder.places],
        "beside": sorted(measurement.recorder.beside),
        "ddp": None if observer is None else observer.ddp.facts(),
    }


def _place(measurement: Measurement) -> dict[str, Any]:
    """Return the rank's place; that of the launcher if torch was never imported."""
    world = measurement.observer.world if measurement.observer is not None else host.place()
    node_rank = os.environ.get("GROUP_RANK")  # from the launcher: torch.distributed does not know nodes
    return {
        "node_rank": int(node_rank) if node_rank else None,
        "rank": world.rank,
        "local_rank": world.local_rank,
        "world_size": world.size,
    }


def _observed(measurement: Measurement) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was observed of torch: a part of the record, and one of its fingerprint."""
    memory = measurement.profiled.peak_memory_bytes or host.peak_memory_bytes()
    memory_mb = measurement.run.memory_mb
    limit = measurement.not_measured.attempt("memory_limit_bytes.host", lambda: host.memory_limit_bytes(memory_mb))
    if measurement.observer is not None:
        record, fingerprint = measurement.observer.facts(measurement.device_answers)
        record["peak_memory_bytes"] = {"host": memory, "device": record["peak_memory_bytes"]}
        record["memory_limit_bytes"] = {"host": limit, "device": record["memory_limit_bytes"]}
        return record, fingerprint
    return {
        **dict.fromkeys(("backend", "parameters")),
        "device": host.cpu(),
        "peak_memory_bytes": {"host": memory, "device": None},
        "memory_limit_bytes": {"host": limit, "device": None},
    }, {}


def _startup(measurement: Measurement) -> dict[str, float | None]:
    """Return the start-up times in seconds that are not judged; they exclude what the script did in between."""
    observer, launched_at_s = measurement.observer, measurement.run.launched_at_s
    compile_s = measurement.not_measured.attempt("startup_s.compile", host.compile_s)
    first_s = None if observer is None else observer.first_compile_s
    return {
        "spawn": measurement.started_at_s - launched_at_s if launched_at_s is not None else None,
        "import_torch": measurement.import_torch_s,
        "process_group": observer.process_group_s if observer is not None else None,
        "compile": compile_s,
        "compile_later": None if compile_s is None or first_s is None else max(0.0, compile_s - first_s),
    }
