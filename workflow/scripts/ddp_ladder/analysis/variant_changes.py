"""In what a variant differs from the default, and the keys that make it the default. Pure, from the resolved specs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ddp_ladder.plan.plan import RunSpec

CONFIG, CLUSTER = "config/config.yaml", "config/cluster.yaml"


@dataclass(frozen=True)
class Change:
    """One setting that a variant overrides.

    value: that of the key in its file, which may be written there as JSON; with ``adds``, to be added to its end.
    """

    in_words: str  # ``NCCL_ALGO=Ring``
    file: str
    key: str  # ``workload.env.NCCL_ALGO``
    value: Any
    adds: bool = False

    @property
    def to_set(self) -> str:
        """Return what to do: ``set launcher: "srun" in config/cluster.yaml``."""
        if self.adds:
            items = ", ".join(json.dumps(item) for item in self.value)
            return f"add {items} to the end of {self.key} in {self.file}"
        return f"set {self.key}: {json.dumps(self.value)} in {self.file}"


def variant_changes(reference: RunSpec, variant: RunSpec) -> tuple[Change, ...]:
    """Return what a variant overrides. Both specs are of one mode, scale and repeat."""
    return tuple(_changes(reference, variant))


def _changes(reference: RunSpec, variant: RunSpec) -> Iterator[Change]:
    if variant.launcher != reference.launcher:
        yield Change(f"launcher {variant.launcher}", CLUSTER, "launcher", variant.launcher)
    if variant.backend_wanted != reference.backend_wanted:
        yield Change(f"backend {variant.backend_wanted}", CLUSTER, "network.backend", variant.backend_wanted)
    if variant.interface != reference.interface:
        yield Change(f"interface {variant.interface}", CLUSTER, "network.interface", variant.interface)
    for name, value in variant.env_template.items():
        if reference.env_template.get(name) != value:
            yield Change(f"{name}={value}", CONFIG, f"workload.env.{name}", value)
    own = len(reference.args_template)
    if variant.args_template[:own] == reference.args_template and len(variant.args_template) > own:
        added = list(variant.args_template[own:])
        yield Change(" ".join(added), CONFIG, "workload.args", added, adds=True)
    elif variant.args_template != reference.args_template:
        every = list(variant.args_template)
        yield Change(f"arguments {' '.join(every)}", CONFIG, "workload.args", every)
