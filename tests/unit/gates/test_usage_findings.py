"""Findings on what runs used: once for the repeats of a scale, once for all scales, and as the advice of a gate."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ddp_ladder.common.findings import Finding, UsageKind
from ddp_ladder.gates.points import ScalePoint, findings_of_repeats
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.nodes.usage import NodeUsage, Usage
from ddp_ladder.records.record import Record
from ddp_ladder.report.terminal import terminal_table
from make_records import make_record, make_spec, make_specs, records_by_name


def finding(kind: UsageKind, measured: str, place: str = "") -> Finding:
    return Finding(kind=kind, severity="warning", place=place, measured=measured, next=f"change {kind}")


def records(scale: str, *each: Sequence[Finding] | None) -> list[Record]:
    """Return the repeats of a scale with these findings; None: not monitored."""
    return [
        make_record(make_spec(scale, repeat=repeat)).replace(
            usage=None if found is None else Usage(nodes=(), findings=tuple(found), notes=())
        )
        for repeat, found in enumerate(each, start=1)
    ]


def test_repeats_that_show_the_same_are_one_finding() -> None:
    idle = [[finding("GPU idle", f"busy {k} %")] for k in (50, 52, 49)]
    (found,) = findings_of_repeats(records("1x1", *idle))
    assert found == idle[0][0]
    assert found.in_words == "busy 50 %"


def test_what_most_repeats_do_not_show_was_chance() -> None:
    once = records("1x1", [], [finding("GPU throttled", "hot")], [])
    assert findings_of_repeats(once) == ()
    (found,) = findings_of_repeats([*once[:2], *records("1x1", None)])
    assert found.in_words == "hot (in 1 of 2 repeats)"


def on_laptop(scale: str, rank_cores: float, others: float) -> Record:
    """Return a run on two CPUs, of which ranks and other processes used so many."""
    record = make_record(make_spec(scale))
    training = rank_cores * record.spec.world_size
    lacking = dict.fromkeys(name for name in NodeUsage.model_fields if name.endswith(("_bytes_per_s", "_w", "_j")))
    used = {"cpus": 2, "cpu_fraction": (training + others) / 2, "training_cpu_cores": training, "samples": 9}
    node = NodeUsage.model_validate({**lacking, **used, "node_rank": 0, "node": "pc", "interface": "lo", "gpus": ()})
    return record.replace(usage=Usage(nodes=(node,), findings=(), notes=()))


@pytest.mark.parametrize(("alone", "is_found"), [(0.95, True), (0.6, False)])
def test_other_processes_are_found_on_cpus_that_are_not_full_by_what_a_rank_used_alone(
    alone: float, is_found: bool
) -> None:
    """Two ranks had 1.1 of 2 CPUs, others 0.6: a rank that waits for one without a CPU leaves its own idle."""
    every = [on_laptop("1x1", alone, 0.6), on_laptop("1x2", 0.55, 0.6)]
    first, second = scale_points([record.spec for record in every], records_by_name(every))
    assert first.findings == ()
    said = "pc: other processes than the training used 0.6 of the 2 CPUs of the run, the training 1.1, and each rank"
    assert [found.in_words.startswith(f"{said} 0.95 at the baseline") for found in second.findings] == [True] * is_found


def points_of(**found: Finding) -> tuple[ScalePoint, ...]:
    specs = make_specs(["1x1", "1x2", "2x1"], repeats=1)
    used = {name.replace("s", ""): (each,) for name, each in found.items()}
    usages = [Usage(nodes=(), findings=used.get(str(spec.scale), ()), notes=()) for spec in specs]
    pairs = zip(specs, usages, strict=True)
    every = [make_record(spec, 1000.0 * spec.world_size).replace(usage=usage) for spec, usage in pairs]
    return scale_points(specs, records_by_name(every))


def test_the_terminal_shows_a_finding_once_for_all_scales() -> None:
    points = points_of(
        s1x1=finding("GPU idle", "busy 70 %"),
        s1x2=finding("GPU idle", "busy 60 %"),
        s2x1=finding("slow node", "node1: slower", "node1"),
    )
    text = terminal_table(points, {})
    lines = text.splitlines()
    assert "  1x1, 1x2: busy 60 % (as measured at 1x2); next: change GPU idle" in lines
    assert "  2x1: node1: slower; next: see whether further repeats" in text
