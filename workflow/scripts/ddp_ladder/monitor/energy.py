"""Energy of the processors, from RAPL. Most kernels let only root read it."""

from __future__ import annotations

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class Packages:
    """The RAPL counters of a node's processor packages. note: why there are none."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._counters: list[tuple[Path, int]] = []
        self.note: str | None = None
        self._last: list[int] = []
        self._used_uj = 0
        try:
            # package-0 is a zone; its parts (core, dram) are intel-rapl:0:1 and are counted in it or beside it
            zones = [zone for zone in sorted(powercap.glob("intel-rapl:*")) if zone.name.count(":") == 1]
            zones = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
            self._counters = [(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())) for zone in zones]
            self._last = self._read()
        except (OSError, ValueError) as error:
            self._counters = []
            self.note = f"RAPL: {error}"
        if not self._counters and self.note is None:
            self.note = "RAPL: there are no counters of this processor"

    @property
    def readable(self) -> bool:
        """Return True if there are counters."""
        return bool(self._counters)

    def used_j(self) -> float:
        """Return the energy since this object was made. Raises OSError or ValueError."""
        now = self._read()
        for before, value, (_, largest) in zip(self._last, now, self._counters, strict=True):
            self._used_uj += value - before + (largest if value < before else 0)
        self._last = now
        return self._used_uj / 1e6

    def _read(self) -> list[int]:
        return [int(path.read_text()) for path, _ in self._counters]
