"""The columns of a node's samples (nodes/node<k>.csv), in their order. An unknown value is empty.

A rate is over the time since the sample before it. Columns of what a node does not have are absent.
"""

from __future__ import annotations

NO_REASON = "none"  # for a lower clock
NODE = (
    "time_s",  # unix time by this node's clock
    "cpu_fraction",  # mean of the CPUs that the agent may use, 0 to 1
    "cpu_busiest_fraction",  # the busiest of them
    "node_cpu_fraction",  # all CPUs of the node
    "load_1min",
    "node_memory_used_bytes",
    "training_cpu_cores",  # CPU seconds per second of the processes of this run on this node
    "training_rss_bytes",
    "training_private_bytes",  # of these without pages of files and shared memory: what a leak makes grow
    "training_processes",
    "training_threads",
    "network_received_bytes_per_s",  # the run's interface
    "network_sent_bytes_per_s",
)
FABRIC = ("fabric_received_bytes_per_s", "fabric_sent_bytes_per_s")  # all ports of InfiniBand or Slingshot
LOCAL = (
    "disk_read_bytes_per_s",  # from disks, by the processes of this run
    "shm_used_bytes",  # /dev/shm
)
ENERGY = ("package_energy_j",)  # RAPL, since the first sample
GPU = (
    "busy_fraction",  # NVML's utilization.gpu: share of time in which any kernel ran
    "memory_used_bytes",
    "memory_busy_fraction",  # NVML's utilization.memory: share of time in which memory was read or written
    "power_w",
    "energy_j",  # since the first sample
    "temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",  # joined by +; none: no reason; empty: not reported
    "pcie_received_bytes_per_s",
    "pcie_sent_bytes_per_s",
    "nvlink_received_bytes_per_s",
    "nvlink_sent_bytes_per_s",
    "sm_active_fraction",  # this and the next two: GPM, of Hopper and newer
    "tensor_active_fraction",
    "dram_active_fraction",
)


def columns(fabric: bool, energy: bool, gpus: int) -> tuple[str, ...]:
    """Return the header of a node with this hardware. fabric: it has ports that can be counted. energy: RAPL can be
    read."""
    of_gpus = tuple(f"gpu{index}_{name}" for index in range(gpus) for name in GPU)
    return (*NODE, *(FABRIC if fabric else ()), *LOCAL, *(ENERGY if energy else ()), *of_gpus)
