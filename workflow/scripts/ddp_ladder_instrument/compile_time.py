"""How long torch.compile took."""

from __future__ import annotations

import sys

UTILITIES = "torch._dynamo.utils"


def compile_s() -> float:
    """Seconds in which this process compiled, forward and backward, in the first step and later; 0 when it never did.

    Raises RuntimeError where this torch does not tell.
    """
    if UTILITIES not in sys.modules:
        return 0.0
    metrics = getattr(sys.modules[UTILITIES], "compilation_time_metrics", None)
    if metrics is None:
        raise RuntimeError(f"{UTILITIES}.compilation_time_metrics is missing")
    return float(sum(sum(seconds) for name, seconds in metrics.items() if _is_whole(name)))


def _is_whole(name: str) -> bool:
    """Whether it times a whole compilation, not a part of one; the names differ between releases."""
    return name.endswith("compile_inner") or name == "backward._backward_impl"
