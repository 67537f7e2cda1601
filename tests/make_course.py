"""The course of a run for tests of its pictures: it starts up for 20 s, then its GPUs are busy, but for some pauses.

All values are made up, in the range of an A100's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ddp_ladder.nodes.read import NodeSamples
from make_usage import EVERY_S, make_monitor_file, make_samples

STARTUP_S = 20.0
PORT = {"name": "mlx5_0/1", "bits_per_s": 200_000_000_000}
Pause = tuple[float, float, float]  # begin and end after the first sample in seconds, busy fraction in between


def course(gpu_count: int, samples: int, pauses: Sequence[Pause] = (), seed: int = 0) -> dict[str, Any]:
    """Return the columns of a node, one value for each sample."""
    times_s = EVERY_S * np.arange(samples)
    random = np.random.default_rng(seed)
    on = np.clip((times_s - STARTUP_S) / 4, 0, 1)

    def used(level: float, spread: float = 0.02) -> Any:
        return np.clip(level * (1 + spread * random.standard_normal(len(times_s))) * on, 0, None)

    def share(level: float) -> Any:
        return np.minimum(used(level), 1).round(2)

    values = {
        "cpu_fraction": share(0.55),
        "cpu_busiest_fraction": share(0.95),
        "training_rss_bytes": used(50e9, 0),
        "network_received_bytes_per_s": used(1.2e9),
        "network_sent_bytes_per_s": used(1.1e9),
        "fabric_received_bytes_per_s": used(8e9),
        "fabric_sent_bytes_per_s": used(8e9),
    }
    for gpu in range(gpu_count):
        values |= {
            f"gpu{gpu}_busy_fraction": share(0.97),
            f"gpu{gpu}_power_w": (62 + used(300 + 3 * gpu)).round(1),
            f"gpu{gpu}_temperature_c": (34 + gpu + 26 * (1 - np.exp(-np.cumsum(on) / 45))).round(),
        }
        for begin_s, end_s, busy in pauses:
            during = (times_s > begin_s) & (times_s <= end_s)
            values[f"gpu{gpu}_busy_fraction"][during] = busy
            values[f"gpu{gpu}_power_w"][during] = 62 + 300 * busy
    return values


def make_nodes(nodes: int, gpu_count: int, seconds: float, pauses: Sequence[Pause] = ()) -> list[NodeSamples]:
    """Return the samples of the nodes of a run; with GPUs and several nodes, each has a port of InfiniBand."""
    count = int(seconds / EVERY_S) + 1
    made = []
    for k in range(nodes):
        about = make_monitor_file(k, gpu_count, fabrics=(PORT,) if gpu_count and nodes > 1 else ())
        made.append(make_samples(about, count, **course(gpu_count, count, pauses, seed=k)))
    return made
