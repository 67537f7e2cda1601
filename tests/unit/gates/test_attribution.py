"""Where a scale's efficiency went: each cause is named first, and the parts add up to the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.common.findings import Finding, UsageKind
from ddp_ladder.gates.attribution import Attribution, Cause, attribution, baseline_of
from ddp_ladder.gates.gate import performance
from ddp_ladder.gates.points import STEP_PARTS, ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.nodes.critical_rank import Exchange
from ddp_ladder.preflight.result import PreflightResult
from ddp_ladder.records.record import Record
from ddp_ladder.settings.keys import GateThresholds
from ddp_ladder_instrument.slow_settings import REMOVE
from make_records import make_plan_of, make_record, make_specs, records_by_name, with_ranks

Seconds = Sequence[float]  # of each rank
BASE_S = 0.05  # step of the baseline: 40 ms compute, 2 ms data wait, 8 ms rest


def run_of(scale: str, step_s: float, *parts: Seconds | None, mode: str = "weak", **changes: object) -> list[Record]:
    """Return three repeats of a scale, whose step times differ by 1 %.

    parts: computation, exposed communication and data wait of the ranks; they differ likewise.
    """
    records = []
    for spec in make_specs([scale], modes=[mode]):
        factor = 1 + 0.01 * (spec.repeat - 2)
        record = make_record(spec, spec.global_batch / (step_s * factor), **changes)
        compute_s, exposed_s, data_s = (part and [factor * s for s in part] for part in parts)
        records.append(with_ranks(record, compute_s=compute_s, exposed_comm_s=exposed_s, data_wait_s=data_s))
    return records


def points(records: Sequence[Record]) -> tuple[ScalePoint, ...]:
    return scale_points([record.spec for record in records], records_by_name(records))


def baseline(mode: str = "weak") -> list[Record]:
    return run_of("1x1", BASE_S, [0.04], [0.0], [0.002], mode=mode)


def attributed(records: Sequence[Record], preflight: PreflightResult | None = None) -> tuple[ScalePoint, Attribution]:
    first, *_, point = points(records)
    return point, attribution(point, first, preflight)


def sums_up(point: ScalePoint) -> None:
    parts = [point[part] for part in STEP_PARTS]
    assert sum(part for part in parts if part is not None) == pytest.approx(point["step_time_s"], rel=1e-12)
    assert all(part is None or part >= 0 for part in parts)


# Steps of 100 ms on four ranks, of which the ideal is 50 ms: what the injected cause takes is the rest.
CAUSES: dict[Cause, tuple[list[float], list[float], list[float]]] = {
    #                 compute        exposed communication      data wait
    "communication": ([0.04] * 4, [0.051, 0.05, 0.05, 0.052], [0.002] * 4),
    "data": ([0.04] * 4, [0.002, 0.001, 0.001, 0.001], [0.05, 0.051, 0.051, 0.051]),
    "imbalance": ([0.04, 0.04, 0.089, 0.04], [0.05, 0.05, 0.001, 0.05], [0.002] * 4),
    "computation": ([0.088] * 4, [0.002, 0.001, 0.001, 0.002], [0.002] * 4),
    "rest": ([0.04] * 4, [0.001] * 4, [0.002] * 4),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_named_first_and_no_other(cause: Cause) -> None:
    records = [*baseline(), *run_of("1x4", 0.1, *CAUSES[cause])]
    point, found = attributed(records)
    sums_up(point)
    assert [loss.cause for loss in found.named] == [cause]
    assert sum(loss.lost_s for loss in found.losses) == pytest.approx(found.step_s - found.ideal_s, rel=1e-12)
    assert sum(loss.efficiency for loss in found.losses) == pytest.approx(1 - (point["efficiency"] or 0), rel=1e-9)
    assert found.unknown == ""
    assert point.gpu is None
    assert "GPU" not in "".join(change.what for change in found.changes)  # nothing that the site does not have
    assert found.in_words.startswith("of a step's 100 ms, 50.0 ms are lost: ")


def test_the_losses_that_are_listed_add_up_to_the_loss_that_is_stated() -> None:
    """Of 3.48 ms, 2.72 were listed: those below a tenth were not."""
    compute_s, exposed_s, _ = CAUSES["communication"]
    _, found = attributed([*baseline(), *run_of("1x4", 0.104, compute_s, exposed_s, [0.006] * 4)])
    assert sum(loss.lost_s for loss in found.listed) == pytest.approx(found.step_s - found.ideal_s)
    assert found.in_words.endswith("ms in smaller losses and gains together")


@pytest.mark.parametrize(("lost_s", "named"), [(0.012, ["computation"]), (0.013, ["computation", "rest"])])
def test_the_rest_is_named_from_a_quarter_of_the_loss_on(lost_s: float, named: list[Cause]) -> None:
    compute_s = 0.1 - 0.002 - 0.008 - lost_s
    _, found = attributed([*baseline(), *run_of("1x4", 0.1, [compute_s] * 4, [0.0] * 4, [0.002] * 4)])
    assert next(loss.lost_s for loss in found.losses if loss.cause == "rest") == pytest.approx(lost_s)
    assert [loss.cause for loss in found.named] == named


def test_one_slow_rank_of_two_is_imbalance() -> None:
    _, found = attributed([*baseline(), *run_of("2x1", 0.1, [0.09, 0.04], [0.0, 0.05], [0.002] * 2)])
    assert [loss.cause for loss in found.named] == ["imbalance"]
    assert found.named[0].evidence == (
        "persistent: rank 0 on node0 works 100 ms, the typical rank 50.0 ms; "
        "of it are 50.0 ms longer forward and backward passes"
    )
    assert "slurm.exclude" in found.next
    assert found.changes[0].gain == pytest.approx(1.0)


def test_what_the_baselines_rank_does_too_is_not_lost() -> None:
    """The same at 1x1, where it is in the rest: it was told as 12.5 ms of imbalance, beside a gain of as much."""
    alone = run_of("1x1", 0.0625, [0.04], [0.0], [0.002])
    _, found = attributed([*alone, *run_of("2x1", 0.064, [0.04] * 2, [0.0015, 0.014], [0.002] * 2)])
    assert [loss.cause for loss in found.listed] == ["communication"]
    assert sum(loss.lost_s for loss in found.losses) == pytest.approx(found.step_s - found.ideal_s)


PLACES = {"the same": [1, 1, 1], "another in one repeat": [1, 2, 1], "another in each": [0, 1, 2]}


@pytest.mark.parametrize("places", PLACES)
def test_only_a_rank_that_is_slow_in_every_repeat_is_left_out(places: str) -> None:
    compute_s, exposed_s = [0.04, 0.04, 0.04, 0.09], [0.05, 0.05, 0.05, 0.0]
    runs = []
    for run, slow in zip(run_of("4x1", 0.1, compute_s, exposed_s, [0.002] * 4), PLACES[places], strict=True):
        times = [[values[3] if rank == slow else values[0] for rank in range(4)] for values in (compute_s, exposed_s)]
        runs.append(with_ranks(run, compute_s=times[0], exposed_comm_s=times[1], data_wait_s=[0.002] * 4))
    point, found = attributed([*baseline(), *runs])
    assert [loss.cause for loss in found.named] == ["imbalance"]
    kind = "persistent" if places == "the same" else "varying"
    assert point.step.imbalance_kind == kind
    assert found.named[0].evidence.startswith(kind)
    advice = {"persistent": "slurm.exclude", "varying": "draw lengths or shapes together on all ranks"}
    assert [name for name, words in advice.items() if words in found.next] == [kind]


def imbalanced(repeats: int, *parts: Seconds, host: str = "") -> Attribution:
    """Return the attribution of 2x1. host: of all ranks."""
    runs = run_of("2x1", 0.1, *parts)[:repeats]
    ranks = [tuple(rank.replace(host=host or rank.host) for rank in run.ranks) for run in runs]
    return attributed([*baseline(), *(run.replace(ranks=own) for run, own in zip(runs, ranks, strict=True))])[1]


# Computation, exposed communication and data wait of two ranks.
SLOW_PASSES = ([0.09, 0.04], [0.0, 0.05], [0.002] * 2)
SLOW_DATA = ([0.04, 0.04], [0.0, 0.05], [0.052, 0.002])
SLOW_ELSEWHERE = ([0.04, 0.04], [0.0, 0.05], [0.002] * 2)


def test_a_node_is_left_out_only_if_another_one_has_ranks_and_a_second_repeat_shows_it() -> None:
    assert "slurm.exclude: node0" in imbalanced(2, *SLOW_PASSES).next
    for found in (imbalanced(1, *SLOW_PASSES), imbalanced(3, *SLOW_PASSES, host="vm")):
        assert "slurm.exclude" not in found.next
        assert found.next.startswith("give every rank the same work: rank 0 on ")


def test_advice_on_a_slow_rank_is_for_the_part_of_its_step_that_is_longer() -> None:
    assert "see why the data come later on rank 0 on node0" in imbalanced(3, *SLOW_DATA).next
    elsewhere = imbalanced(3, *SLOW_ELSEWHERE).next  # such as logging, which is no fault of its node
    assert "look at what only rank 0 on node0 does in each step outside of its data" in elsewhere
    assert "slurm.exclude" not in elsewhere


def test_a_longer_wait_for_data_is_estimated_once() -> None:
    found = imbalanced(3, [0.04, 0.04], [0.0, 0.02], [0.042, 0.022])
    assert {loss.cause for loss in found.named} == {"data", "imbalance"}
    gains = {change.what.split()[0]: change.gain for change in found.changes}
    assert (gains["give"], gains["leave"]) == (pytest.approx(0.022 / 0.078, rel=0.01), None)


@pytest.mark.parametrize(
    ("parts", "said"), [(SLOW_PASSES, "even out the ranks' work"), (SLOW_ELSEWHERE, "look at what interrupts")]
)
def test_advice_on_work_that_varies_is_for_the_part_that_varies(parts: tuple[Seconds, ...], said: str) -> None:
    runs = [run_of("2x1", 0.1, *(part[::turn] for part in parts))[0] for turn in (1, -1)]
    runs[1] = runs[1].replace(spec=runs[1].spec.replace(repeat=2))
    assert attributed([*baseline(), *runs])[1].changes[0].what.startswith(said)


def test_no_change_saves_more_than_is_lost() -> None:
    first, *_, point = points([*baseline(), *run_of("2x1", 0.1, *SLOW_PASSES)])
    found = attribution(point.having({"efficiency": 0.9}), first)  # other parts gained what this one takes
    assert found.lost_s == pytest.approx(0.01)
    assert max(change.gain or 0 for change in found.changes) == pytest.approx(0.01 / 0.09)


def test_what_ddp_does_not_report_is_said_and_not_guessed() -> None:
    point, found = attributed([*baseline(), *run_of("1x4", 0.1, (), None, [0.032] * 4)])
    sums_up(point)
    assert (point["compute_s"], point["exposed_comm_s"]) == (None, None)
    assert [loss.cause for loss in found.named] == ["data", "computation"]
    assert "communication or slower computation, which this training does not tell apart" in found.in_words
    assert found.unknown.startswith("DDP reported no times at 1x4")
    untold = next(change for change in found.changes if "DistributedDataParallel" in change.what)
    assert untold.gain is None
    assert untold.gain_in_words == "not estimated"


def test_too_few_timed_steps_are_no_times() -> None:
    """Runs of 130 steps, 10 of them warm-up: with max_steps: 130, DDP times every twelfth of 120 steps."""
    times = [0.04] * 2, [0.05] * 2, [0.002] * 2
    assert points(run_of("1x2", 0.1, *times))[0]["exposed_comm_s"] == pytest.approx(0.05)
    few = []
    for timed, untimed in zip(run_of("1x2", 0.1, *times), run_of("1x2", 0.1, (), None, times[2]), strict=True):
        ranks = tuple(rank.replace(ddp=rank.ddp and rank.ddp.replace(samples=3)) for rank in timed.ranks)
        few.append(untimed.replace(ranks=ranks))
    point, found = attributed([*baseline(), *few])
    assert point["exposed_comm_s"] is None
    assert found.unknown.startswith("DDP timed 3 steps at 1x2, and 5 are needed: communication, computation and")
    (untold,) = [change.what for change in found.changes if "DDP" in change.what]
    assert "larger measure.max_steps" in untold


def test_nothing_is_attributed_without_a_loss_or_a_ratio() -> None:
    first, point = points([*baseline(), *run_of("1x4", 0.1, *CAUSES["data"])])
    assert attribution(point, None) is None
    assert attribution(first, first) is None
    assert attribution(point.having({"efficiency": 1.01}), first) is None
    assert attribution(point.having({"efficiency": None}), first) is None
    assert baseline_of(point, (first, point)) is first


def advice_on(other: Exchange) -> str:
    """Return the changes for steps of 100 ms, of which 50 ms are communication, some of it by this kind."""
    first, point = points([*baseline(), *run_of("1x4", 0.1, *CAUSES["communication"])])
    found = attribution(replace(point, step=replace(point.step, others=(other,))), first)
    return "; ".join(change.in_words for change in found.changes)


@pytest.mark.parametrize(
    ("name", "calls", "size", "said"),
    [
        # A step that accumulates four batches sends the buffers four times.
        ("buffers", 4, 240e6, "60 MB of buffers are sent before each forward pass"),
        ("all_reduce", 1, 40e6, "all_reduce is called in each step (1 call, 40 MB): make one call"),
        ("barrier", 1, 0, "wait at a barrier in each step (1 call): remove"),
        ("barrier", 0.02, 0, "wait at a barrier in some steps (0.02 calls a step): remove"),
    ],
)
def test_another_collective_is_named_with_its_calls_and_bytes(name: str, calls: float, size: float, said: str) -> None:
    advice = advice_on(Exchange(name=name, calls=calls, bytes=size, seconds=0.04))
    assert said in advice
    assert "at most 67 % more samples/s" in advice


GRADIENTS = {"gradient_bytes": 100_000_000, "bucket_bytes": [50_000_000] * 2}


def test_changes_for_communication_with_their_estimates() -> None:
    slow = run_of("1x4", 0.1, [0.04] * 4, [0.05] * 4, [0.002] * 4, fingerprint=GRADIENTS)
    preflight = PreflightResult.model_construct(alpha_s=0.001, beta_s_per_byte=0.048 / 100e6, transport=("NET/Socket",))
    _, found = attributed([*baseline(), *slow], preflight)
    half = next(change for change in found.changes if "batch_per_gpu" in change.what)
    assert half.gain == pytest.approx(0.025 / 0.075)  # half of 50 ms saved in 100 ms
    first, *_, last = points([*baseline(), *slow])
    accumulating = attribution(replace(last, batch_per_gpu=last.batch_per_gpu // 2), first, preflight)
    assert any(change.what.startswith("raise workload.global_batch: with twice") for change in accumulating.changes)
    limit = next(change for change in found.changes if "network.interface" in change.what)
    assert "instead of sockets" in limit.what
    assert (limit.gain, limit.is_limit) == (pytest.approx(1.0), True)
    (hook,) = [change for change in found.changes if "fp16_compress_hook" in change.what]
    assert (hook.gain, hook.is_limit) == (pytest.approx(0.0255 / (0.1 - 0.0255), rel=1e-4), True)
    assert found.named[0].evidence == (
        "DDP's exchange of gradients takes 51.0 ms, of which the backward pass hides 1.00 ms; by the preflight's "
        "figures, 100 MB in 2 all-reduces take 50.0 ms, of which 2.00 ms is latency"
    )


@pytest.mark.parametrize("exchanges", [1, 4])
def test_gradients_that_are_sent_for_each_accumulated_batch_are_said(exchanges: int) -> None:
    slow = run_of("1x4", 0.1, *CAUSES["communication"], fingerprint={**GRADIENTS, "exchanges": exchanges})
    _, found = attributed([*baseline(), *slow])
    said = [change for change in found.changes if "no_sync" in change.what]
    assert [change.gain for change in said] == ([] if exchanges == 1 else [pytest.approx(0.0375 / 0.0625, rel=1e-3)])


def test_workers_that_keep_up_are_counted_from_the_wait() -> None:
    four = {"num_workers": 4}
    first = run_of("1x1", BASE_S, [0.04], [0.0], [0.002], fingerprint=four)
    _, found = attributed([*first, *run_of("1x4", 0.1, *CAUSES["data"], fingerprint=four)])
    # Four workers deliver a batch every 100 ms; training without waiting takes 49 ms.
    assert found.changes[0].what.startswith("give the script 9 loader workers per rank instead of 4 (workload.args)")
    assert found.changes[0].gain == pytest.approx(0.051 / 0.049, rel=0.02)


@pytest.mark.parametrize(
    ("cause", "kind", "is_quoted"),
    [
        ("data", "CPUs full", True),
        ("communication", "network full", True),
        ("communication", "GPU throttled", False),
        ("computation", "GPU throttled", True),
        ("computation", "too many threads", True),
        ("rest", "too many threads", True),
    ],
)
def test_the_finding_that_explains_the_largest_loss_is_quoted(cause: Cause, kind: UsageKind, is_quoted: bool) -> None:
    finding = Finding(kind=kind, severity="warning", measured="measured so", next="change it")
    first, point = points([*baseline(), *run_of("1x4", 0.1, *CAUSES[cause])])
    found = attribution(replace(point, findings=(finding,)), first)
    assert ("change it (measured so) (at most" in found.next) == is_quoted


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"])
def test_a_setting_that_slows_every_run_is_named_first_where_it_may(name: str) -> None:
    slow = {"slow_settings": [f"{name}=1"]}
    alone = run_of("1x1", BASE_S, [0.04], [0.0], [0.002], fingerprint=slow)
    records = [*alone, *run_of("1x4", 0.1, *CAUSES["communication"], fingerprint=slow)]
    on_gpus = [each.model_copy(update={"spec": each.spec.replace(device="cuda")}) for each in records]
    first, *_, point = points(on_gpus)
    """Before what it may have caused; what it does is in the remarks. Routes of NCCL: on a site with InfiniBand."""
    with_ib, without = attribution(point, first, transport="ib"), attribution(point, first)
    assert with_ib.changes[0].what == f"{REMOVE}: {name}=1"
    assert name not in without.next


PLAN = replace(make_plan_of(make_specs(["1x1", "1x4"])), gates={"stage2": GateThresholds(min_efficiency=0.8)})


def test_the_closed_gate_says_it() -> None:
    here = points([*baseline(), *run_of("1x4", 0.1, *CAUSES["communication"])])
    (finding,) = performance(PLAN, here[-1], here, Path("results"))
    assert "efficiency 50." in finding.measured
    assert "; of a step's 100 ms, 50.0 ms are lost: 50.0 ms exposed communication" in finding.measured
    assert finding.next.startswith("see whether network.interface is the fastest one")
    assert "(at most 100 % more samples/s)" in finding.next
    assert finding.next.endswith("or lower stages.stage2.gate.min_efficiency if this is good enough for you")
    assert finding.evidence[0].startswith("DDP's exchange of gradients takes 51.0 ms")
    fast = points([*baseline(), *run_of("1x4", 0.0501, *CAUSES["rest"])])
    assert [finding.evidence for finding in performance(PLAN, fast[-1], fast, Path("results"))] == [()]


@pytest.mark.parametrize("disturbed", [0, -1])
def test_other_processes_stand_before_every_other_cause(disturbed: int) -> None:
    """A busy laptop was told: 13.4 ms slower computation; set repeats: 16; fp16_compress_hook."""
    here = list(points([*baseline(), *run_of("1x4", 0.1, *CAUSES["computation"])]))
    what = "other processes than the training used 1.9 of the 2 CPUs of the run, the training 0.15"
    finding = Finding(kind="other processes", severity="warning", place="here", measured=what, next="end them")
    here[disturbed] = replace(here[disturbed], findings=(finding,))
    (found,) = performance(PLAN, here[-1], here, Path("results"))
    at = f"at {here[disturbed].scale}, here: {what}"
    assert found.measured.startswith("efficiency 50.")
    assert found.measured.partition("; ")[2] == at  # and no other cause
    assert (found.next, found.evidence) == ("end them", ())
    assert attribution(here[-1], here[0]).changes[0].what == f"end them ({at})"


def test_strong_scaling_compares_as_many_samples() -> None:
    # A quarter of the batch, in half of the time: what compute takes longer than 10 ms is lost.
    records = [*baseline(mode="strong"), *run_of("1x4", 0.025, [0.0225] * 4, [0.0] * 4, [0.0005] * 4, mode="strong")]
    point, found = attributed(records)
    sums_up(point)
    assert point["efficiency"] == pytest.approx(0.5, rel=1e-6)
    assert [loss.cause for loss in found.named] == ["computation"]
    assert found.named[0].lost_s == pytest.approx(0.0125)
