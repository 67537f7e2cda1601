"""What the first day on a GPU must show: each thing is seen, not seen, not run or not possible here, by the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Thing(NamedTuple):
    """A line of the checklist. parts: those that show it. beyond: what one GPU without Slurm cannot show of it."""

    text: str
    parts: tuple[str, ...]
    beyond: str = ""


THINGS = (
    Thing("NVML's GPUs are torch's: count, UUIDs, order", ("gpu_tests",), "inside `srun --gres=gpu:1`, without Slurm"),
    Thing("the tests marked gpu pass: FLOPs as counted by hand, matrix rates below the data sheet's", ("gpu_tests",)),
    Thing(
        "two ranks, max_steps 200 with the host ahead, 20 times: exit code 0, equal and finite parameters",
        ("two_ranks",),
        "with each of torch 2.4, 2.11 and 2.15: one environment has one torch",
    ),
    Thing("the same with the older backend of NCCL: texts, flight record, start-up", ("two_ranks", "gpu_tests")),
    Thing("a rank that is killed, raises, leaves out a collective or sets no device is named", ("gpu_tests",)),
    Thing("the instrument costs below 5 % of a step of 0.5 ms, and below 0.5 % of one of 100 ms", ("overhead",)),
    Thing("the sum of step times is that of one pair of events, within 1 %", ("loops",)),
    Thing("exposed communication of one rank is about 0", ("ladder",)),
    Thing(
        "CUDA graphs, reduce-overhead, side stream, capturable AdamW, scaler with inf, no_sync, FSDP2: loss as without",
        ("loops",),
    ),
    Thing("pinned loaders with processes by fork and forkserver: loss as without", ("loops",)),
    Thing("no extra process in nvidia-smi", ("loops",)),
    Thing("the energy counter is the integral of the power, within 5 %", ("monitor",)),
    Thing("bus bandwidth is that of nccl-tests at 256 MiB, within 5 %; GDRDMA", (), "one GPU, no RDMA"),
    Thing("Slingshot: 2 to 64 MiB with LL128", (), "no Slingshot"),
    Thing("cores of each rank (taskset -p) against nvidia-smi topo -m", (), "one GPU, no Slurm"),
    Thing("two job steps, one after the other", (), "no Slurm"),
)


def checklist(parts: Sequence[Mapping[str, Any]], on_gpu: bool) -> Iterator[dict[str, Any]]:
    """Yield number, text, status and why of each thing, from the parts of gpu_day.json."""
    for number, thing in enumerate(THINGS, 1):
        status, why = _status(number, thing, {part["name"]: part for part in parts})
        if not on_gpu and thing.parts:
            status, why = "not possible here", "no GPU"
        yield {"number": number, "text": thing.text, "status": status, "why": why}


def _status(number: int, thing: Thing, parts: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    checks = [check for part in parts.values() for check in part["checks"] if check["shows"] == number]
    missed = [f"{check['what']}: {check['value']:.4g}" for check in checks if check["met"] is False]
    ended = {name: parts[name]["status"] if name in parts else "not asked for" for name in thing.parts}
    not_done = [f"{name} {status}" for name, status in ended.items() if status != "done"]
    impossible = [part["impossible"][str(number)] for part in parts.values() if str(number) in part["impossible"]]
    beyond = [*impossible, *filter(None, [thing.beyond])]
    if missed or "failed" in ended.values():
        return "NOT SEEN", "; ".join([*missed, *not_done])
    if not_done:
        return "not run", ", ".join(not_done)
    if checks:
        return "seen", "; ".join(f"not possible here: {text}" for text in beyond)
    return ("not possible here", "; ".join(beyond)) if beyond else ("NOT SEEN", "no figure of it")
