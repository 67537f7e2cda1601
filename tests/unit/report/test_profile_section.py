"""Profiled steps in the report, and as evidence of the attribution."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest
from ddp_ladder.common.formats import percent
from ddp_ladder.gates.attribution import attribution, baseline_of
from ddp_ladder.gates.profiled import PARTS
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.records.profile_models import Profile, RankProfile
from ddp_ladder.records.record import Record
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from make_records import make_plan_of, make_record, make_specs, records_by_name, with_ranks

STEP_S = {"1x1": 0.05, "2x2": 0.1}


def profile_of(record: Record, slowest: int, kernels_s: float) -> Profile:
    """Return a profile of two steps in which Python fills what these kernels leave of the step."""
    step_s = STEP_S[str(record.spec.scale)]
    parts = {"kernels_s": kernels_s, "communication_s": 0.01, "copies_s": 0.004, "gaps_s": 0.006}
    parts["python_s"] = 2 * step_s - sum(parts.values())
    ranks = []
    for rank in dict.fromkeys((0, slowest)):
        table = {
            "on_cuda": True,
            "steps_s": [1.2 * step_s, 0.8 * step_s],
            "parts_s": parts,
            "communication_total_s": 0.03,
            "longest": [
                {"name": "sgemm<float, 4>", "calls": 8, "time_s": 0.02},
                {"name": "ncclDevKernel_AllReduce", "calls": 8, "time_s": 0.016, "communication": True},
            ],
            "trace": {"file": f"rank{rank}.trace.json.gz", "bytes": 10},
        }
        ranks.append(RankProfile.from_json({"rank": rank, "slowest": rank == slowest, "table": table}))
    return Profile(ranks=tuple(ranks), problem=None)


def ladder(profiled: bool = True, timed: bool = True) -> list[Record]:
    found = []
    for spec in make_specs([*STEP_S], repeats=2):
        step_s = STEP_S[str(spec.scale)]
        n = spec.world_size
        record = make_record(spec, spec.global_batch / step_s)
        exposed_s = [0.02 * (n > 1)] * n if timed else None
        record = with_ranks(record, compute_s=[0.04] * n, exposed_comm_s=exposed_s, data_wait_s=[0.001] * n)
        profile = profile_of(record, 3 if n > 1 else 0, kernels_s=0.03 * spec.repeat)
        found.append(record.replace(profile=profile) if profiled else record)
    return found


def written(directory: Path, records: Sequence[Record]) -> str:
    plan = make_plan_of([record.spec for record in records])
    write_report(directory, LadderResults(plan, records_by_name(records), {}, ()), date(2026, 11, 22))
    return (directory / "report/index.html").read_text()


def test_means_over_repeats_add_up_to_the_profiled_step() -> None:
    records = ladder()
    _, point = scale_points([record.spec for record in records], records_by_name(records))
    assert point.step
    first, slowest = point.step.profiled
    assert (first.who, slowest.who, slowest.steps) == ("rank 0", "slowest rank (3)", 4)
    for rank in (first, slowest):
        assert rank.step_s == pytest.approx(0.1)
        assert sum(getattr(rank, part) for part in PARTS) == pytest.approx(rank.step_s)
        assert rank.kernels_s == pytest.approx((0.03 + 0.06) / 4)
    assert slowest.traces == tuple(f"runs/default/weak/2x2/r{k}/ranks/rank3.trace.json.gz" for k in (1, 2))


def test_the_page_shows_the_parts_beside_the_measured_step_and_links_the_traces(tmp_path: Path) -> None:
    page = written(tmp_path, ladder())
    assert ">Profiled steps</h2>" in page
    assert '<a href="../runs/default/weak/2x2/r2/ranks/rank3.trace.json.gz">r2, rank 3<' in page
    assert "100: compute 40.0, exposed communication 20.0, data wait 1.00" in page
    assert "Rank 0: sgemm&lt;float, 4&gt; 10.0, ncclDevKernel_AllReduce 8.00." in page
    assert f'22.5 <span class="range">{percent(0.225)}</span>' in page


def test_without_a_profile_there_is_no_such_section(tmp_path: Path) -> None:
    assert "Profiled steps" not in written(tmp_path, ladder(profiled=False))


@pytest.mark.parametrize("timed", [True, False])
def test_profiled_steps_are_evidence_of_what_is_lost(timed: bool) -> None:
    """Where DDP reported no times, communication is in the loss of computation, and the profile tells it apart."""
    records = ladder(timed=timed)
    points = scale_points([record.spec for record in records], records_by_name(records))
    found = attribution(points[1], baseline_of(points[1], points))
    assert found
    start = "profiled steps: "
    told = {loss.cause: [line for line in loss.evidence if line.startswith(start)] for loss in found.losses}
    said = "communication takes 15.0 ms on slowest rank (3), of which 5.00 ms are not hidden"
    kernels = f"{start}kernels take 22.5 ms, 22.5 ms at 1x1 (longest: sgemm<float, 4> 10.0 ms)"
    if not timed:
        assert told["computation"] == [start + said, kernels]
        return
    assert told["communication"] == [start + said]
    assert told["computation"] == [kernels]
    alone = "at 1x1: copies 2.00 ms, gaps 3.00 ms, Python 17.5 ms"
    assert told["rest"] == [f"{start}copies 2.00 ms, gaps 3.00 ms, Python 67.5 ms; {alone}"]
    assert told["data"] == []
