"""One rank of the preflight, from start to end."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddp_ladder_instrument.contract import LATE, OVER_PAIRS, RUN_VARIABLE
from ddp_ladder_instrument.files import NotMeasured, read_bytes, write_atomically
from ddp_ladder_instrument.program import die_with_parent
from ddp_ladder_instrument.redaction import without_values

LONGEST_ERROR = 4000  # characters
OTHERS_S = 5.0  # between the starts of two ranks, at most
MEASURE_S = 6.0  # for the all-reduces over all ranks, at most
SHARE_TO_MEASURE = 0.25  # of the time limit, for these and for the pairs of nodes each, at most


def main(environment: Mapping[str, str]) -> None:
    """Run this rank; raise what it raises."""
    die_with_parent()
    run_file = Path(environment[RUN_VARIABLE])
    run = json.loads(read_bytes(run_file))
    limit = run["preflight"]
    file = RankFile(run_file.parent, run, environment)
    file.now("importing torch")
    watch = threading.Timer(limit["timeout_s"], _end_late, (file, limit["timeout_s"]))
    watch.daemon = True
    watch.start()
    try:
        _probe(run["spec"], limit, file, run_file.parent)
    except BaseException as error:
        file.failed(without_values(f"{type(error).__name__}: {error}"[:LONGEST_ERROR], environment))
        raise
    file.now("done")
    watch.cancel()


def _end_late(file: RankFile, timeout_s: float) -> None:
    """End this rank, whatever it waits for; the others have the time to write the same: one that does not is silent."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is not None:
        file.note(frame=f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})")
    file.failed(f"{LATE} {timeout_s:g} s")
    time.sleep(OTHERS_S)
    os._exit(1)


def _probe(spec: Mapping[str, Any], limit: Mapping[str, Any], file: RankFile, directory: Path) -> None:
    logs = directory / "nccl"
    logs.mkdir(exist_ok=True)
    # NCCL reads these when the first communicator is made.
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(logs / "%h.%p.log"))
    os.environ.pop("NCCL_DEBUG_SUBSYS", None)
    import torch.distributed as dist
    from ddp_ladder_instrument import accelerator

    file.now("preparing its device")
    device = accelerator.take(spec["device"], file.content["local_rank"])
    versions = accelerator.versions(accelerator.is_gpu(device), NotMeasured().attempt)
    file.note(
        device=accelerator.describe(device), versions={name: versions[name] for name in ("torch", "cuda", "nccl")}
    )
    if file.content["world_size"] == 1:
        _rate(file, device)
        return
    file.now("joining the process group")
    # Longer than this rank's limit: a rank that reports the time-out of a collective may only have waited for another.
    timeout = timedelta(seconds=2 * limit["timeout_s"])
    dist.init_process_group(spec["backend"], timeout=timeout)
    file.now("all-reducing")
    _measure(spec, limit, file, device, timeout)
    _rate(file, device)  # now, as the ranks come from a collective together: processes may share a CPU
    file.now("leaving the process group")
    dist.destroy_process_group()


def _measure(
    spec: Mapping[str, Any], limit: Mapping[str, Any], file: RankFile, device: Any, timeout: timedelta
) -> None:
    from ddp_ladder_probe import collectives

    share_s = SHARE_TO_MEASURE * limit["timeout_s"]
    group = collectives.Group(device, time.monotonic() + min(MEASURE_S, share_s))
    largest = group.told(min(limit["largest_bytes"], _free_bytes() // (8 * spec["gpus_per_node"])))
    for entry in collectives.sizes(group, largest):
        file.add("sizes", entry)
        file.now(f"all-reducing more than {entry['bytes']} bytes")
    if spec["nodes"] < 3:
        return
    file.now(OVER_PAIRS)
    group = collectives.Group(device, time.monotonic() + share_s)
    pairs = collectives.Pairs(group, spec["nodes"], collectives.pair_size(file.content["sizes"]), timeout)
    for in_round in itertools.chain(pairs.in_rounds(), pairs.checked()):
        if in_round:
            file.add("pairs", in_round)
        file.now(OVER_PAIRS)  # the pair that hangs has the fewest steps
    for alone in pairs.alone():
        file.add("pairs", alone)


def _rate(file: RankFile, device: Any) -> None:
    """Measure this rank's products of matrices; what fails there is no fault of the node."""
    from ddp_ladder_probe import matrix_rate

    file.now("multiplying matrices")
    file.note(matrix_tflop_per_s=NotMeasured().attempt("matrix rate", lambda: dict(matrix_rate.rates(device))) or {})


def _free_bytes() -> int:
    """Return the host's available memory."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 1 << 33


class RankFile:
    """What this rank has found so far: ranks/rank<k>.json, written again after every step of the probe."""

    def __init__(self, directory: Path, run: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        # Without its launcher's variables this is the only rank.
        rank, local_rank, node_rank = (int(environment.get(name, 0)) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"))
        self._lock = threading.Lock()
        self._path = directory / "ranks" / f"rank{rank}.json"
        self.content: dict[str, Any] = {
            "schema_version": 1,
            "spec_hash": run["spec_hash"],
            "job": run["job"],
            "rank": rank,
            "local_rank": local_rank,
            "node_rank": node_rank,
            "world_size": int(environment.get("WORLD_SIZE", 1)),
            "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "step": 0,
            "error": None,
            "sizes": [],
            "pairs": [],
        }

    def now(self, doing: str) -> None:
        """Write the file; ``doing`` is what this rank does next, in words. A rank that hangs has the fewest steps."""
        with self._lock:
            self.content["doing"] = doing
            self.content["step"] += 1
            self._write()

    def failed(self, why: str) -> None:
        """Write why this rank ends here; the first reason stays."""
        with self._lock:
            self.content["error"] = self.content["error"] or why
            self._write()

    def _write(self) -> None:
        self.content["at_s"] = time.time()
        write_atomically(self._path, [json.dumps(self.content)], durable=False)

    def note(self, **values: Any) -> None:
        self.content.update(values)

    def add(self, key: str, entry: Mapping[str, Any]) -> None:
        self.content[key].append(dict(entry))
