"""Passes over DataLoaders: the batches of each since the last step, and which passes are training.

The training passes of a step are those that yielded batches for it, except

- passes drawn with gradients off (torch.no_grad, torch.inference_mode): they are never training;
- passes drawn in the model's eval mode, if others were drawn in training mode;
- passes that are over or abandoned, if a living one also yielded. The remainder of the previous pass
  over the same loader counts (an accumulation across the end of an epoch), unless the script dropped
  its gradients.

A script may draw batches ahead of the one that it trains on. The second step of a pass shows how many:
it draws fewer than the first, for as many backward passes. Such batches count in their own step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_ladder_instrument.cuda import Segment

NEVER = 2**62


class Short(int):
    """The indices of a batch of which some samples did not arrive. left_out: how many."""

    left_out = 0


class Loop:
    """One pass over a DataLoader, with its batches since the last optimizer step.

    ``loader`` returns the DataLoader while it lives. ``real_samples``: how many samples of this
    pass are not padding by the sampler; those come first. ``began_at_s``: Unix time.
    ``source``: what is known of the loader, also once it is gone. ``batch_sizes`` measures its batches.

    sizes: indices of the batches that no step has used yet. ahead: how many of the last ones are drawn ahead.
    each_step: batches per step, if some are drawn ahead.
    first: row of the pass's first step, its backward passes, and its batches as (samples, padding).
    backwards_at_begin, backwards_at_end: total count of backward passes when the pass yielded its first batch,
    and when it ended.
    spent: a backward pass was made for the batches since the last step.
    dropped: no step trains on the batches since the last step.
    given, received: batches that another thread drew, and how many of them the training has received.
    exhausted: the other thread has drawn all batches.
    """

    def __init__(self, loader: Callable[[], Any], real_samples: int) -> None:
        self.began_at_s = time.time()
        self.loader = loader
        self.real_samples = real_samples
        self.source: Any = None
        self.batch_sizes: Any = None
        self.position = 0
        self.living = True
        self.stepped = False
        self.before: Loop | None = None
        self.carried_segments: list[Segment] = []
        self.first_samples: list[str] = []
        self.iterator: Any = None  # a weak reference whose callback ends the pass
        self.sizes: deque[int] = deque()
        self.ahead = 0
        self.each_step = 0
        self.first: tuple[int, int, list[tuple[int, int]]] | None = None
        self.backwards_at_begin = self.backwards_at_end = 0
        self.given = self.received = 0
        self.exhausted = False
        self.begin_step(-1)

    def begin_step(self, step: int) -> None:
        """Reset the batches and times for this step; ``step`` counts from 0."""
        self.step = step
        self.batches = 0
        self.wait_s = 0.0
        self.carried_s = 0.0
        if self.carried_segments:
            self.carried_segments = []
        self.without_grad = False
        self.in_eval_mode = False
        self.spent = False
        self.dropped = False

    def add(self, size: int) -> None:
        """Add a batch of ``size`` indices, of padding and of what did not arrive (Short) too."""
        self.batches += 1
        self.sizes.append(size)

    def is_drawn(self, step: int) -> bool:
        """Return True if it yielded a batch for this step."""
        return self.step == step and self.batches > 0

    def take(self, left: int = 0) -> list[tuple[int, int]]:
        """Remove and return the samples and the other indices of each batch, except the last ``left`` ones."""
        taken = []
        for _ in range(len(self.sizes) - left):
            size = self.sizes.popleft()
            self.position += size
            others = min(self._padding(size) + getattr(size, "left_out", 0), size)
            taken.append((size - others, others))
        return taken

    def give_back(self, samples: int, others: int) -> None:
        """Put back the batch that was taken last."""
        size = Short(samples + others)
        size.left_out = others - self._padding(size)
        self.position -= size
        self.sizes.appendleft(size)

    def _padding(self, size: int) -> int:
        """Return the padding in a batch of ``size`` indices that ends at the position."""
        return min(max(self.position - self.real_samples, 0), size)


def training(pending: Sequence[Loop], loader_expected: bool) -> list[Loop]:
    """Return the training passes among those that yielded for this step.

    loader_expected: False if the user set samples_per_step (no DataLoader); then a pass that is over
    without a step does not count.
    """
    if len(pending) == 1 and loader_expected and not pending[0].without_grad:
        return [pending[0]]
    loops = [loop for loop in pending if not loop.without_grad]
    if not loader_expected:
        loops = [loop for loop in loops if loop.living or loop.stepped]
    if len(loops) < 2:
        return loops
    loops = [loop for loop in loops if not loop.in_eval_mode] or loops
    loops = [loop for loop in loops if not loop.dropped]
    living = [loop for loop in loops if loop.living]
    if not living:
        return [loop for loop in loops if loop.stepped] or loops[-1:]
    return [loop for loop in loops if loop.living or is_remainder(loop, living)]


def is_remainder(loop: Loop, living: Sequence[Loop]) -> bool:
    """Return True if this finished pass trained and a living one over the same loader continues its step."""
    loader = loop.loader()
    return loop.stepped and loader is not None and any(other.loader() is loader for other in living)
