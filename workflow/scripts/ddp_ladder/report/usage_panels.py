"""What the picture of one run shows: its panels with their lines or bands, from the samples of its nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.nodes.read import NodeSamples, Values
from ddp_ladder.report.traces import Band, Trace, band, downsampled

BINS = 120  # of time: a panel is about 330 pixels wide, and each bin keeps its lowest and its highest value
MOST_LINES = 8  # in a panel; more cannot be told apart and become a band
SHOW_LIMIT_FROM = 0.25  # of the limit: a limit far above all values would flatten them, and is named in the title only
GIGA = 1e9


@dataclass(frozen=True)
class Unit:
    """The unit of a panel: its name, how much of the column's unit it is, and where the axis ends if that is fixed."""

    name: str
    size: float = 1.0
    top: float | None = None


PERCENT = Unit("%", 0.01, 100.0)
GIGABYTES = Unit("GB", GIGA)
WATTS = Unit("W")
CELSIUS = Unit("°C")
RATES = (Unit("GB/s", GIGA), Unit("MB/s", 1e6), Unit("kB/s", 1e3), Unit("bytes/s"))


@dataclass(frozen=True)
class Limit:
    """A limit that values are seen against, in the unit of its panel."""

    name: str
    value: float


@dataclass(frozen=True)
class Panel:
    """One axis of the picture. lines and bands hold values in ``unit``; top: where the axis ends.

    by_device: each line is a device, with its look in the whole picture; else it is a quantity of the panel itself.
    """

    key: str
    title: str
    unit: Unit
    lines: tuple[Trace, ...]
    bands: tuple[Band, ...]
    top: float
    limit: Limit | None = None
    by_device: bool = False
    far_limit: Limit | None = None  # too far above the values to be drawn

    @property
    def heading(self) -> str:
        """Return ``Host memory, GB (node: 512)``."""
        if self.far_limit is None:
            return f"{self.title}, {self.unit.name}"
        value = self.far_limit.value
        return f"{self.title}, {self.unit.name} ({self.far_limit.name}: {value:,.{0 if value >= 20 else 1}f})"


def panels(nodes: Sequence[NodeSamples]) -> tuple[Panel, ...]:
    """Return the panels of a run, from the top: of its GPUs if it has any, CPU, network and host memory.

    A panel without any known value is left out.
    """
    made = (*_of_gpus(nodes), *_of_nodes(nodes))
    return tuple(panel for panel in made if panel is not None)


def gpu_traces(nodes: Sequence[NodeSamples], quantity: str) -> list[Trace]:
    """Return a column of every GPU on every node as it was sampled, named as in the legend."""
    several = len(nodes) > 1
    return [
        _trace(
            node,
            gpu.columns.get(quantity),
            f"{node.about.node} GPU {gpu.about.index}" if several else f"GPU {gpu.about.index}",
        )
        for node in nodes
        for gpu in node.gpus
    ]


def _of_gpus(nodes: Sequence[NodeSamples]) -> Iterator[Panel | None]:
    gpus = [gpu.about for node in nodes for gpu in node.gpus]
    if not gpus:
        return
    for key, title, quantity, unit, limit in (
        ("busy", "GPU busy (a kernel ran)", "busy_fraction", PERCENT, None),
        ("memory_busy", "GPU memory bus busy", "memory_busy_fraction", PERCENT, None),
        ("power", "GPU power", "power_w", WATTS, _same("limit", [gpu.power_limit_w for gpu in gpus])),
        (
            "temperature",
            "GPU temperature",
            "temperature_c",
            CELSIUS,
            _same("slowdown", [gpu.slowdown_temperature_c for gpu in gpus]),
        ),
    ):
        yield _panel(key, title, unit, {"GPUs": gpu_traces(nodes, quantity)}, limit, by_device=True)
    active = {"SMs": "sm_active", "tensor cores": "tensor_active", "DRAM": "dram_active"}
    yield _panel(
        "active",
        "GPU parts active",
        PERCENT,
        {label: gpu_traces(nodes, f"{name}_fraction") for label, name in active.items()},
    )


def _of_nodes(nodes: Sequence[NodeSamples]) -> Iterator[Panel | None]:
    if not nodes:
        return
    abouts = [node.about for node in nodes]

    def kinds(**columns: str) -> dict[str, list[Trace]]:
        return {
            label: [_trace(node, node.columns.get(column), label) for node in nodes]
            for label, column in columns.items()
        }

    yield _panel(
        "cpu",
        "CPU",
        PERCENT,
        kinds(mean="cpu_fraction", busiest="cpu_busiest_fraction"),
    )
    link = _same("link", [_bytes_per_s(about.interface_bits_per_s) for about in abouts])
    names = sorted({about.interface for about in abouts})
    traffic = kinds(received="network_received_bytes_per_s", sent="network_sent_bytes_per_s")
    yield _rate_panel("network", f"Network {', '.join(names[:2])}", traffic, link)
    ports = _same("ports", [_total(fabric.bits_per_s for fabric in about.fabrics) for about in abouts])
    traffic = kinds(received="fabric_received_bytes_per_s", sent="fabric_sent_bytes_per_s")
    yield _rate_panel("fabric", "IB or Slingshot", traffic, ports)
    memory = _same("node", [about.memory_bytes for about in abouts])
    used = kinds(training="training_rss_bytes", **{"whole node": "node_memory_used_bytes"})
    yield _panel("memory", "Host memory", GIGABYTES, used, memory)


def _bytes_per_s(bits_per_s: float | None) -> float | None:
    return bits_per_s / 8 if bits_per_s else None


def _total(rates_bits_per_s: Iterator[int | None]) -> float | None:
    known = [_bytes_per_s(rate) for rate in rates_bits_per_s]
    return sum(rate for rate in known if rate) if known and all(known) else None


def _same(name: str, values: Sequence[float | None]) -> Limit | None:
    """Return a limit in the column's unit if it is the same for all devices."""
    known = {value for value in values if value is not None}
    return Limit(name, float(known.pop())) if len(known) == 1 and None not in values else None


def _trace(node: NodeSamples, values: Values | None, label: str) -> Trace:
    return (
        Trace(label, node.times_s, values) if values is not None else Trace(label, node.times_s[:0], node.times_s[:0])
    )


def _rate_panel(key: str, title: str, kinds: Mapping[str, Sequence[Trace]], link: Limit | None) -> Panel | None:
    highest = _highest(trace for traces in kinds.values() for trace in traces)
    return _panel(key, title, rate_unit(highest), kinds, link)


def rate_unit(highest_bytes_per_s: float) -> Unit:
    """Return the largest unit of which the highest value is at least one."""
    return next((unit for unit in RATES if highest_bytes_per_s >= unit.size), RATES[-1])


def _panel(
    key: str,
    title: str,
    unit: Unit,
    kinds: Mapping[str, Sequence[Trace]],
    limit: Limit | None = None,
    by_device: bool = False,
) -> Panel | None:
    """Return a panel; None if nothing of it is known. kinds: the traces of each kind, in the column's unit."""
    known = {
        kind: [Trace(trace.label if by_device else kind, trace.times_s, trace.values / unit.size) for trace in traces]
        for kind, traces in kinds.items()
    }
    known = {kind: [trace for trace in traces if trace.is_known] for kind, traces in known.items()}
    known = {kind: traces for kind, traces in known.items() if traces}
    if not known:
        return None
    highest = _highest(trace for traces in known.values() for trace in traces)
    own = Limit(limit.name, limit.value / unit.size) if limit else None
    drawn = own if own and highest >= SHOW_LIMIT_FROM * own.value else None
    top = unit.top or 1.03 * max(highest, drawn.value if drawn else 0.0) or 1.0
    many = sum(len(traces) for traces in known.values()) > MOST_LINES
    lines = () if many else tuple(downsampled(trace, BINS) for traces in known.values() for trace in traces)
    bands = tuple(band(label, traces, BINS) for label, traces in known.items()) if many else ()
    return Panel(key, title, unit, lines, bands, top, drawn, by_device, None if drawn else own)


def _highest(traces: Iterator[Trace]) -> float:
    return max(
        (float(trace.values[trace.values == trace.values].max()) for trace in traces if trace.is_known), default=0.0
    )
