"""A draft of cluster.yaml from what Slurm says of this cluster, for a person to confirm.

Its text is workflow/templates/cluster.yaml.j2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_ladder.common.files import OWN, SCHEMAS, file_text, write_atomically
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.job_script.script import render
from ddp_ladder.preflight.admission import Partitions, allowed_qos, read_partitions
from ddp_ladder.settings import yaml
from ddp_ladder.settings.keys import Site
from ddp_ladder.settings.load import flow, validated
from ddp_ladder.slurm.query import Partition, SlurmError, read_nodes, run_command, shapes_of

SITES = Path("config/sites")
SHIPPED = OWN / SITES / "local.yaml"  # what config/cluster.yaml is before anyone changes it
_NO_SLURM = "a draft of cluster.yaml needs the answers of Slurm"
# Of a partition, and their values where they limit nothing.
_LIMITS = {
    "MaxTime": "UNLIMITED", "MaxNodes": "UNLIMITED", "State": "UP", "AllowAccounts": "ALL", "AllowQos": "ALL",
    "AllowGroups": "ALL", "Hidden": "NO", "RootOnly": "NO",
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """What Slurm says of a cluster."""

    name: str
    partitions: Sequence[Partition]  # the one to use first
    records: Partitions

    def limits(self, name: str) -> str:
        """Return what Slurm says of a partition besides its nodes: ``default, MaxTime=1-00:00:00``."""
        row = self.records[name]
        limits = [f"{key}={row[key]}" for key, none in _LIMITS.items() if row.get(key, none) != none]
        return ", ".join([*(["default"] if row.get("Default") == "YES" else []), *limits]) or "no limits"


def read_cluster() -> Cluster:
    """Ask Slurm. Raises UserError if it does not answer, or has no partition with nodes."""
    try:
        partitions = read_partitions()
        name = re.search(r"^ClusterName\s*= (\S+)", run_command(["scontrol", "show", "config"]), re.MULTILINE)
        return cluster_of(name[1] if name else "", partitions, read_nodes())
    except UserError as error:
        raise UserError(replace(problem, what=_NO_SLURM) for problem in error.problems) from None
    except SlurmError as error:
        advice = "try `scontrol show node` on this machine"
        raise UserError(Problem("Slurm", _NO_SLURM, str(error), next=advice)) from None


def cluster_of(name: str, partitions: Partitions, nodes: Sequence[Mapping[str, str]]) -> Cluster:
    """Return the cluster of these records. Raises UserError if no partition has nodes."""
    with_nodes = [partition for row in partitions.values() if (partition := shapes_of(row, nodes)).shapes]
    if not with_nodes:
        advice = "ask your site for one: `sinfo --all`"
        raise UserError(Problem("Slurm", _NO_SLURM, "no partition has nodes", next=advice))

    def rank(partition: Partition) -> tuple[int, ...]:
        row = partitions[partition.name]
        is_open = row.get("State") == "UP" and row.get("RootOnly") != "YES" and row.get("Hidden") != "YES"
        # Of equal ones that with the most nodes; sorting keeps Slurm's order.
        nodes = sum(partition.shapes.values())
        return is_open, partition.usual.gpus > 0, row.get("Default") == "YES", nodes

    with_nodes.sort(key=rank, reverse=True)
    return Cluster(re.sub(r"[^A-Za-z0-9._-]", "-", name).strip("._-")[:60] or "my-cluster", with_nodes, partitions)


# The file


def draft(cluster: Cluster, file: Path) -> str:
    """Return the text of ``file``, which describes the first partition. Raises UserError if the ladder refuses it."""
    chosen, schema = cluster.partitions[0], os.path.relpath(SCHEMAS / "cluster.schema.json", file.absolute().parent)
    of_cluster = {"cluster": cluster, "chosen": chosen, "shape": chosen.usual.of_one_slice}
    of_cluster["qos"] = allowed_qos(cluster.records[chosen.name])
    text = render("cluster.yaml.j2", **of_cluster, schema=schema, flow=flow)
    try:
        validated([(yaml.read(file, text.encode()), Site)])
    except UserError as error:
        what = "nothing is written: Slurm shows a value that cluster.yaml cannot hold, "
        advice = f"write {file} by hand, from a file of {SITES}; all keys: config/README.md"
        raise UserError(replace(each, what=what + each.what, next=advice) for each in error.problems) from None
    return text


def write_draft(cluster: Cluster, wanted: Path) -> tuple[Path, bool, list[Path]]:
    """Write the draft; return its file, whether that has changed, and the files that were kept as they are.

    In ``wanted`` if that is missing or as shipped, else in config/sites. A file that someone wrote is never replaced.
    """
    sites = [SITES / f"{cluster.name}{suffix}.yaml" for suffix in ("", *(f"-{number}" for number in range(2, 100)))]
    kept = list[Path]()
    for file in (wanted, *sites):
        text, present = draft(cluster, file), file_text(file) or ""
        if present == text:
            return file, False, kept
        if not file.exists() or (present and _values(present) == _values(file_text(SHIPPED) or "")):
            write_atomically(file, text)
            return file, True, kept
        kept.append(file)
    what, advice = "it has too many drafts of this site", "delete some of them"
    raise UserError(Problem(str(SITES), what, str(len(kept)), next=advice))


def _values(text: str) -> str:
    """Return a settings file without its first line, which names the schema relative to the file."""
    return text.partition("\n")[2]
