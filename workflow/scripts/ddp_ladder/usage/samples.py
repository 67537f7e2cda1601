"""The samples of a node (nodes/node<k>.csv): read strictly, but for a last line that a killed agent cut."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.monitor.columns import ENERGY, FABRIC, GPU, LOCAL, NO_REASON, NODE
from ddp_ladder.monitor.models import MonitoredGpu, MonitorFile

Values = NDArray[np.float64]

TIME = "time_s"
THROTTLE_REASONS = "throttle_reasons"
LARGEST_VALUE = 1e18  # bytes per second; sums of larger figures are not exact
_OF_NODE = {*NODE, *FABRIC, *LOCAL, *ENERGY}
_OF_GPU = re.compile(r"gpu(\d+)_(\w+)")


@dataclass(frozen=True)
class GpuSamples:
    """Columns of one GPU by their names without ``gpu<i>_``; nan where the GPU did not report a value.

    throttle_reasons: of each sample; None: not reported.
    """

    about: MonitoredGpu
    columns: Mapping[str, Values]
    throttle_reasons: tuple[tuple[str, ...] | None, ...]

    def column(self, name: str) -> Values:
        """Return a column; nan everywhere if there is none."""
        return self.columns.get(name, np.full(len(self.throttle_reasons), np.nan))


@dataclass(frozen=True)
class NodeSamples:
    """Columns of a node by name, without those of its GPUs; nan where a value is not known.

    times_s: unix time of each sample by the node's clock, the end of the interval that its rates are over.
    """

    about: MonitorFile
    times_s: Values
    columns: Mapping[str, Values]
    gpus: tuple[GpuSamples, ...]

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def begins_s(self) -> Values:
        """Return the begin of each sample's interval; that of the first has no length."""
        return np.concatenate([self.times_s[:1], self.times_s[:-1]])

    def column(self, name: str) -> Values:
        """Return a column; nan everywhere if there is none."""
        return self.columns.get(name, np.full(len(self), np.nan))

    def gpu(self, index: int) -> GpuSamples:
        """Return the samples of a GPU by its index among those that the run may use."""
        return self.gpus[index]


def read_samples(path: Path, about: MonitorFile) -> NodeSamples:
    """Read the samples of a node. Raises OSError, or ValueError if they are damaged."""
    return parse_samples(path.read_bytes().decode(), about)


def parse_samples(text: str, about: MonitorFile) -> NodeSamples:
    """Parse the samples of a node. A last line without its end is left out. Raises ValueError."""
    whole = text[: text.rfind("\n") + 1]
    try:
        rows = list(csv.reader(io.StringIO(whole)))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    if not rows:
        raise ValueError("it has no header")
    header, rows = rows[0], rows[1:]
    _check_header(header, len(about.gpus))
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a line is incomplete")
    cells = dict(zip(header, zip(*rows, strict=True) if rows else [()] * len(header), strict=True))
    values = {name: _numbers(name, cells[name]) for name in header if not name.endswith(THROTTLE_REASONS)}
    times_s = values.pop(TIME)
    if np.isnan(times_s).any() or (np.diff(times_s) < 0).any():
        raise ValueError(f"its {TIME} is missing or goes back: was the clock of the node set?")
    gpus = tuple(_gpu(gpu, values, cells, len(rows)) for gpu in about.gpus)
    return NodeSamples(about, times_s, {name: values[name] for name in values if name in _OF_NODE}, gpus)


def _check_header(header: Sequence[str], gpus: int) -> None:
    if header[0] != TIME or len({*header}) != len(header):
        raise ValueError(f"its header does not begin with {TIME}, or has a column twice")
    for name in header:
        of_gpu = _OF_GPU.fullmatch(name)
        if name not in _OF_NODE and not (of_gpu and of_gpu[2] in GPU and int(of_gpu[1]) < gpus):
            raise ValueError(f"there is no column {name[:40]} of a node with {gpus} GPUs")


def _numbers(name: str, cells: Sequence[str]) -> Values:
    """Return a column; an empty cell is nan. Raises ValueError."""
    try:
        values = np.array([cell or "nan" for cell in cells], dtype=np.float64)
    except ValueError:
        raise ValueError(f"{name} contains something else than numbers") from None
    known = values[[bool(cell) for cell in cells]] if len(values) else values
    if not ((known >= 0) & (known <= LARGEST_VALUE)).all():
        raise ValueError(f"{name} contains an impossible figure")
    return values


def _gpu(gpu: MonitoredGpu, values: Mapping[str, Values], cells: Mapping[str, Sequence[str]], rows: int) -> GpuSamples:
    prefix = f"gpu{gpu.index}_"
    columns = {name.removeprefix(prefix): values[name] for name in values if name.startswith(prefix)}
    reasons = cells.get(prefix + THROTTLE_REASONS, ("",) * rows)
    return GpuSamples(gpu, columns, tuple(map(_throttle_reasons, reasons)))


def _throttle_reasons(cell: str) -> tuple[str, ...] | None:
    return None if not cell else () if cell == NO_REASON else tuple(cell.split("+"))
