from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory, read_json, write_atomically, write_json
from ddp_ladder.records.assemble import assemble, not_run
from ddp_ladder.records.failures import PORT_TAKEN
from ddp_ladder.records.fingerprint import OWN_DIRECTORY_ADVICE
from ddp_ladder.records.record import Failure
from ddp_ladder.records.timing import WHOLE_LOOP
from make_records import make_spec
from make_runs import STEPS, edit, edit_agent, edit_rank, failure_of, read_steps, reassemble, write_run, write_steps


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, make_spec("1x2"), samples_per_s=1600.0)


def test_a_good_run(run: RunDirectory) -> None:
    record = assemble(run)
    assert (record.status, record.failure) == ("ok", None)
    assert record.spec == make_spec("1x2")
    assert record.spec_hash == make_spec("1x2").hash
    assert record.job
    assert (record.job.id, record.job.attempt) == ("local-1x2", 1)
    assert (record.world.size, record.world.backend, record.world.hosts) == (2, "gloo", ("node0",))
    assert record.throughput
    assert record.throughput.samples_per_s == pytest.approx(1600, rel=0.01)
    assert record.timing
    assert record.timing.measured_steps == STEPS - 10
    assert record.timing.wall_s == pytest.approx(STEPS * 128 / 1600 + 5)
    assert record.timing.startup_s == 4.2
    assert record.timing.exposed_comm_fraction == pytest.approx(0.001 / 0.08, rel=0.02)
    assert [rank.ddp and (rank.ddp.samples, rank.ddp.exposed_comm_s) for rank in record.ranks] == [(7, 0.001)] * 2
    rank = record.ranks[1]
    assert (rank.rank, rank.steps, rank.samples, rank.padding_samples) == (1, 60, 3840, 0)
    assert rank.data_wait_fraction == pytest.approx(0.02, rel=1e-3)
    assert record.fingerprint["batch_per_gpu"] == 64
    assert [check.name for check in record.checks] == [
        "complete", "exit codes", "world size", "placement", "ranks agree",
        "distinct devices", "disjoint data", "finite", "equal parameters", "equal steps",
        "order of samples", "backend", "enough steps", "samples seen",
    ]  # fmt: skip
    assert all(check.ok for check in record.checks)


def test_the_warm_up_lasts_until_the_steps_are_steady_on_every_rank(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2"), samples_per_s=1600.0, steps=200, wobble=0)
    rows = read_steps(run, 1)
    for index, row in enumerate(rows[:40]):
        row[3] = f"{0.08 * (3 - index / 40 + index // 5 % 2):.9f}"
    write_steps(run, 1, rows)
    record = assemble(run)
    assert record.timing
    assert (record.timing.warmup_steps, record.timing.warmup_stable, record.timing.measured_steps) == (40, True, 160)
    assert record.throughput
    assert record.throughput.samples_per_s_total == pytest.approx(1600)
    assert record.throughput.samples_per_s_end_to_end == pytest.approx(2 * 199 * 64 / 16.4)
    assert record.ranks[1].step_time_s == pytest.approx(0.08)


def test_padding_is_counted_and_is_not_throughput(run: RunDirectory) -> None:
    for rank in (0, 1):
        rows = read_steps(run, rank)
        for row in rows:
            row[1:3] = ["48", "16"]
        write_steps(run, rank, rows)
    record = assemble(run)
    assert record.throughput
    assert record.throughput.samples_per_s == pytest.approx(1200, rel=0.01)
    assert (record.ranks[0].samples, record.ranks[0].padding_samples) == (48 * 60, 16 * 60)


def _rank(rank: int, **values: Any) -> Callable[[RunDirectory], None]:
    return lambda run: edit_rank(run, rank, **values)


def _node(node: int, **values: Any) -> Callable[[RunDirectory], None]:
    return lambda run: edit_agent(run, node, **values)


def _all(*parts: Callable[[RunDirectory], Any]) -> Callable[[RunDirectory], None]:
    def spoil(run: RunDirectory) -> None:
        for part in parts:
            part(run)

    return spoil


def _raised(rank: int, exception: str) -> Callable[[RunDirectory], None]:
    return _rank(rank, exit_code=1, ended_by="exception", exception=exception)


LAST_LINE = "; the last line that was printed: epoch 1: accuracy 0.97"
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1234"
SHORT = "at least 40 on every rank (measure.warmup_steps + measure.min_steps), equally many"


@pytest.mark.parametrize(
    ("made", "ended_by", "advice"),
    [
        (25, "script", "train longer (more epochs or data in workload.args), or lower measure.min_steps to 15 or less"),
        (25, "max_seconds", "raise measure.max_seconds, or lower measure.min_steps to 15 or less"),
        (8, "script", "train longer (more epochs or data in workload.args), or lower measure.warmup_steps and "
         "measure.min_steps to 8 or less together"),
    ],
)  # fmt: skip
def test_too_few_steps_name_the_key(tmp_path: Path, made: int, ended_by: str, advice: str) -> None:
    run = write_run(tmp_path, make_spec("1x2", max_seconds=9.0))
    for k in (0, 1):
        write_steps(run, k, read_steps(run, k)[:made])
        _rank(k, ended_by=ended_by)(run)
    wanted = f"measured {made} optimizer steps, wanted {SHORT}"
    assert reassemble(run).failure == Failure(
        verdict="enough steps",
        why=wanted,
        next=f"{advice} in config.yaml, and start snakemake again\n{OWN_DIRECTORY_ADVICE}",
    )


@pytest.mark.parametrize(
    ("until", "measured"),
    [
        (0, "none on rank 0, 1"),
        (40, "none in 4 of 10 blocks of steps"),  # data kept after the first epoch
    ],
)
def test_without_a_loader_of_torch_there_is_advice(run: RunDirectory, until: int, measured: str) -> None:
    for k in (0, 1):
        rows = [row if int(row[0]) <= until else [row[0], "0", *row[2:]] for row in read_steps(run, k)]
        write_steps(run, k, rows)
    failure = failure_of(run)
    assert failure.verdict == "samples seen"
    assert failure.why == (
        f"measured {measured}, wanted training batches from a torch DataLoader on every rank, all the time"
    )
    assert failure.next.startswith("set workload.samples_per_step in config.yaml")
    assert "DDP_LADDER_METRICS" in failure.next


@pytest.mark.parametrize(
    ("named", "verdict", "why"),
    [
        ("port: 12355, ", "the script's port is taken",
         "another process listens on port 12355, which the script has chosen"),
        ("", PORT_TAKEN, "another process listens on port {port} of {host}"),
    ],
)  # fmt: skip
def test_a_port_in_use_is_named(run: RunDirectory, named: str, verdict: str, why: str) -> None:
    said = (
        f"DistNetworkError: The server socket has failed. {named}useIpv6: false, code: -98, name: EADDRINUSE, message"
    )
    _all(_raised(0, said), _raised(1, LOST), _node(0, exit_code=1))(run)
    failure = failure_of(run)
    assert (failure.verdict, failure.why) == (verdict, why.format(**read_json(run.run)["rendezvous"]))


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_was_told_to_stop_and_saved_its_state_has_a_verdict_of_its_own(run: RunDirectory, code: int) -> None:
    """Exit code 75. The launcher's own is 1; a peer that lost the connection meanwhile is none of the cause."""
    _all(_rank(1, exit_code=75), _node(0, exit_code=code))(run)
    if code:
        _raised(0, LOST)(run)
    record = reassemble(run)
    assert record.status == "failed"
    assert record.failure
    assert record.failure.verdict == "stopped by a signal, saved its state"
    assert record.failure.why == "rank 1: exit code 75 after 60 steps, which says: saved, try again"
    assert "start snakemake again" in record.failure.next


def test_the_time_limit_is_told_before_what_it_caused(run: RunDirectory) -> None:
    edit(run.ended, lambda end: end.update(outcome="time limit"))
    _all(_raised(0, LOST), _node(0, exit_code=-15, signal="SIGTERM"))(run)
    assert assemble(run).failure == Failure(
        verdict="time limit",
        why="the job of scale 1x2 reached its stages.stage2.runtime, or the end of the allocation that it runs in",
        next="raise stages.stage2.runtime or ask for a longer allocation, or shorten the run with measure.max_steps or "
        "measure.max_seconds",
    )


def test_a_network_that_could_not_be_set_up_names_key_and_node(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("2x1"))
    message = "network.interface: no interface ib7 with an IPv4 address on node1; there are lo, eth0"
    _node(1, exit_code=1, error=message, argv=[])(run)
    failure = failure_of(run)
    assert failure.verdict == "software or network could not be set up"
    assert failure.why == f"node 1 (node1): {message}"
    assert failure.next.startswith("correct network.interface in cluster.yaml or in the variant")


@pytest.mark.parametrize(("steps", "verdict"), [(12, "enough steps"), (0, "no training step was seen")])
def test_few_steps_may_be_those_after_a_checkpoint_of_another_run(tmp_path: Path, steps: int, verdict: str) -> None:
    failure = assemble(write_run(tmp_path, make_spec("1x2"), steps=steps)).failure
    assert failure is not None
    assert failure.verdict == verdict
    assert 'workload.directory: "{run_dir}"' in failure.next


def test_a_step_that_never_began(tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("1x2"))
    for path in (run.ranks, run.nodes):
        shutil.rmtree(path)
    failure = failure_of(run)
    assert (failure.verdict, failure.why) == ("the launcher failed", "no agent left an end record")
    assert str(run.log) in failure.next
    write_atomically(run.launcher_log, "srun: job 7\nsrun: error: Unable to create step for job 7: Invalid\n")
    failure = failure_of(run)
    assert failure.verdict == "srun could not start the agents"
    assert failure.why == "Slurm refused the job step: Invalid"


@pytest.mark.parametrize(
    "words",
    [
        # Slurm 22.05.8 with JobAcctGatherParams=OverMemoryKill
        "slurmstepd-node1: error: Step 7.1 exceeded memory limit (3000000 > 2000), being killed",
        # as its documentation has it, with control groups
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.1. Some of the step tasks have been OOM Killed.",
        "srun: error: node1: task 0: Out Of Memory",
    ],
)
def test_too_little_memory_is_told_before_what_it_caused(run: RunDirectory, words: str) -> None:
    _all(_raised(0, LOST), _node(0, exit_code=1))(run)
    write_atomically(run.launcher_log, f"{words}\nsrun: error: node1: task 0: Killed\n")
    failure = failure_of(run)
    assert failure.verdict == "out of memory"
    assert [each.line for each in failure.evidence] == [words]
    assert failure.node == (None if "stepd:" in words else "node1")
    assert "node.memory_mb" in failure.next


def test_ranks_that_could_not_write_their_records_are_no_failed_training(run: RunDirectory) -> None:
    (run.ranks / "rank1.json").unlink()
    write_json(run.ranks / "rank1.unwritten", {"host": "node1", "error": "OSError: No space left on device"})
    failure = failure_of(run)
    assert failure.verdict == "the records could not be written"
    assert failure.why == "rank 1 (node1): OSError: No space left on device"
    assert f"df -h {run.path}" in failure.next


def test_a_failed_run_keeps_the_figures_that_it_has(run: RunDirectory) -> None:
    _rank(1, exit_code=3)(run)
    record = assemble(run)
    assert record.status == "failed"
    assert record.throughput
    (run.ranks / "rank1.json").unlink()
    record = assemble(run)
    assert (record.throughput, record.timing) == (None, None)
    assert [rank.rank for rank in record.ranks] == [0]


def test_nothing_but_run_json(run: RunDirectory) -> None:
    for path in (run.ranks, run.nodes):
        shutil.rmtree(path)
    run.ended.unlink()
    record = reassemble(run)
    assert record.failure
    assert record.failure.verdict == "complete"
    assert record.fingerprint == {}
    assert not any(check.ok for check in record.checks)


def test_run_json_whose_spec_was_edited(run: RunDirectory) -> None:
    edit(run.run, lambda data: data["spec"].update(seed=99))
    with pytest.raises(ValueError, match="spec_hash is not that of its spec"):
        assemble(run)


def test_a_run_left_out_is_accounted_for() -> None:
    record = not_run(make_spec("1x2"), "ring failed", "see its records")
    assert (record.status, record.job) == ("failed", None)
    assert record.failure == Failure(verdict="not run", why="ring failed", next="see its records")
    assert json.loads(json.dumps(record.model_dump()))["spec_hash"] == make_spec("1x2").hash


def test_time_in_no_step_is_remarked(run: RunDirectory) -> None:
    """As long as the steps themselves, in eval mode every 8 steps, before each of which it ends."""
    for rank in (0, 1):
        rows = read_steps(run, rank)
        spans, ended_s = [], 0.0
        for index, row in enumerate(rows):
            if index % 8 == 0:
                spans.append((ended_s, ended_s + 0.64))
                ended_s += 0.64
            ended_s += float(row[3])
            row.append(f"{ended_s:.3f}")
        write_steps(run, rank, rows)
        phases = {"epoch_steps": [], "validations_s": spans, "without_a_pass_s": spans}
        edit(run.ranks / f"rank{rank}.json", lambda end, phases=phases: end.update(phases=phases))
    (remark,) = assemble(run).remarks
    assert remark.name == WHOLE_LOOP
    assert "samples / time of the whole loop is 879 samples/s" in remark.what
