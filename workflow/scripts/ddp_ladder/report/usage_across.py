"""What the picture across scales shows: a figure of each GPU and node of each run, from the records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_ladder.nodes.usage import GpuUsage, NodeUsage, Usage
from ddp_ladder.records.record import Record
from ddp_ladder.report.usage_panels import CELSIUS, GIGABYTES, PERCENT, WATTS, Unit, rate_unit
from ddp_ladder.report.usage_scales_plot import Spread
from ddp_ladder.settings.terms import REFERENCE_VARIANT


@dataclass(frozen=True)
class Quantity:
    """A panel of the picture across scales. of_gpu or of_node: its value for one device; None if not known."""

    key: str
    title: str
    unit: Unit | None  # None: a rate, in the unit that suits it
    of_gpu: Callable[[GpuUsage], float | None] | None = None
    of_node: Callable[[NodeUsage], float | None] | None = None

    def values(self, usage: Usage) -> list[float]:
        """Return the values of a run's devices."""
        found = [self.of_gpu(gpu) for gpu in usage.gpus] if self.of_gpu else []
        found += [self.of_node(node) for node in usage.nodes] if self.of_node else []
        return [value for value in found if value is not None]


QUANTITIES = (
    Quantity("busy", "GPU busy (a kernel ran)", PERCENT, lambda gpu: gpu.busy_fraction),
    Quantity("memory_busy", "GPU memory bus busy", PERCENT, lambda gpu: gpu.memory_busy_fraction),
    Quantity("power", "GPU power", WATTS, lambda gpu: gpu.power_w),
    Quantity("temperature", "GPU temperature, highest", CELSIUS, lambda gpu: gpu.temperature_c),
    Quantity("sm", "SMs of the GPU active", PERCENT, lambda gpu: gpu.sm_active_fraction),
    Quantity("cpu", "CPU", PERCENT, of_node=lambda node: node.cpu_fraction),
    Quantity("network", "Network, received", None, of_node=lambda node: node.network_received_bytes_per_s),
    Quantity("fabric", "IB or Slingshot, received", None, of_node=lambda node: node.fabric_received_bytes_per_s),
    Quantity(
        "memory", "Host memory of the training, private", GIGABYTES, of_node=lambda node: node.training_memory_bytes
    ),
)


def spreads(runs: Sequence[Record]) -> list[Spread]:
    """Return the panels of the picture across scales: of the reference variant, all repeats together."""
    known = [(run.spec, run.usage) for run in runs if run.usage and run.spec.variant == REFERENCE_VARIANT]
    found = []
    for quantity in QUANTITIES:
        values: dict[tuple[str, str], list[float]] = {}
        for spec, usage in known:
            values.setdefault((spec.mode, str(spec.scale)), []).extend(quantity.values(usage))
        if any(values.values()):
            unit = quantity.unit or rate_unit(max(max(each, default=0.0) for each in values.values()))
            shown = {place: tuple(value / unit.size for value in each) for place, each in values.items()}
            found.append(Spread(quantity.key, quantity.title, unit, shown))
    return found
