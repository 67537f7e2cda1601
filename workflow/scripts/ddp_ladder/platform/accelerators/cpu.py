"""No accelerator: a rank is a process on CPUs."""

from __future__ import annotations

from collections.abc import Mapping

from ddp_ladder.platform.accelerators.accelerator import Accelerator, Gpus


class Cpu(Accelerator):
    """CPUs. What the settings call a GPU is one process."""

    name = "cpu"
    is_for = "without GPUs (the backend is then Gloo)"
    title = "CPUs"
    is_gpu = False
    backend = "gloo"
    warmup_steps = 10
    clock = "the host's clock"

    def monitor(self, environment: Mapping[str, str]) -> Gpus:
        return Gpus(notes=("GPUs: not sampled, the run trains on CPUs",))
