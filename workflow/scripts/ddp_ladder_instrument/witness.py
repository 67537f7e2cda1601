"""The witness: which drawn batches change a parameter, and at which step of which optimizer.

A dispatch mode sees every operator. Each tensor of a drawn batch gets that batch's tag; what an operator computes gets
the tags of its inputs; a batch is trained on if its tag is written into a parameter. Nothing is inferred from the form
of the loop.

Tags belong to ranges of bytes of storages, so that views, and rows of a buffer, have their own. Parameters and
registered buffers are sinks: tags arrive there, and what reads them gets none. Where a tag first meets what is trained
(an operator with gradients on), it becomes the tag of that step: what an optimizer, a scaler or a metric remembers of
earlier steps does not bring their batches back, and a batch that is shown again in a later step counts again.

It is slow, and what it sees it cannot time. Only the main thread is followed, and autograd's.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddp_ladder_instrument import hooks
from ddp_ladder_instrument.batch_sizes import tensors_of
from ddp_ladder_instrument.files import one_line
from ddp_ladder_instrument.flops import BatchFlops
from ddp_ladder_instrument.loader_hooks import LoaderHooks
from ddp_ladder_instrument.places import frame_outside
from ddp_ladder_instrument.samplers import LoaderPass
from ddp_ladder_instrument.testimony import (
    CLOSURE,
    MANUAL,
    MIXED,
    NO_BATCH,
    NO_TENSORS,
    ROWS,
    UNSEEN,
    Drawn,
    Step,
    Tokens,
    content,
    training_steps,
)

RAW = -1
WHOLE = (0.0, 1.0)
MOST_RANGES = 512
"""Ranges of one storage that are kept apart; a storage with more of them is one range."""
PROBED = 64
"""Elements of a parameter that are compared before and after a step."""
CLEAN_EVERY = 4096  # storages
IGNORED = -100
"""The label that torch's losses ignore by default."""
OVERWRITING = {
    "copy_", "zero_", "fill_", "set_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
    "_foreach_copy_", "_foreach_zero_",
}  # fmt: skip
SELECTING = {"index", "index_select", "topk", "masked_select", "take"}
"""Operators whose result may have fewer rows, chosen by what the data say."""
OF_SCALER = "_amp_update_scale_"
"""The scale that a GradScaler adapts is no data: it would bring back the batches of steps that were skipped."""


class Tag(NamedTuple):
    """That a value depends on a batch.

    step: RAW until it meets what is trained. is_input: it met a parameter itself there; a target meets only what the
    model has computed. part: the rows from a first to a last share of the batch; or the number of a selection of
    rows (from 2 on), and its share.
    """

    batch: int
    step: int
    is_input: bool
    part: tuple[float, float]


Tags = frozenset[Tag]
NONE: Tags = frozenset()


class Range(NamedTuple):
    """Bytes of a storage with the same tags. row: bytes of a row of a batch, if its rows are there; 0: they are not."""

    begin: int
    end: int
    tags: Tags
    row: int


class Running(NamedTuple):
    """A step that an optimizer makes, the frame that makes it, and its parameters with what was in them before."""

    optimizer: int
    frame: FrameType
    probes: list[tuple[torch.Tensor, list[float]]]

    def is_over(self) -> bool:
        """Return True if it is not among the calls that lead here: it has raised."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None


class Tagged:
    """The tags of a storage."""

    def __init__(self, storage: Any) -> None:
        self.ref = StorageWeakRef(storage)  # while it is held, no other storage gets this address
        self.ranges: list[Range] = []

    def read(self, begin: int, end: int) -> Tags:
        return NONE.union(*(_rows(each, begin, end) for each in self.ranges if each.begin < end and begin < each.end))

    def write(self, new: Range, replaces: bool, read: Tags = NONE) -> None:
        """read: what new was made of; its bytes need no other range that has no more than that."""
        if replaces:
            self.ranges = [
                each if (begin, end) == each[:2] else Range(begin, end, each.tags, 0)
                for each in self.ranges
                for begin, end in ((each.begin, min(each.end, new.begin)), (max(each.begin, new.end), each.end))
                if begin < end
            ]
        else:
            self.ranges = [
                each for each in self.ranges if each.begin < new.begin or new.end < each.end or not each.tags <= read
            ]
        if new.tags:
            self.ranges.append(new)
        if len(self.ranges) > MOST_RANGES:
            begin, end = min(each.begin for each in self.ranges), max(each.end for each in self.ranges)
            self.ranges = [Range(begin, end, NONE.union(*(each.tags for each in self.ranges)), 0)]


def _rows(held: Range, begin: int, end: int) -> Tags:
    """Return the tags of a range, those of whole batches with the rows that lie in these bytes."""
    if not held.row or (begin <= held.begin and held.end <= end):
        return held.tags
    rows = (held.end - held.begin) // held.row
    first = max(0, begin - held.begin) // held.row
    last = -((held.begin - min(end, held.end)) // held.row)
    part = first / rows, last / rows
    return frozenset(tag._replace(part=part) if tag.part == WHOLE else tag for tag in held.tags)


class Witness:
    """What has been seen so far. The hooks call drawn, before_step, after_step and see_module."""

    def __init__(self) -> None:
        self.batches: list[Drawn] = []
        self.steps: list[Step] = []
        self.doubts: Counter[str] = Counter()
        self.not_followed: Counter[str] = Counter()
        self.flops = BatchFlops()
        self.mode = Follow(self)
        self.is_over = False
        self._tagged: dict[int, Tagged] = {}
        self._sinks: dict[int, tuple[StorageWeakRef, bool]] = {}  # True: of a parameter; False: of a buffer
        self._reduced: dict[int, StorageWeakRef] = {}  # written by collectives
        self._plans: dict[Any, Plan] = {}
        self._now = 0  # steps of all optimizers so far
        self._selections = 1
        self._running: list[Running] = []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._since: dict[int, int] = {}  # the value of _now after each optimizer's last step
        self._arrived: dict[int, set[Tag]] = {}
        self._wrote: set[int] = set()  # optimizers whose parameters were written since their last step
        self._known: dict[int, set[tuple[int, int]]] = {}  # batches and steps that each optimizer has counted
        self._counted: dict[int, set[tuple[int, int]]] = {}  # by each optimizer at its last step
        self._settled: set[tuple[int, int]] = set()  # counted by all, before the last step of one of them
        self._written: set[int] = set()  # storages of parameters that were written since the last step

    def watch(self, loaders: LoaderHooks) -> None:
        """See all operators of this thread from now on, all optimizers' steps, and what loaders yield."""

        def draw(pass_: LoaderPass, batch: object, size: int) -> None:
            with torch.utils._python_dispatch._disable_current_modes():
                tokens = _tokens(batch)
            self.drawn(Drawn(pass_.number, pass_.place, size, tokens), batch)

        def seen(do: Callable[[Any], None]) -> Callable[..., None]:
            return lambda thing, *_: None if self.is_over else do(thing)

        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # later versions compile nothing under a mode
        loaders.on_draw = draw
        hooks.patch_before_steps(seen(self.before_step))
        hooks.patch_optimizers(seen(self.after_step))
        torch.nn.modules.module.register_module_forward_pre_hook(seen(self.see_module))
        self.mode.__enter__()  # type: ignore[no-untyped-call]

    # What the hooks tell

    def drawn(self, drawn: Drawn, batch: object) -> None:
        """Tag the tensors of a batch that was drawn."""
        tags = frozenset({Tag(len(self.batches), RAW, False, WHOLE)})
        self.batches.append(drawn)
        tensors = [*tensors_of(batch)]
        for tensor in tensors:
            self._put(tensor, tags, True)
        self.doubts[NO_TENSORS] += not tensors
        self._forget_raised()
        self.doubts[CLOSURE] += bool(self._running)

    def before_step(self, optimizer: Any) -> None:
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        self._arrived.pop(number, None)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in parameters:
            self.add_sink(parameter, True)
        probes = [(part, _probe(part)) for parameter in parameters for part in _parts(parameter) if part.numel()]
        self._forget_raised()
        self._running.append(Running(number, frame_outside(), probes))

    def after_step(self, optimizer: Any) -> None:
        self._forget_raised()
        number, _, probes = self._running.pop()
        for part, before in probes:
            if part.untyped_storage()._cdata not in self._written and _probe(part) != before:
                self.not_followed[UNSEEN] += 1
        self._written.clear()
        self._end_step(number)

    def _forget_raised(self) -> None:
        while self._running and self._running[-1].is_over():
            self._running.pop()

    def see_module(self, module: Any) -> None:
        """Note the buffers of a module whose forward pass begins; a move to a device has given them other storages."""
        for buffer in module._buffers.values():
            if buffer is not None:
                self.add_sink(buffer, False)

    def testimony(self) -> dict[str, Any]:
        """Return what has been seen, as the content of a file; see no more."""
        if not self.is_over:
            self.is_over = True
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if MANUAL in self._wrote:
            self._end_step(MANUAL)
        training = training_steps(self.batches, self.steps)
        told = content(self.batches, self.steps, training, self.doubts, self.not_followed)
        return {**told, "flops": self.flops.summary(training)}

    def _end_step(self, number: int) -> None:
        arrived = self._arrived.pop(number, set())
        since, self._now = self._since.get(number, 0), self._now + 1
        self._since[number] = self._now
        if number not in self._wrote:
            return
        self._wrote.discard(number)
        known = self._known.setdefault(number, set())
        current = [tag for tag in arrived if tag.step >= since]
        # Else gradients that were held back for a step, or made without autograd.
        current = current or [tag for tag in arrived if (tag.batch, tag.step) not in known]
        self._settled |= self._counted.get(number, set()).intersection(*self._known.values())
        self._counted[number] = {(tag.batch, tag.step) for tag in current}
        known |= self._counted[number]
        inputs = [tag for tag in current if tag.is_input] or current
        shares = {
            batch: _share(
                {tag.part for tag in inputs if tag.batch == batch}, {t.part for t in current if t.batch == batch}
            )
            for batch in {tag.batch for tag in inputs}
        }
        if not shares:
            if number != MANUAL:
                self.doubts[NO_BATCH] += 1
            return
        before = {batch for step in self.steps if step.optimizer == number for batch in step.samples}
        self.doubts[MIXED] += bool(before & set(shares)) and not before >= set(shares)
        self.doubts[ROWS] += any(tag.part[0] > 1 and tag.part[1] < 0 for tag in current)
        samples = {batch: share * self.batches[batch].samples for batch, share in sorted(shares.items())}
        targets = frozenset(tag.batch for tag in current) - set(shares)
        self.steps.append(Step(number, samples, targets))

    # Sinks

    def add_sink(self, tensor: torch.Tensor, is_parameter: bool) -> None:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            if self._sink(storage._cdata) is None:
                self._sinks[storage._cdata] = StorageWeakRef(storage), is_parameter

    def _sink(self, key: int) -> bool | None:
        """Return True if a storage holds parameters, False if it holds a buffer, None for any other one."""
        ref, is_parameter = self._sinks.get(key, (None, None))
        return None if ref is None or ref.expired() else is_parameter

    # Tags

    def _unsettled(self, tags: Tags) -> Tags:
        """Leave out what no later step can count: else momenta, and states that are carried on, gather all tags.

        In a step of an optimizer it decides alone: what it remembers is its own.
        """
        settled = self._known.get(self._running[-1].optimizer, self._settled) if self._running else self._settled
        return frozenset(tag for tag in tags if tag.step == RAW or (tag.batch, tag.step) not in settled)

    def _put(self, part: torch.Tensor, tags: Tags, replaces: bool) -> None:
        kept = self._unsettled(tags)
        for each in _parts(part):
            storage = each.untyped_storage()
            held = self._tagged.get(storage._cdata)
            if held is None or held.ref.expired():
                if not kept:
                    continue
                held = self._tagged[storage._cdata] = Tagged(storage)
                if len(self._tagged) % CLEAN_EVERY == 0:
                    self._tagged = {key: other for key, other in self._tagged.items() if not other.ref.expired()}
            begin, end, is_dense = _extent(each)
            row = self._row(each, kept) if is_dense else 0
            held.write(Range(begin, end, kept, row), replaces and is_dense, tags)

    def _row(self, tensor: torch.Tensor, tags: Tags) -> int:
        """Return the bytes of a row, if the rows of a tensor are those of one whole batch that is not yet used."""
        if len(tags) != 1 or not tensor.dim() or not tensor.is_contiguous():
            return 0
        (tag,) = tags
        has_rows = tag.step == RAW and tag.part == WHOLE and tensor.size(0) == self.batches[tag.batch].samples
        return tensor.stride(0) * tensor.element_size() if has_rows and tensor.numel() else 0

    def _get(self, tensor: torch.Tensor) -> Tags:
        """Return the tags that an operator reads, and note what is found to be a parameter."""
        sink = self._sink(tensor.untyped_storage()._cdata)
        held = None if sink is not None else self._tagged.get(tensor.untyped_storage()._cdata)
        tags = NONE if held is None or held.ref.expired() else held.read(*_extent(tensor)[:2])
        if sink is None and not tags and tensor.requires_grad and tensor.is_leaf:
            self.add_sink(tensor, True)
        return tags

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Hand the tags of an operator's inputs on to what it has written."""
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = Plan(func)
        if plan.is_left_out or _skips(kwargs):
            return
        written = plan.written(args, kwargs)
        inputs = [part for leaf in tree_leaves((args, kwargs)) for part in _parts(leaf)]
        overwrites = plan.overwrites(written, inputs)
        replaced = {id(tensor) for tensor in written} if overwrites else ()
        read = [tensor for tensor in inputs if id(tensor) not in replaced]
        tags = NONE.union(*(self._get(tensor) for tensor in read))
        self.flops.add(func, args, kwargs, out, {tag.batch for tag in tags})
        if tags:
            tags = self._of_step(plan, tags, read, out)
        for tensor in written:
            key = tensor.untyped_storage()._cdata
            # Gloo copies what it has reduced from a buffer of its own, when somebody waits for it.
            if plan.name == "copy_" and not tags and key in self._reduced and not self._reduced[key].expired():
                continue
            self._write(tensor, tags, overwrites)
            if plan.is_collective:
                self._reduced[key] = StorageWeakRef(tensor.untyped_storage())
        storages = {tensor.untyped_storage()._cdata for tensor in inputs}
        for tensor in (part for leaf in tree_leaves(out) for part in _parts(leaf)):
            if tensor.untyped_storage()._cdata not in storages:
                self._write(tensor, tags, True)

    def _of_step(self, plan: Plan, tags: Tags, read: Sequence[torch.Tensor], out: Any) -> Tags:
        """Return the tags of a result: those that meet what is trained are of the running step from then on."""
        if plan.name in SELECTING:  # what chooses the rows is no part of them
            tags = self._selected(self._get(read[0]), read[0], out)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in read):
            if MANUAL in self._wrote:
                self._end_step(MANUAL)
            meets = any(t.requires_grad and self._sink(t.untyped_storage()._cdata) for t in read)
            tags = frozenset(tag if tag.step != RAW else tag._replace(step=self._now, is_input=meets) for tag in tags)
        met = {tag.batch for tag in tags if tag.step == self._now}
        # What is computed backwards depends once more on the values themselves.
        return frozenset(tag for tag in tags if tag.step != RAW or tag.batch not in met) if met else tags

    def _selected(self, tags: Tags, source: torch.Tensor, out: Any) -> Tags:
        """Return the tags of some rows of a batch, if it has lost any.

        Of what the model has computed, the share is negative: how much of the loss these rows are is not known.
        """
        first = next((leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)), None)
        rows, kept = (
            (source.size(0) if source.dim() else 0),
            (first.size(0) if first is not None and first.dim() else 0),
        )
        if kept >= rows:
            return tags
        self._selections += 1

        def chosen(tag: Tag) -> Tag:
            if rows != self.batches[tag.batch].samples:
                return tag
            share = kept / rows * (tag.part[1] if tag.part[0] > 1 else 1.0)
            return tag._replace(part=(float(self._selections), share if tag.step == RAW else -abs(share)))

        return frozenset(map(chosen, tags))

    def _write(self, tensor: torch.Tensor, tags: Tags, replaces: bool) -> None:
        key = tensor.untyped_storage()._cdata
        sink = self._sink(key)
        if sink is None:
            self._put(tensor, tags, replaces)
        elif sink:
            self._written.add(key)
            self._forget_raised()
            number = self._running[-1].optimizer if self._running else MANUAL
            if tags or number != MANUAL:
                self._wrote.add(number)
                self._arrived.setdefault(number, set()).update(tags)


class Plan:
    """What an operator writes, by its schema."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        space, self.name = schema.name.split("::")
        self.is_collective = space == "c10d"
        of_tensors = [number for number, argument in enumerate(schema.arguments) if "Tensor" in str(argument.type)]
        self.is_left_out = self.name == OF_SCALER or not (of_tensors or schema.returns)
        positions = [
            number
            for number in of_tensors
            if (alias := schema.arguments[number].alias_info) is not None and alias.is_write
        ]
        if self.is_collective:  # they write to the first, though their schemas do not say so
            positions = of_tensors[:1]
        self._positions = [(number, schema.arguments[number].name) for number in positions]
        is_out = any(schema.arguments[number].is_out for number in positions)
        self._overwrites = is_out or self.is_collective or self.name in OVERWRITING

    def overwrites(self, written: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Return True if what it writes does not depend on what was there: not so a collective in place."""
        return self._overwrites and not (self.is_collective and len(written) == len(inputs))

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        found = [args[number] if number < len(args) else kwargs.get(name) for number, name in self._positions]
        return [part for leaf in tree_leaves(found) for part in _parts(leaf)]


class Follow(TorchDispatchMode):
    """Let the witness see each operator."""

    supports_higher_order_operators = True

    def __init__(self, witness: Witness) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._witness = witness
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._composite: dict[Any, bool] = {}

    def _is_composite(self, func: Any) -> bool:
        known = self._composite.get(func)
        if known is None:
            key = torch._C.DispatchKey.CompositeImplicitAutograd
            known = self._composite[func] = (
                isinstance(func, torch._ops.OpOverload)
                and func is not torch.ops.prim.device.default
                and (key in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))
            )
        return known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") and kind is not FakeTensor for kind in types):
            return NotImplemented  # a DTensor and the like unfold first
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and self._is_composite(func):  # nothing has taken it apart yet
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        # What the backends of torch.distributed compute in their own threads, the collective has shown.
        is_followed = threading.get_ident() == self._thread or torch._C._current_graph_task_id() != -1
        if is_followed and not types and os.getpid() == self._process:
            try:
                self._witness.follow(func, args, kwargs, out)
            except Exception as error:
                self._witness.not_followed[f"{func}: {one_line(error)}"] += 1
        return out


def _skips(kwargs: Mapping[str, Any]) -> bool:
    """Return True for a fused optimizer's step that changes nothing, as a gradient is not finite."""
    found = kwargs.get("found_inf")
    return isinstance(found, torch.Tensor) and bool(found.item())


def _parts(tensor: Any) -> Sequence[torch.Tensor]:
    """Return the plain tensors of which a tensor is made: the local shard of a DTensor, the values of a sparse one."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta":
        return ()
    if hasattr(tensor, "__tensor_flatten__"):
        return [part for name in tensor.__tensor_flatten__()[0] for part in _parts(getattr(tensor, name))]
    if tensor.is_sparse:
        return tensor._indices(), tensor._values()
    return (tensor,) if tensor.layout is torch.strided else ()


def _extent(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """Return the bytes of its storage that a tensor covers, and whether it covers all between them."""
    size = tensor.element_size()
    begin = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return begin, begin, True
    last = sum((int(length) - 1) * int(stride) for length, stride in zip(tensor.shape, tensor.stride())) + 1
    return begin, begin + last * size, last == tensor.numel()


def _probe(tensor: torch.Tensor) -> list[float]:
    """Return some elements of a parameter."""
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        flat = tensor.detach().reshape(-1)
        values: list[float] = flat[:: max(1, flat.numel() // PROBED)].double().tolist()
        return values


def _tokens(batch: object) -> Tokens | None:
    """Return the tokens of a batch of the Hugging Face form; None for any other one."""
    if not (isinstance(batch, Mapping) and isinstance(ids := batch.get("input_ids"), torch.Tensor)):
        return None
    mask, labels = (
        value if isinstance(value, torch.Tensor) and value.shape == ids.shape else None
        for value in (batch.get("attention_mask"), batch.get("labels"))
    )
    return Tokens(
        ids.numel(),
        None if mask is None else int((mask != 0).sum()),
        None if labels is None else int((labels != IGNORED).sum()),
    )


def _share(shown: Collection[tuple[float, float]], met: Collection[tuple[float, float]]) -> float:
    """Return the share of a batch that was used, by the parts of it that were shown, and that were met in any way."""
    if WHOLE in shown:
        return 1.0
    reached = covered = 0.0
    for begin, end in sorted(part for part in met if part[0] < 1 and part != WHOLE):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    chosen = sum(share for number, share in shown if number > 1 and share > 0)
    return min(1.0, covered + chosen) or 1.0
