"""The time that torch.compile took."""

from __future__ import annotations

import sys

UTILITIES = "torch._dynamo.utils"


def compile_s() -> float:
    """Return the seconds that this process spent compiling, forward and backward, in all steps; 0 if it never did.

    Raises RuntimeError if this torch does not report them.
    """
    if UTILITIES not in sys.modules:
        return 0.0
    metrics = getattr(sys.modules[UTILITIES], "compilation_time_metrics", None)
    if metrics is None:
        raise RuntimeError(f"{UTILITIES}.compilation_time_metrics is missing")
    return float(sum(sum(seconds) for name, seconds in metrics.items() if _is_whole(name)))


def _is_whole(name: str) -> bool:
    """Return True if this metric times a whole compilation, not a part; the names differ between releases."""
    return name.endswith("compile_inner") or name == "backward._backward_impl"
