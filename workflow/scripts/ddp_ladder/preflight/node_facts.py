"""What one node has, collected by its own process as an ordinary user, without a judgement.

Null means that the fact could not be read, or that the question does not arise on this node.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import psutil
from pydantic import Field

from ddp_ladder.common.files import check_room, file_text, nearest
from ddp_ladder.common.formats import count
from ddp_ladder.common.model import Model, Several, Version1
from ddp_ladder.common.process import run_bounded
from ddp_ladder.node.launch import Places
from ddp_ladder.node.network import address, interface_towards, node_name
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.link import HeadServer, reach_head
from ddp_ladder.settings.terms import Interface, interface_on

SHARED_MEMORY = Path("/dev/shm")
MARKER_S = 3.0  # a network file system may show a new file to other nodes this late
RETRY_S = 0.1
NVIDIA_SMI_S = 20.0
LONGEST_ERROR = 500  # characters
# Reasons that slow an idle GPU only if something is wrong with its cooling or its power supply.
HARMFUL = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


class GpuFacts(Model):
    """A GPU that the job step may use, as ``nvidia-smi -q -x`` describes it."""

    index: int
    uuid: str
    name: str
    memory_used_mib: int | None
    processes: Several[str] = Field(description="Processes that use it: id and name.")
    is_broken: bool = Field(description="Its memory can no longer be repaired: row remapping has failed.")
    troubles: Several[str] = Field(description="What else is wrong with its health, in words.")


class GpusFacts(Model):
    """The GPUs that the job step may use. error: why nvidia-smi gave no answer; no GPUs without it: no nvidia-smi."""

    driver: str | None = None
    gpus: Several[GpuFacts] = ()
    visible_devices: str | None = Field(default=None, description="CUDA_VISIBLE_DEVICES of the job step.")
    error: str | None = None


class InterfaceFacts(Model):
    """The network interface that this node uses. error: why it has none with an address."""

    name: str | None
    address: str | None = None
    up: bool | None = None
    mtu: int | None = None
    error: str | None = None


class DirectoryFacts(Model):
    """A directory that runs write to. error: why a file of 1 MB could not be written there."""

    path: str
    free_bytes: int | None = None
    error: str | None = None


class LinkFacts(Model):
    """The head's port. error: on the head why it cannot listen, on another node why it does not reach it."""

    head: str = Field(description="address:port")
    payload_s: float | None = Field(default=None, description="In which 256 KiB went to the head and back.")
    error: str | None = None


class NodeFacts(Model):
    """What one node has."""

    schema_version: Version1
    node: str
    host: str
    node_rank: int
    in_slurm: bool
    cpus: int
    gpus: GpusFacts | None
    interface: InterfaceFacts
    link: LinkFacts | None
    shared_memory: DirectoryFacts
    run_directory: DirectoryFacts
    marker_seen: bool = Field(description="The job's file in the shared directory is there.")
    host_addresses: Several[str] = Field(description="What the host name resolves to; empty if it does not.")
    head_addresses: Several[str] | None = Field(description="What the head's name resolves to here; null on the head.")
    locked_memory_bytes: int | None = Field(description="ulimit -l; null: unlimited.")
    open_files: int | None = Field(description="ulimit -n of the ranks; null: unlimited.")


def collect(
    spec: RunSpec,
    places: Places,
    node_rank: int,
    head: tuple[str, int],
    head_name: str,
    timeout_s: float,
    marker: Path,
) -> NodeFacts:
    """Return the facts of this node, after the other nodes have reached it if it is the head.

    head: address and port of the run's rendezvous endpoint. head_name: the name of its node. marker: a file in the
    shared directory that the job has written before it started the nodes; its name, new in each job, is their token.
    """
    until_s = time.monotonic() + timeout_s
    interface = interface_facts(spec.interface, head[0])
    server: HeadServer | None = None
    link = None
    if interface.address and spec.nodes > 1 and node_rank > 0:
        link = _link_to_head(interface.address, head, marker.name, until_s)
    elif interface.address and node_rank == 0:
        try:
            server, link = HeadServer(*head, marker.name, spec.nodes - 1), LinkFacts(head=_endpoint(head))
        except OSError as error:
            link = LinkFacts(head=_endpoint(head), error=error.strerror or str(error))
    try:
        return NodeFacts(
            schema_version=1,
            node=node_name(),
            host=socket.gethostname(),
            node_rank=node_rank,
            in_slurm="SLURM_JOB_ID" in os.environ,
            cpus=_cpus(),
            interface=interface,
            link=link,
            gpus=gpus_facts(os.environ, NVIDIA_SMI_S) if spec.device == "cuda" else None,
            shared_memory=directory_facts(SHARED_MEMORY),
            run_directory=directory_facts(places.run),
            marker_seen=is_seen(marker),
            host_addresses=resolved(socket.gethostname()),
            head_addresses=resolved(head_name) if node_rank > 0 else None,
            locked_memory_bytes=_limit(resource.RLIMIT_MEMLOCK),
            open_files=_limit(resource.RLIMIT_NOFILE),
        )
    finally:
        if server is not None:
            server.finish(until_s)


def _endpoint(head: tuple[str, int]) -> str:
    return f"{head[0]}:{head[1]}"


def _link_to_head(own: str, head: tuple[str, int], token: str, until_s: float) -> LinkFacts:
    try:
        return LinkFacts(head=_endpoint(head), payload_s=reach_head(own, head, token, until_s))
    except OSError as error:
        return LinkFacts(head=_endpoint(head), error=str(error))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def interface_facts(wanted: Interface, head: str) -> InterfaceFacts:
    """Return the facts of the interface that a run would use on this node. head: an address."""
    name = interface_on(wanted, node_name())
    try:
        name = interface_towards(wanted, head)
        own = address(name)
    except OSError as error:
        return InterfaceFacts(name=None if name == "auto" else name, error=str(error))
    stats = psutil.net_if_stats().get(name)
    return InterfaceFacts(name=name, address=own, up=stats.isup if stats else None, mtu=stats.mtu if stats else None)


def directory_facts(path: Path) -> DirectoryFacts:
    """Return the room in a directory, or in its nearest existing parent; writes 1 MB there, and removes it."""
    there = nearest(path)
    try:
        room = os.statvfs(there)
        check_room(there)
    except OSError as error:
        return DirectoryFacts(path=str(path), error=error.strerror or str(error))
    return DirectoryFacts(path=str(path), free_bytes=room.f_bavail * room.f_frsize)


def is_seen(marker: Path, within_s: float = MARKER_S) -> bool:
    """Return True if the file is there in time."""
    until_s = time.monotonic() + within_s
    while file_text(marker) is None:
        if time.monotonic() > until_s:
            return False
        time.sleep(RETRY_S)
    return True


def resolved(name: str) -> tuple[str, ...]:
    """Return the IPv4 addresses of a name; none if it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


# GPUs, from nvidia-smi


def gpus_facts(environment: Mapping[str, str], within_s: float) -> GpusFacts:
    """Return the facts of the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    command = shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath))
    if command is None:
        return GpusFacts(visible_devices=visible)
    try:
        code, printed = run_bounded((command, "-q", "-x"), within_s, environment)
    except subprocess.TimeoutExpired:
        return GpusFacts(error=f"no answer within {within_s:g} s")
    if code != 0:
        return GpusFacts(error=(printed.strip() or f"nvidia-smi ended with {code}")[:LONGEST_ERROR])
    try:
        driver, gpus = parse_gpus(printed, visible)
    except ElementTree.ParseError as error:
        return GpusFacts(error=f"nvidia-smi printed no XML: {error}: {printed}"[:LONGEST_ERROR])
    return GpusFacts(driver=driver, gpus=gpus, visible_devices=visible)


def parse_gpus(text: str, visible_devices: str | None) -> tuple[str | None, tuple[GpuFacts, ...]]:
    """Return the driver and the visible GPUs. Raises ParseError. What this driver or GPU does not tell is left out."""
    root = ElementTree.fromstring(text)
    gpus = root.findall("gpu")
    uuids = [_text(gpu, "uuid") or "" for gpu in gpus]
    visible = visible_indices(visible_devices, uuids)
    return _text(root, "driver_version"), tuple(
        GpuFacts(
            index=index,
            uuid=uuids[index],
            name=_text(gpu, "product_name") or "",
            memory_used_mib=_number(gpu, "fb_memory_usage/used"),
            processes=tuple(_processes(gpu)),
            is_broken=_text(gpu, "remapped_rows/remapped_row_failure") == "Yes",
            troubles=tuple(_troubles(gpu)),
        )
        for index, gpu in enumerate(gpus)
        if index in visible
    )


def visible_indices(visible_devices: str | None, uuids: list[str]) -> frozenset[int]:
    """Return which of the GPUs CUDA_VISIBLE_DEVICES leaves: indices or UUIDs; as CUDA, up to the first unknown one.

    With MIG devices, which are parts of GPUs, all: torch's own count has to tell.
    """
    if visible_devices is None or "MIG-" in visible_devices:
        return frozenset(range(len(uuids)))
    found = set()
    for word in (word.strip() for word in visible_devices.split(",")):
        if word.isdigit() and int(word) < len(uuids):
            found.add(int(word))
        elif word.startswith("GPU-") and any(uuid.startswith(word) for uuid in uuids):
            found.add(next(index for index, uuid in enumerate(uuids) if uuid.startswith(word)))
        else:
            break
    return frozenset(found)


def _text(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if text in ("", "N/A", "[N/A]") else text


def _number(element: ElementTree.Element, path: str) -> int | None:
    found = re.match(r"\d+", _text(element, path) or "")
    return int(found[0]) if found else None


def _processes(gpu: ElementTree.Element) -> Iterator[str]:
    for process in gpu.iterfind("processes/process_info"):
        name = (_text(process, "process_name") or "").rpartition("/")[2]
        yield f"{_text(process, 'pid')} {name}".strip()


def _troubles(gpu: ElementTree.Element) -> Iterator[str]:
    if _text(gpu, "remapped_rows/remapped_row_pending") == "Yes":
        yield "row remapping is pending: it needs a reset"
    if _text(gpu, "retired_pages/pending_retirement") == "Yes":
        yield "page retirement is pending: it needs a reset"
    action = _text(gpu, "gpu_recovery_action")
    if action not in (None, "None"):
        yield f"the driver asks for a recovery action: {action}"
    since_start = gpu.find("ecc_errors/volatile")
    if since_start is not None:
        # GPUs before Ampere call them double bit errors.
        paths = [each.tag for each in since_start if "uncorrectable" in each.tag] + ["double_bit/total"]
        if errors := sum(_number(since_start, path) or 0 for path in paths):
            yield f"{count(errors, 'uncorrectable ECC error')} since the driver was loaded"
    for kind in ("event", "throttle"):  # driver 535 renamed them from throttle to event
        for name in HARMFUL:
            if _text(gpu, f"clocks_{kind}_reasons/clocks_{kind}_reason_{name}") == "Active":
                yield f"slowed down while it is idle: {name}"
