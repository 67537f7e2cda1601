"""Scripts that train wrongly, really run on two ranks: the gate is closed and names what to change in the script.

What may well be meant leaves the gate open and is remarked on.
"""

from __future__ import annotations

import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.gates.gate import Verdict, judge, outcome_line
from ddp_ladder.records.record import Record
from make_runs import edit, reassemble, write_ladder
from scripts_support import SCRIPTS, warmed
from warm import RankRan, Warm


@dataclass(frozen=True)
class Judged:
    """What became of one script: its record, and the gate's verdict on it."""

    record: Record
    verdict: Verdict
    ranks: list[RankRan]


warm = warmed("torch", "torch._dynamo", "numpy")


def judged(warm: Warm, results: Path, how: str, epochs: int = 1) -> Judged:
    """Put what the script's two ranks really left in the place of a good run, and judge its stage."""
    plan = write_ladder(
        results,
        scales=("1x1", "1x2"),
        repeats=1,
        min_efficiency=None,
        warmup_steps=2,
        min_steps=10,
        batch_per_gpu=8,
        script=str(SCRIPTS / "wrong.py"),
        args=(how,),
    )
    spec = next(spec for spec in plan.runs if spec.world_size == 2)
    run = RunDirectory(results / "runs" / spec.name)
    shutil.rmtree(run.ranks)
    began_s = time.time()
    variables = {"DDP_LADDER_RUN": str(run.run), "EPOCHS": str(epochs), "GROUP_RANK": "0"}
    ranks = warm.run(results, [str(SCRIPTS / "wrong.py"), how], 2, **variables)
    code = max(rank.code for rank in ranks)
    here, times = {"host": socket.gethostname()}, {"ended_at_s": time.time()}
    edit(run.agent_end(Agent(0, None)), lambda end: end.update(exit_code=code, launched_at_s=began_s, **times, **here))
    edit(run.ended, lambda ended: ended.update(started_at_s=began_s, **times, **here))
    return Judged(reassemble(run), judge(plan, "stage2", results), ranks)


def words(judged: Judged) -> str:
    data = judged.verdict.model_dump()
    return f"{data['why']} | {data['next']}"


WRONG = {
    "no ddp": (
        "the model is not wrapped in DistributedDataParallel",
        "rank 1 differs from rank 0 in 4 of 4: 0, 1, 2 and 1 more",
        "model = DistributedDataParallel(model)",
    ),
    "ignored": (
        "the ranks ended with different parameters",
        "rank 1 differs from rank 0 in 2 of 4: 2.weight, 2.bias",
        "set to be ignored",
    ),
    "stepped in hooks": (
        "the ranks ended with different parameters",
        "rank 1 differs from rank 0 in 4 of 4",
        "in a hook of the backward pass (register_post_accumulate_grad_hook)",
    ),
    "no sampler": (
        "ranks train on the same data",
        "ranks 0 and 1 share 100 % of their first samples (training loader with RandomSampler)",
        "sampler=DistributedSampler(dataset) in place of shuffle=True",
    ),
    "tensor parallel, same samples": (
        "ranks train on the same data",
        "ranks 0 and 1 share 100 % of their first samples",
        "with parts of one model (tensor parallelism)",
    ),
    "same stream": (
        "ranks train on the same data",
        "ranks 0 and 1 share 100 % of their first samples",
        "in an IterableDataset by torch.distributed.get_rank()",
    ),
    "nan": (
        "the training diverged",
        "rank 0: not finite: 4 of 4 parameters at the end (0.weight, 0.bias, 2.weight and 1 more)",
        "lower the learning rate",
    ),
    "breaks early": (
        "a rank left the others",
        "rank 1 ended after 13 steps; rank 0 had made 13 and waited for it",
        "let every rank make the same number of steps",
    ),
    "saves on rank 0": (
        "a rank left the others",
        "rank 1 ended after 24 steps; rank 0 had made 24 and waited for it",
        "let every rank make the same collective calls",
    ),
    "waits elsewhere": (
        "the ranks waited for each other",
        "rank 0 after 13 steps: ",
        "one of them makes a call (barrier, all_reduce, broadcast)",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_the_gate_is_closed_and_names_the_cause(warm: Warm, tmp_path: Path, how: str) -> None:
    verdict, why, next_step = WRONG[how]
    ran = judged(warm, tmp_path, how)
    assert ran.record.failure is not None, ran.record.checks
    assert ran.record.failure.verdict == verdict
    assert why in ran.record.failure.why
    assert not ran.verdict.is_open
    assert verdict in words(ran)
    assert why in words(ran)
    assert next_step in words(ran)


@pytest.mark.parametrize("how", ["no set_epoch", "one epoch for all"])
def test_without_set_epoch_every_epoch_has_the_same_order(warm: Warm, tmp_path: Path, how: str) -> None:
    ran = judged(warm, tmp_path, how, epochs=2)
    assert not ran.verdict.is_open
    assert "every epoch has the same order: DistributedSampler shuffles" in words(ran)
    assert "but set_epoch was not called, or only with 0, in 2 whole passes over the training data" in words(ran)
    assert "call sampler.set_epoch(epoch) at the beginning of each epoch" in words(ran)


MEANT = {  # epochs, remark
    "right": (2, ""),
    "no set_epoch, in buckets": (2, ""),  # a sampler that may order by itself
    "own stream": (1, ""),
    "no set_epoch": (1, ""),
    "own seeds": (1, "the sampler (RandomSampler) does not divide the data between the ranks"),
}


@pytest.mark.parametrize("how", MEANT)
def test_what_may_be_meant_is_remarked_on(warm: Warm, tmp_path: Path, how: str) -> None:
    epochs, wanted = MEANT[how]
    ran = judged(warm, tmp_path, how, epochs)
    assert ran.record.failure is None
    assert ran.verdict.is_open
    in_line = "DistributedSampler(dataset) in place of shuffle=True" in outcome_line(ran.verdict)
    assert in_line == (how == "own seeds")
    # A busy machine may hold up a rank.
    said = [remark.measured for remark in ran.record.remarks if remark.kind != "one rank alone"]
    assert bool(said) == bool(wanted)
    assert any(wanted in what for what in said) or not wanted
    shown = [finding.measured for finding in ran.verdict.judged if finding.ok]
    notes = [point.note for point in ran.verdict.points if point.world_size == 2]
    assert all(what in shown and what in notes[0] for what in said)
    fingerprint = ran.record.fingerprint
    assert fingerprint.batch_per_gpu == (16 if how == "own seeds" else 8)
    assert (fingerprint.global_batch, fingerprint.gradient_bytes) == (2 * fingerprint.batch_per_gpu, 4 * 49)
    assert (fingerprint.bucket_bytes, fingerprint.compiled_graphs, fingerprint.optimizer) == ((196,), 0, "SGD")
    assert set(fingerprint.sources or ()) == {"wrong.py"}
