"""What is wrong with the GPUs of a node, or among the nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import leave_out
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.node_models import GpuFacts, NodeFacts
from ddp_ladder.preflight.said import Said, fail, unlike, warn
from ddp_ladder.records.failures import is_too_old, least_driver

USED_MIB = 1024  # an idle GPU shows less than this, with its driver and a monitor of the site
LEAVE_OUT = f"{leave_out()}, and tell the site's support"


def gpu_findings(spec: RunSpec, fact: NodeFacts) -> Iterator[Said]:
    """Judge the GPUs of one node."""
    found, counted = fact.gpus, fact.software.gpus if fact.software else None
    if found is None or found.error is not None:
        why = found.error if found else f"no answer within {fact.time_limit_s:g} s"
        yield fail(f"nvidia-smi: {why}", "an answer: the driver and all GPUs work", LEAVE_OUT)
        return
    seen = len(found.visible) if found.gpus else counted
    if seen is not None and seen < spec.gpus_per_node:
        yield _too_few(spec, fact, seen)
    elif counted is not None and counted < spec.gpus_per_node:
        yield fail(
            f"torch counts {count(counted, 'GPU')}, nvidia-smi {len(found.visible)}",
            f"{spec.gpus_per_node} GPUs per node",
            "see that software.setup and workload.env leave CUDA_VISIBLE_DEVICES alone, and that torch's CUDA suits "
            "the driver: python -c 'import torch; torch.cuda.init()'",
        )
    yield from _driver(fact)
    for gpu in found.visible:
        yield from _health(gpu)


def _too_few(spec: RunSpec, fact: NodeFacts, seen: int) -> Said:
    found = fact.gpus
    assert found is not None
    limited = found.visible_devices is not None
    shown = f" (CUDA_VISIBLE_DEVICES={found.visible_devices})" if limited else ""
    return fail(
        f"{seen} of {count(spec.gpus_per_node, 'GPU')} visible{shown}",
        f"{spec.gpus_per_node}: every process of a node sees all its GPUs",
        "remove --gpus-per-task and --gpu-bind from slurm.extra in cluster.yaml, and CUDA_VISIBLE_DEVICES from "
        "software.setup; then compare node.gpus and node.gres with `scontrol show node`",
    )


def _driver(fact: NodeFacts) -> Iterator[Said]:
    driver, built = fact.gpus.driver if fact.gpus else None, fact.software.cuda if fact.software else None
    if driver and built and is_too_old(driver, built):
        yield fail(
            f"driver {driver} is too old for torch, which is built for CUDA {built}",
            f"driver {least_driver(built)} or newer",
            "install a torch that is built for an older CUDA (software in cluster.yaml)",
        )


def _health(gpu: GpuFacts) -> Iterator[Said]:
    name = f"GPU {gpu.index}"
    if gpu.remapping_failed:
        yield fail(f"{name}: row remapping has failed ({gpu.uuid})", "a GPU whose memory can be repaired", LEAVE_OUT)
    elif gpu.remapping_pending or gpu.retired_pages_pending:
        what = "row remapping" if gpu.remapping_pending else "page retirement"
        yield warn(f"{name}: {what} is pending", "a GPU reset after its memory error", "ask the site for a GPU reset")
    if gpu.recovery_action not in (None, "None"):
        asked = f"{name}: the driver asks for a recovery action: {gpu.recovery_action}"
        yield warn(asked, "a GPU that needs none", LEAVE_OUT)
    if gpu.uncorrectable_errors:
        errors = count(gpu.uncorrectable_errors, "uncorrectable ECC error")
        yield warn(f"{name}: {errors} since the driver was loaded", "none", LEAVE_OUT)
    if gpu.slowed_by:
        yield warn(f"{name} is slowed down: {', '.join(gpu.slowed_by)}", "full clocks while it is idle", LEAVE_OUT)
    if gpu.memory_used_mib is not None and gpu.memory_used_mib > USED_MIB:
        by = f" by {', '.join(gpu.processes)}" if gpu.processes else ""
        yield warn(
            f"{name}: {gpu.memory_used_mib} MiB are in use{by}",
            f"less than {USED_MIB} MiB before a run",
            "end your own processes there; ask for whole GPUs (node.gres in cluster.yaml), or tell the site's support",
        )


def model_findings(spec: RunSpec, facts: Mapping[str, NodeFacts]) -> Iterator[PreflightFinding]:
    """Compare the GPUs' models and drivers between the nodes."""
    if spec.device != "cuda":
        return
    gpus = {name: fact.gpus for name, fact in facts.items() if fact.gpus and fact.gpus.gpus}
    advice = "ask for one kind of node: slurm.constraint, or the type in node.gres (gpu:a100), in cluster.yaml"
    models = {name: ", ".join(sorted({gpu.name for gpu in found.visible})) for name, found in gpus.items()}
    for name, own, usual in unlike(models):
        yield warn(f"it has {own}, the others {usual}", "one GPU model on all nodes", advice).on(name)
    drivers = {name: found.driver for name, found in gpus.items()}
    for name, own, usual in unlike(drivers):
        yield warn(f"NVIDIA driver {own}, on the others {usual}", "one driver", LEAVE_OUT).on(name)
