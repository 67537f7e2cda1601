"""The rank's CSV and its end record, both written once, at the end."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import statistics
import sys
import time
import traceback
from typing import Any

from ddp_ladder_instrument import host
from ddp_ladder_instrument.files import one_line, write_atomically
from ddp_ladder_instrument.measurement import Measurement

SCHEMA_VERSION = 1


def write_or_note(measurement: Measurement) -> None:
    """Write the rank's CSV and end record, unless a rank that this process started has written them.

    If that fails, the error is printed, and noted for the verdict; the training ends as it would have.
    """
    try:
        if not (measurement.own_processes and not measurement.clock.table.count and is_written(measurement)):
            write(measurement)
    except Exception as error:  # a full disk or a bug of ours must not fail the training
        note_unwritten(measurement, error)


def write(measurement: Measurement) -> None:
    """Write ranks/rank<k>.csv, then ranks/rank<k>.json. Raises OSError."""
    record, clock = end_record(measurement), measurement.clock
    ranks = measurement.run.directory / "ranks"
    csv = ranks / record["steps"]["file"]
    record["steps"]["sha256"] = write_atomically(csv, clock.table.csv(not clock.threads.wait_unknown))
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    # A message may quote a file name that is not valid Unicode.
    text = text.encode("utf-8", "replace").decode("utf-8")
    write_atomically(ranks / f"rank{record['rank']}.json", [text])
    facts = {key: record[key] for key in ("schema_version", "spec_hash", "job", "rank")}
    measurement.profiled.write(ranks, facts, measurement.program_end.exit_code == 0)


def note_unwritten(measurement: Measurement, error: Exception) -> None:
    """Print why this rank has no record, and write ranks/rank<k>.unwritten if a small file still fits."""
    print(f"instrument.py: cannot write the record of this rank: {error}", file=sys.stderr)
    if not isinstance(error, OSError):
        traceback.print_exception(type(error), error, error.__traceback__)
    rank = _rank_facts(measurement, "cpu")["rank"]
    note = {"host": socket.gethostname(), "error": one_line(error)}
    # If this fails too, the job will probably fail to write as well, and report it.
    with contextlib.suppress(OSError):
        write_atomically(measurement.run.directory / "ranks" / f"rank{rank}.unwritten", [json.dumps(note) + "\n"])


def is_written(measurement: Measurement) -> bool:
    """Return True if this rank has its end record already."""
    rank = _rank_facts(measurement, "cpu")["rank"]
    return (measurement.run.directory / "ranks" / f"rank{rank}.json").exists()


def end_record(measurement: Measurement) -> dict[str, Any]:
    """Return the rank's end record, without the digest of the CSV."""
    device, observer = _device(measurement), measurement.observer
    record = {
        "schema_version": SCHEMA_VERSION,
        "spec_hash": measurement.run.spec_hash,
        "job": measurement.run.job,
        **_rank_facts(measurement, device["kind"]),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": device,
        "gpus_seen": _gpus_seen(measurement, device["kind"]),
        "script_file": measurement.program.file(),
        "source": _source(measurement),
        "own_processes": measurement.own_processes,
        "ended_at_s": time.time(),
        "exit_code": measurement.program_end.exit_code,
        "ended_by": measurement.program_end.ended_by,
        "exception": measurement.program_end.exception,
        "after_training": measurement.program_end.after_training,
        "startup_s": _startup(measurement),
        "training_s": measurement.training_s,
        "phases": _phases(measurement),
        "peak_memory_bytes": _peak_memory(measurement),
        "parameters": _parameters(measurement),
        "ddp": observer.ddp.summary() if observer is not None else None,
        "loader": observer.loader.facts if observer is not None else None,
        "worker_batch_s": observer.workers.batch_s() if observer is not None else None,
        "feeders": host.feeders(),
        "first_samples": observer.loader.first_samples if observer is not None else [],
        "loss": _loss(measurement),
        "fingerprint": _fingerprint(measurement, device),
    }
    record["steps"] = {
        "file": f"rank{record['rank']}.csv",
        "count": measurement.clock.table.count,
        "sha256": None,
    }
    record["not_measured"] = measurement.not_measured
    return record


def _source(measurement: Measurement) -> str:
    loader = measurement.observer.loader.facts if measurement.observer is not None else None
    return "guessed" if measurement.source == "counted" and loader and loader["unclear_sizes"] else measurement.source


def _device(measurement: Measurement) -> dict[str, Any]:
    if measurement.observer is None:
        return {
            "kind": "cpu",
            "index": None,
            "name": host.cpu_model(),
            "id": f"cpu:{os.getpid()}",
        }
    from ddp_ladder_instrument.torch_facts import describe

    return describe(measurement.observer.device)


def _gpus_seen(measurement: Measurement, device_kind: str) -> dict[str, Any] | None:
    """Return which GPUs torch sees, if the run should have used CUDA and did not; else None."""
    if measurement.observer is None or measurement.run.device != "cuda" or device_kind == "cuda":
        return None

    from ddp_ladder_instrument import torch_facts

    seen: dict[str, Any] | None = measurement.not_measured.attempt("gpus_seen", torch_facts.gpus_seen)
    return seen


def _rank_facts(measurement: Measurement, device_kind: str) -> dict[str, Any]:
    world = measurement.observer.world if measurement.observer is not None else None
    node_rank = os.environ.get("GROUP_RANK")  # from the launcher: torch.distributed does not know nodes
    place = {"node_rank": int(node_rank) if node_rank else None}
    if world is None:  # torch was never imported
        return {
            **place,
            "rank": int(os.environ.get("RANK") or 0),
            "local_rank": int(os.environ.get("LOCAL_RANK") or 0),
            "world_size": int(os.environ.get("WORLD_SIZE") or 1),
            "backend": None,
        }
    return {
        **place,
        "rank": world.rank,
        "local_rank": world.local_rank,
        "world_size": world.size,
        "backend": world.backend(device_kind),
    }


def _startup(measurement: Measurement) -> dict[str, float | None]:
    """Return the start-up times in seconds; the parts exclude what the script itself did in between."""
    table, observer = measurement.clock.table, measurement.observer
    launched_at_s = measurement.run.launched_at_s
    ended_at_s = table.first_step_ended_at_s
    begin_s = launched_at_s if launched_at_s is not None else measurement.started_at_s
    return {
        "spawn": measurement.started_at_s - launched_at_s if launched_at_s is not None else None,
        "import_torch": measurement.import_torch_s,
        "process_group": observer.process_group_s if observer is not None else None,
        "first_step": table.step_time_s[0] if table.count else None,
        "compile": measurement.not_measured.attempt("startup_s.compile", host.compile_s),
        "total": ended_at_s - begin_s if ended_at_s is not None else None,
    }


def _phases(measurement: Measurement) -> dict[str, Any]:
    phases = measurement.clock.phases
    if phases.left_out:
        measurement.not_measured.append(f"phases: the last {phases.left_out} of many validations")
    return phases.summary()


def _peak_memory(measurement: Measurement) -> dict[str, int | None]:
    device = measurement.observer.device if measurement.observer is not None else None
    on_device = None
    if device is not None and device.type == "cuda":
        import torch

        on_device = measurement.not_measured.attempt(
            "peak_memory_bytes.device", lambda: torch.cuda.max_memory_allocated(device)
        )
    return {"host": measurement.profiled.peak_memory_bytes or host.peak_memory_bytes(), "device": on_device}


def _parameters(measurement: Measurement) -> dict[str, Any] | None:
    named = measurement.parameters
    if not named:
        return None
    if named[0][1].is_cuda and not measurement.device_answers:
        measurement.not_measured.append("parameters: not read after a failure, which could wait for an ended rank")
        return None

    from ddp_ladder_instrument import torch_facts

    world_size = measurement.observer.world.size if measurement.observer is not None else 1
    summary: dict[str, Any] | None = measurement.not_measured.attempt(
        "parameters", lambda: torch_facts.summary(named, world_size)
    )
    return summary


def _fingerprint(measurement: Measurement, device: dict[str, Any]) -> dict[str, Any]:
    observer = measurement.observer
    loader = observer.loader.facts if observer is not None else None
    return {
        "script_sha256": measurement.not_measured.attempt("script_sha256", measurement.program.sha256),
        "args": list(measurement.program.args),
        "batch_per_gpu": _batch_per_gpu(measurement),
        "sources": measurement.not_measured.attempt("sources", host.source_files) or {},
        "configuration": measurement.configuration,
        **_precision(measurement),
        "optimizer": _joined(observer.optimizers) if observer is not None else None,
        "num_workers": loader["num_workers"] if loader else None,
        **_versions(measurement, device["kind"] == "cuda"),
        "python": platform.python_version(),
        "gpu": device["name"] if device["kind"] == "cuda" else None,
        "cpu_model": host.cpu_model(),
        "cpus": host.cpus(),
        "cpu_set": host.cpu_set(),
        "libraries": host.libraries(),
    }


def _joined(names: set[str]) -> str | None:
    return " + ".join(sorted(names)) or None


def _batch_per_gpu(measurement: Measurement) -> int | None:
    """Return the median of the steps' samples, the sampler's padding included."""
    table = measurement.clock.table
    batches = [table.samples[row] + table.padding_samples[row] for row in range(table.count)]
    return (int(statistics.median_low(batches)) or None) if batches else None


def _precision(measurement: Measurement) -> dict[str, Any]:
    """Return the dtypes of parameters, autocast and matrix products, and what torch may use instead of float32."""
    observer = measurement.observer
    if observer is None:
        return dict.fromkeys(("parameter_dtype", "parameter_dtypes", "autocast_dtype", "product_dtypes"))

    from ddp_ladder_instrument import torch_facts

    named = measurement.parameters
    on_cuda = observer.device is not None and observer.device.type == "cuda"
    return {
        "parameter_dtype": torch_facts.main_dtype(named) if named else None,
        "parameter_dtypes": torch_facts.dtypes(named),
        "autocast_dtype": _joined(observer.autocast_dtypes),
        "product_dtypes": sorted(observer.backwards.product_dtypes),
        "float32_products": measurement.not_measured.attempt(
            "float32_products", lambda: torch_facts.float32_products(on_cuda)
        ),
        "compiled_graphs": measurement.not_measured.attempt("compiled_graphs", torch_facts.compiled_graphs),
        "cudnn": measurement.not_measured.attempt("cudnn", lambda: torch_facts.cudnn(on_cuda)),
    }


def _loss(measurement: Measurement) -> dict[str, Any] | None:
    observer = measurement.observer
    if observer is None:
        return None
    on_device = observer.device is not None and observer.device.type != "cpu"
    if on_device and not measurement.device_answers:
        return None
    loss: dict[str, Any] | None = measurement.not_measured.attempt("loss", observer.backwards.losses)
    return loss


def _versions(measurement: Measurement, cuda: bool) -> dict[str, Any]:
    """Return the versions of torch, CUDA and NCCL, and the number of torch's threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {"torch": None, "cuda": None, "nccl": None, "threads": None}
    nccl = measurement.not_measured.attempt("nccl", torch.cuda.nccl.version) if cuda else None
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if cuda else None,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "threads": torch.get_num_threads(),
    }
