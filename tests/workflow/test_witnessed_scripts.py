"""Scripts whose batches one run follows before they are measured."""

from __future__ import annotations

from ddp_ladder.plan.plan import WitnessLimits
from ddp_ladder.records.record import Record
from ddp_ladder.records.witness import Witness, read_witness, witness_file
from one_run import Here

LIMITS = WitnessLimits(steps=30, seconds=60)
TRAINS = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import DataLoader

torch.manual_seed(0)
is_followed = _get_current_dispatch_mode() is not None
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x in DataLoader(torch.randn(6400, 4), 64):
        {before}
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""
OUT_OF_MEMORY = 'raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")'


def followed(here: Here, before: str) -> tuple[Record, Witness]:
    """Make a run of the script, and the one before it that follows its batches; return its record, and the witness."""
    (record,) = here.runs(TRAINS.format(before=before), "1x1", [{}], witness=LIMITS)
    witness = read_witness(witness_file(here.path, "default"))
    assert witness is not None
    assert record.witness is not None
    assert record.witness.status == witness.status
    return record, witness


def test_rows_that_are_left_out_are_not_counted(here: Here) -> None:
    """The rules count all that is drawn."""
    record, witness = followed(here, "x = x[:16]")
    assert record.status == "ok", record.failure
    (place,) = witness.places
    assert (witness.status, witness.steps, place.samples, place.samples_trained) == ("differs", 30, 1920, 480)
    assert place.lines[0] == f"{here.path}/train.py:11"
    assert (record.ranks[0].samples, record.fingerprint.batch_per_gpu) == (3200, 16)
    assert "the samples are those that the witness run saw" in " ".join(remark.measured for remark in record.remarks)


def test_a_script_that_needs_more_memory_while_it_is_followed_is_measured_as_without_a_witness(here: Here) -> None:
    record, witness = followed(here, f"if is_followed and model.weight.grad is not None: {OUT_OF_MEMORY}")
    assert (witness.status, witness.steps, witness.places) == ("not followed", 0, ())
    assert "CUDA out of memory" in witness.why
    assert record.status == "ok", record.failure
    assert record.ranks[0].samples == 12_800
