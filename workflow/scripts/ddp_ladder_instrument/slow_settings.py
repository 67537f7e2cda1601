"""Settings that slow down every step: most are for debugging and stay on when it is over. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

OFF = ("", "0", "false", "no", "off", "n")

REMOVE = "remove it and measure again, unless production trains with it, too"


class Slow(NamedTuple):
    """What a setting does, and to which runs: any, on a gpu, or with network.transport: ib."""

    runs: str
    effect: str
    value: str = ""  # the one that slows; empty: every one that is not OFF


WAITS = "the host waits for each kernel"
NO_DIRECT = "NCCL copies between GPUs of a node on a longer route"
BLOCKS = "the host waits for each collective"
VARIABLES = {
    "AMD_SERIALIZE_COPY": Slow("gpu", "the host waits for each copy"),
    "AMD_SERIALIZE_KERNEL": Slow("gpu", WAITS),
    "CUDA_LAUNCH_BLOCKING": Slow("gpu", WAITS),
    "HIP_LAUNCH_BLOCKING": Slow("gpu", WAITS),
    "NCCL_BLOCKING_WAIT": Slow("gpu", BLOCKS),
    "NCCL_DEBUG": Slow("gpu", "NCCL writes a line for each call", "TRACE"),
    "NCCL_IB_DISABLE": Slow("ib", "NCCL sends by TCP, although network.transport is ib"),
    "NCCL_P2P_DISABLE": Slow("ib", NO_DIRECT),
    "NCCL_SHM_DISABLE": Slow("ib", NO_DIRECT),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Slow("gpu", "each tensor's memory is asked of the driver"),
    "TORCH_DISTRIBUTED_DEBUG": Slow("any", "torch compares each collective on all ranks", "DETAIL"),
    "TORCH_NCCL_BLOCKING_WAIT": Slow("gpu", BLOCKS),
}
ANOMALY, DETERMINISTIC = "torch.autograd.set_detect_anomaly(True)", "torch.use_deterministic_algorithms(True)"
MODES = {
    ANOMALY: Slow("any", "autograd notes and checks each operation"),
    DETERMINISTIC: Slow("any", "slower algorithms where the fast ones vary"),
}


def variables(environment: Mapping[str, str]) -> list[str]:
    """Return ``CUDA_LAUNCH_BLOCKING=1`` for each variable that may slow a run."""
    found = []
    for name, slow in VARIABLES.items():
        value = environment.get(name, "").strip()
        if value.upper() == slow.value if slow.value else value.lower() not in OFF:
            found.append(f"{name}={value}")
    return found


def effects(settings: Sequence[str], on_gpu: bool, transport: str = "any") -> dict[str, str]:
    """Return those that slow such a run, each with what it does.

    transport: that of the site; a run does not know it.
    """
    runs = {"any": True, "gpu": on_gpu, "ib": on_gpu and transport == "ib"}
    known = {each: VARIABLES.get(each.partition("=")[0]) or MODES.get(each) for each in settings}
    return {each: slow.effect for each, slow in known.items() if slow and runs[slow.runs]}


def in_words(settings: Sequence[str], on_gpu: bool, transport: str = "any") -> str:
    """Return the effects as one text; empty if there is none."""
    return ", ".join(f"{each} ({effect})" for each, effect in effects(settings, on_gpu, transport).items())
