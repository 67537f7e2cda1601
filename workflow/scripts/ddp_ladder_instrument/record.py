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
    """Write the rank's CSV and end record.

    If that fails, the error is printed, and noted for the verdict; the training ends as it would have.
    """
    try:
        _write(measurement)
    except Exception as error:  # a full disk or a bug of ours must not fail the training
        print(f"instrument.py: cannot write the record of this rank: {error}", file=sys.stderr)
        if not isinstance(error, OSError):
            traceback.print_exception(type(error), error, error.__traceback__)
        note = {"host": socket.gethostname(), "error": one_line(error)}
        path = measurement.run.directory / "ranks" / f"rank{_place(measurement)['rank']}.unwritten"
        # If this fails too, the job will probably fail to write as well, and report it.
        with contextlib.suppress(OSError):
            write_atomically(path, [json.dumps(note) + "\n"])


def _write(measurement: Measurement) -> None:
    """Write ranks/rank<k>.csv, then ranks/rank<k>.json. Raises OSError."""
    record = end_record(measurement)
    ranks = measurement.run.directory / "ranks"
    record["steps"]["sha256"] = write_atomically(ranks / record["steps"]["file"], measurement.clock.table.csv())
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    # A message may quote a file name that is not valid Unicode.
    write_atomically(ranks / f"rank{record['rank']}.json", [text.encode("utf-8", "replace")])
    facts = {key: record[key] for key in ("schema_version", "spec_hash", "job", "rank")}
    measurement.profiled.write(ranks, facts, measurement.program_end.exit_code == 0)


def end_record(measurement: Measurement) -> dict[str, Any]:
    """Return the rank's end record, without the digest of the CSV."""
    end, place, table = measurement.program_end, _place(measurement), measurement.clock.table
    observed, precision = _observed(measurement)
    loader, device = observed["loader"], observed["device"]
    is_guessed = measurement.source == "counted" and loader is not None and loader["unclear_sizes"]
    return {
        "schema_version": SCHEMA_VERSION,
        "spec_hash": measurement.run.spec_hash,
        "job": measurement.run.job,
        **place,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "script_file": measurement.program.file(),
        "source": "guessed" if is_guessed else measurement.source,
        "own_processes": measurement.own_processes,
        "ended_at_s": time.time(),
        "exit_code": end.exit_code,
        "ended_by": end.ended_by,
        "exception": end.exception,
        "after_training": end.after_training,
        "startup_s": _startup(measurement),
        "training_s": measurement.training_s,
        "phases": measurement.clock.phases.summary(),
        "feeders": host.feeders(),
        **observed,
        "fingerprint": {
            "script_sha256": measurement.not_measured.attempt("script_sha256", measurement.program.sha256),
            "args": list(measurement.program.args),
            "batch_per_gpu": _batch_per_gpu(measurement),
            "sources": measurement.not_measured.attempt("sources", host.source_files) or {},
            "configuration": measurement.configuration,
            **precision,
            "num_workers": loader["num_workers"] if loader else None,
            "python": platform.python_version(),
            "gpu": device["name"] if device["kind"] == "cuda" else None,
            "cpu_model": host.cpu_model(),
            "cpus": host.cpus(),
            "cpu_set": host.cpu_set(),
            "libraries": host.libraries(),
        },
        "steps": {"file": f"rank{place['rank']}.csv", "count": table.count, "sha256": None},
        "not_measured": measurement.not_measured,
    }


def _place(measurement: Measurement) -> dict[str, Any]:
    """Return the rank's place; that of the launcher if torch was never imported."""
    world = measurement.observer.world if measurement.observer is not None else None
    node_rank = os.environ.get("GROUP_RANK")  # from the launcher: torch.distributed does not know nodes
    return {
        "node_rank": int(node_rank) if node_rank else None,
        "rank": world.rank if world else int(os.environ.get("RANK") or 0),
        "local_rank": world.local_rank if world else int(os.environ.get("LOCAL_RANK") or 0),
        "world_size": world.size if world else int(os.environ.get("WORLD_SIZE") or 1),
    }


def _observed(measurement: Measurement) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was observed of torch: a part of the record, and one of its fingerprint."""
    memory = measurement.profiled.peak_memory_bytes or host.peak_memory_bytes()
    if measurement.observer is not None:
        record, fingerprint = measurement.observer.facts(measurement.device_answers)
        record["peak_memory_bytes"] = {"host": memory, "device": record["peak_memory_bytes"]}
        return record, fingerprint
    fields = ("backend", "gpus_seen", "parameters", "ddp", "loader", "worker_batch_s", "loss")
    return {
        **dict.fromkeys(fields),
        "device": {"kind": "cpu", "index": None, "name": host.cpu_model(), "id": f"cpu:{os.getpid()}"},
        "peak_memory_bytes": {"host": memory, "device": None},
        "first_samples": [],
    }, dict.fromkeys(
        (
            "parameter_dtype", "autocast_dtype", "optimizer", "torch", "cuda", "nccl", "threads",
        )
    )  # fmt: skip


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


def _batch_per_gpu(measurement: Measurement) -> int | None:
    """Return the median of the steps' samples, the sampler's padding included."""
    table = measurement.clock.table
    batches = [table.samples[row] + table.padding_samples[row] for row in range(table.count)]
    return (int(statistics.median_low(batches)) or None) if batches else None
