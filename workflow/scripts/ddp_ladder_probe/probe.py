"""One rank of the preflight, from start to end."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddp_ladder_instrument.program import die_with_parent
from ddp_ladder_instrument.redaction import redacted

from ddp_ladder_probe.rank_file import Place, RankFile

LONGEST_ERROR = 4000  # characters
LATE = "not over after"
OTHERS_S = 5.0  # between the starts of two ranks, at most
MEASURE_S, PAIRS_S = 6.0, 6.0  # at most, and at most a quarter of the time limit each
SHARE_TO_MEASURE = 0.25


def main(environment: Mapping[str, str]) -> None:
    """Run this rank; raise what it raises."""
    die_with_parent()
    run_file = Path(environment["DDP_LADDER_RUN"])
    run = json.loads(run_file.read_text(encoding="utf-8"))
    limit = json.loads((run_file.parent / "settings.json").read_text(encoding="utf-8"))
    place = Place.of(environment)
    file = RankFile(run_file.parent, run, place)
    file.note(cpus=_cpus())
    file.now("importing torch")
    watch = threading.Timer(limit["timeout_s"], _end_late, (file, limit["timeout_s"]))
    watch.daemon = True
    watch.start()
    try:
        _probe(run["spec"], limit, place, file, run_file.parent)
    except BaseException as error:
        file.failed(redacted(f"{type(error).__name__}: {error}"[:LONGEST_ERROR], environment))
        raise
    file.now("done")
    watch.cancel()


def _end_late(file: RankFile, timeout_s: float) -> None:
    """End this rank, whatever it waits for; the others have the time to write the same: one that does not is silent."""
    file.failed(f"{LATE} {timeout_s:g} s")
    time.sleep(OTHERS_S)
    os._exit(1)


def _probe(spec: Mapping[str, Any], limit: Mapping[str, Any], place: Place, file: RankFile, directory: Path) -> None:
    logs = directory / "nccl"
    logs.mkdir(exist_ok=True)
    # NCCL reads these when the first communicator is made.
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(logs / "%h.%p.log"))
    os.environ.pop("NCCL_DEBUG_SUBSYS", None)
    import torch.distributed as dist

    from ddp_ladder_probe import device as devices

    file.now("preparing its device")
    device = devices.device_of(spec["device"], place.local_rank)
    file.note(device=devices.describe(device), versions=devices.versions(spec["device"]))
    file.note(multiplies=devices.multiplies(device))
    if place.world_size == 1:
        return
    file.now("joining the process group")
    # Longer than this rank's limit: a rank that reports the time-out of a collective may only have waited for another.
    timeout = timedelta(seconds=2 * limit["timeout_s"])
    dist.init_process_group(spec["backend"], timeout=timeout)
    file.now("comparing the ranks' jobs")
    _measure(spec, limit, file, device, timeout)
    file.now("leaving the process group")
    dist.destroy_process_group()


def _measure(
    spec: Mapping[str, Any], limit: Mapping[str, Any], file: RankFile, device: Any, timeout: timedelta
) -> None:
    import torch.distributed as dist

    from ddp_ladder_probe import collectives, identity

    own = identity.card(file.content)
    cards: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(cards, own)
    seen = identity.compare(own, cards)
    file.note(seen=seen)
    if seen["foreign"]:
        raise RuntimeError(f"ranks of another job are in this process group: {'; '.join(seen['foreign'])}")
    share_s = SHARE_TO_MEASURE * limit["timeout_s"]
    group = collectives.Group(device, time.monotonic() + min(MEASURE_S, share_s))
    largest = group.told(min(collectives.LARGEST, limit["largest_bytes"], _free_bytes() // (8 * spec["gpus_per_node"])))
    for entry in collectives.sizes(group, largest):
        file.add("sizes", entry)
        file.now(f"all-reducing more than {entry['bytes']} bytes")
    if spec["nodes"] < 3:
        return
    file.now("all-reducing over pairs of nodes")
    group = collectives.Group(device, time.monotonic() + min(PAIRS_S, share_s))
    size = collectives.pair_size(file.content["sizes"])
    for entry in collectives.pairs(group, spec["nodes"], size, timeout):
        file.add("pairs", entry)


def _free_bytes() -> int:
    """Return the host's available memory."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 1 << 33


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
