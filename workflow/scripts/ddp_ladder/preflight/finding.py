"""A finding of the preflight: what is wrong where, what is wanted, and what to do next."""

from __future__ import annotations

from typing import Literal

from ddp_ladder.common.model import Model

PREFLIGHT_FAILED = "the preflight failed"


class PreflightFinding(Model):
    """fail keeps the scale's runs from starting; warn does not. node: null if it is about several nodes or none."""

    level: Literal["fail", "warn"]
    node: str | None
    what: str
    wanted: str
    next: str

    @property
    def in_words(self) -> str:
        """Return what is wrong, with the node in front."""
        return f"{self.node}: {self.what}" if self.node and not self.what.startswith(self.node) else self.what
