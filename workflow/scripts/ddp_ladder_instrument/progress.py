"""progress.json: the progress of the run, for display only."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from ddp_ladder_instrument.files import write_atomically

INTERVAL_S = 1.0


class Progress:
    """The writer of progress.json, at most once a second. Times are from time.perf_counter()."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s: float | None = None
        self._written_s = 0.0
        self._written_step = 0

    def update(self, now_s: float, samples: Sequence[int], world_size: int, epoch_steps: int | None) -> None:
        """Write the file if a second has passed. Raises OSError. samples: of each step of this rank."""
        if self._began_s is None:
            self._began_s = self._written_s = now_s
        elif now_s - self._written_s < INTERVAL_S:
            return
        since_s = now_s - self._written_s
        content = {
            "step": len(samples),
            "samples_per_s": sum(samples[self._written_step :]) * world_size / since_s if since_s > 0 else None,
            "elapsed_s": now_s - self._began_s,
            "epoch_steps": epoch_steps,
            "updated_at_s": time.time(),
        }
        write_atomically(self._path, [json.dumps(content) + "\n"], durable=False)
        self._written_s = now_s
        self._written_step = len(samples)
