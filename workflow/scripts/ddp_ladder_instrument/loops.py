"""Passes over DataLoaders: what each yielded since the last step, and which of them are training.

A step's training passes are those that yielded batches for it, without

- batches drawn with gradients off (torch.no_grad, torch.inference_mode): never training;
- batches drawn while the model was in eval mode, where others were drawn in training mode;
- passes that are over, or were left for good, where one that goes on also yielded; the remainder of
  the pass before over the same loader stays (an accumulation across the end of an epoch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import Segment


class Loop:
    """One pass over a DataLoader: what it yielded since the last optimizer step.

    ``loader`` returns the DataLoader while it lives. ``real_samples``: how many samples of this
    pass are not padding by the sampler; those come first.
    """

    __slots__ = (
        "batches",
        "before",
        "carried_s",
        "carried_segments",
        "first_samples",
        "in_eval_mode",
        "iterator",
        "living",
        "loader",
        "padding",
        "position",
        "real_samples",
        "samples",
        "step",
        "stepped",
        "wait_s",
        "without_grad",
    )

    def __init__(self, loader: Callable[[], Any], real_samples: int) -> None:
        self.loader = loader
        self.real_samples = real_samples
        self.position = 0
        self.living = True
        self.stepped = False
        self.before: Loop | None = None
        self.carried_segments: list[Segment] = []
        self.first_samples: list[str] = []
        self.iterator: Any = None  # a weak reference that tells when the pass is left
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Forget what was yielded before; ``step`` counts from 0."""
        self.step = step
        self.batches = 0
        self.samples = 0
        self.padding = 0
        self.wait_s = 0.0
        self.carried_s = 0.0
        if self.carried_segments:
            self.carried_segments = []
        self.without_grad = False
        self.in_eval_mode = False

    def add(self, size: int) -> None:
        """Take note of a batch of ``size`` samples, padding included."""
        self.batches += 1
        self.position += size
        excess = self.position - self.real_samples
        if excess > 0:
            excess = min(excess, size)
            self.padding += excess
            size -= excess
        self.samples += size


def training(pending: Sequence[Loop], loader_expected: bool) -> list[Loop]:
    """Which of the passes that yielded for this step are training.

    loader_expected: False when the user said that the loop draws from no DataLoader; then a pass
    that is over without ever having stepped is none.
    """
    if len(pending) == 1 and loader_expected and not pending[0].without_grad:
        return [pending[0]]
    loops = [loop for loop in pending if not loop.without_grad]
    if not loader_expected:
        loops = [loop for loop in loops if loop.living or loop.stepped]
    if len(loops) < 2:
        return loops
    loops = [loop for loop in loops if not loop.in_eval_mode] or loops
    living = [loop for loop in loops if loop.living]
    if not living:
        return [loop for loop in loops if loop.stepped] or loops[-1:]
    return [loop for loop in loops if loop.living or _is_remainder(loop, living)]


def _is_remainder(loop: Loop, living: Sequence[Loop]) -> bool:
    """Whether this finished pass trained, and one over the same loader goes on with its step."""
    loader = loop.loader()
    return loop.stepped and loader is not None and any(other.loader() is loader for other in living)
