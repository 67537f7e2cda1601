"""How often DDP times a step. No GPU is needed: the devices are names, and the wrapped module is a stand-in."""

from __future__ import annotations

import pytest
import torch
from ddp_ladder_instrument.ddp import DdpTimings


class StandIn:
    """Stands in for DistributedDataParallel on CUDA: it keeps the rate that it is given."""

    rate: int | None = None

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def _get_ddp_logging_data(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize(
    ("device", "warmup_steps", "max_steps", "rate"),
    [
        ("cpu", 50, 400, 10),
        ("cpu", 50, None, 10),
        ("cuda", 50, 400, 35),  # ten of the 350 measured steps
        ("cuda", 50, 100, 10),
        ("cuda", 50, 60, 10),
        ("cuda", 50, 5000, 100),
        ("cuda", 50, None, 100),
    ],
)
def test_about_ten_measured_steps_are_timed(device: str, warmup_steps: int, max_steps: int | None, rate: int) -> None:
    module, unmeasured = StandIn(), list[str]()
    DdpTimings(warmup_steps, max_steps, unmeasured).attach(module, torch.device(device))  # type: ignore[arg-type]
    assert (module.rate, unmeasured) == (rate, [])
