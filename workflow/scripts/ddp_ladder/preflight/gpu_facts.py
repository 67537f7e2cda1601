"""The GPUs of this node and their health, from ``nvidia-smi -q -x``."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from ddp_ladder.common.bounded import run_bounded
from ddp_ladder.node.gpus import visible_indices
from ddp_ladder.preflight.node_models import GpuFacts, GpusFacts

QUERY = ("-q", "-x")
# Reasons that slow an idle GPU only if something is wrong with its cooling or its power supply.
HARMFUL = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
LONGEST_ERROR = 300  # characters


def gpus_facts(environment: Mapping[str, str], within_s: float) -> GpusFacts:
    """Return the facts. A driver that hangs raises TimeoutExpired."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    command = shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath))
    if command is None:
        return GpusFacts(driver=None, gpus=(), visible_devices=visible, error=None)
    code, printed = run_bounded((command, *QUERY), within_s, environment)
    if code != 0:
        return _no_answer(visible, printed.strip() or f"nvidia-smi ended with {code}")
    try:
        driver, gpus = parse(printed, visible)
    except ElementTree.ParseError as error:
        return _no_answer(visible, f"nvidia-smi printed no XML: {error}: {printed}")
    return GpusFacts(driver=driver, gpus=gpus, visible_devices=visible, error=None)


def _no_answer(visible: str | None, error: str) -> GpusFacts:
    return GpusFacts(driver=None, gpus=(), visible_devices=visible, error=error[:LONGEST_ERROR])


def parse(text: str, visible_devices: str | None) -> tuple[str | None, tuple[GpuFacts, ...]]:
    """Return the driver and the GPUs. Raises ParseError. A fact that this driver or this GPU does not give is None."""
    root = ElementTree.fromstring(text)
    gpus = root.findall("gpu")
    uuids = [_text(gpu, "uuid") or "" for gpu in gpus]
    visible = visible_indices(visible_devices, uuids)
    return _text(root, "driver_version"), tuple(
        _gpu(gpu, index, index in visible, uuids[index]) for index, gpu in enumerate(gpus)
    )


def _gpu(gpu: ElementTree.Element, index: int, visible: bool, uuid: str) -> GpuFacts:
    return GpuFacts(
        index=index,
        uuid=uuid,
        name=_text(gpu, "product_name") or "",
        visible=visible,
        memory_total_mib=_number(gpu, "fb_memory_usage/total"),
        memory_used_mib=_number(gpu, "fb_memory_usage/used"),
        processes=tuple(_processes(gpu)),
        uncorrectable_errors=_uncorrectable(gpu),
        retired_pages_pending=_yes(gpu, "retired_pages/pending_retirement"),
        remapping_pending=_yes(gpu, "remapped_rows/remapped_row_pending"),
        remapping_failed=_yes(gpu, "remapped_rows/remapped_row_failure"),
        recovery_action=_text(gpu, "gpu_recovery_action"),
        slowed_by=tuple(_slowed_by(gpu)),
    )


def _text(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if text in ("", "N/A", "[N/A]") else text


def _number(element: ElementTree.Element, path: str) -> int | None:
    found = re.match(r"\d+", _text(element, path) or "")
    return int(found[0]) if found else None


def _yes(element: ElementTree.Element, path: str) -> bool | None:
    return {"yes": True, "no": False}.get((_text(element, path) or "").lower())


def _processes(gpu: ElementTree.Element) -> Iterator[str]:
    for process in gpu.iterfind("processes/process_info"):
        name = (_text(process, "process_name") or "").rpartition("/")[2]
        yield f"{_text(process, 'pid')} {name}".strip()


def _uncorrectable(gpu: ElementTree.Element) -> int | None:
    """Return the sum; GPUs before Ampere call them double bit errors."""
    since_start = gpu.find("ecc_errors/volatile")
    if since_start is None:
        return None
    found = [_number(since_start, each.tag) for each in since_start if "uncorrectable" in each.tag] + [
        _number(since_start, "double_bit/total")
    ]
    known = [count for count in found if count is not None]
    return sum(known) if known else None


def _slowed_by(gpu: ElementTree.Element) -> Iterator[str]:
    """Yield active reasons. Driver 535 renamed them from clocks_throttle_reasons."""
    for reasons in (gpu.find("clocks_event_reasons"), gpu.find("clocks_throttle_reasons")):
        for reason in reasons if reasons is not None else ():
            name = re.sub(r"^clocks_(event|throttle)_reason_", "", reason.tag)
            if name in HARMFUL and (reason.text or "").strip() == "Active":
                yield name
