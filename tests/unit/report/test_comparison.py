"""Comparison of variants: verdicts, what differs, what is not alike; how often it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.record import Record
from ddp_ladder.report.comparison import (
    FASTER,
    NO_DIFFERENCE,
    NOT_RUN,
    REFERENCE,
    SLOWER,
    Compared,
    Comparison,
    beyond_chance,
    chance,
    compare_variants,
    paired,
    sentences,
)
from make_records import make_failed_record, make_plan_of, make_record, make_spec, records_by_name

DRIFT = {1: 0.9, 2: 1.0, 3: 1.2, 4: 1.05, 5: 0.97}
WOBBLE = {1: 0.001, 2: -0.001, 3: 0.0005, 4: -0.0007, 5: 0.0002}  # of a variant beside the default
SPEED = {"default": 1.0, "fast": 1.1, "alike": 1.0001, "slow": 0.6}


def specs_of(
    variants: Sequence[str], repeats: int = 3, scales: Sequence[str] = ("1x2",), **changes: Any
) -> list[RunSpec]:
    return [
        make_spec(scale, variant=variant, repeat=repeat, **changes.get(variant, {}))
        for scale in scales
        for repeat in range(1, repeats + 1)
        for variant in variants
    ]


def rate(spec: RunSpec) -> float:
    own = 1 + (WOBBLE[spec.repeat] if spec.variant != "default" else 0)
    return 1000 * spec.gpus * SPEED.get(spec.variant, 1.0) * DRIFT[spec.repeat] * own


def records_of(specs: Sequence[RunSpec], **changes: Mapping[str, Any]) -> dict[str, Record]:
    """Good records; changes: of the fingerprint by variant."""
    return records_by_name([make_record(s, rate(s), fingerprint=changes.get(s.variant)) for s in specs])


def compared(specs: Sequence[RunSpec], records: Mapping[str, Record] | None = None) -> Comparison:
    return compare_variants(make_plan_of(specs), records_of(specs) if records is None else records)


def rows(found: Comparison, place: int = -1) -> dict[str, Compared]:
    return {row.name: row for row in found.panels[place].rows}


def test_pairs_show_what_the_drift_hides() -> None:
    found = compared(specs_of(list(SPEED)))
    own = rows(found)
    assert [(name, row.verdict) for name, row in own.items()] == [
        ("fast", FASTER), ("alike", NO_DIFFERENCE), ("default", REFERENCE), ("slow", SLOWER),
    ]  # fmt: skip
    fast = own["fast"].ratio
    assert fast.value == pytest.approx(1.1, rel=1e-3)
    assert own["fast"]["step_time_s"] == pytest.approx(128 / 2200, rel=2e-3)
    text = " ".join(sentences(found))
    assert text.startswith("At 1x2 weak, faster than default: fast 1.100 times [1.09")
    assert "At 1x2 weak, slower than default: slow 0.600" in text
    assert "At 1x2 weak, not beyond chance: alike 1.000 times" in text


def recommended(repeats: int, gb: Mapping[str, float], *variants: str, limit_gb: float = 80) -> str:
    """What is recommended of these variants; gb: peak memory per rank of those that have not 40 GB."""
    specs = specs_of(["default", *variants], repeats)
    records = {}
    for spec in specs:
        record = make_record(spec, rate(spec), exposed_comm_fraction=0.12)
        peak, limit = {"device": round(1e9 * gb.get(spec.variant, 40))}, {"device": round(limit_gb * 1e9)}
        known = {"peak_memory_bytes": peak, "memory_limit_bytes": limit}
        records[spec.name] = record.replace(ranks=tuple(rank.replace(**known) for rank in record.ranks))
    found = compared(specs, records)
    assert all(row["peak_memory_bytes"] == 1e9 * gb.get(row.name, 40) for row in found.panels[0].rows)
    return " ".join(next(line for line in sentences(found) if ", use " in line).split())


def test_one_variant_is_recommended_and_one_for_short_memory() -> None:
    text = recommended(3, {"slow": 28}, "fast", "slow")
    assert text == (
        "At 1x2 weak, use fast (2,198 samples/s, 12 % of a step exposed communication): the fastest; slow if memory is "
        "short (12 GB less per rank, 55 % of the speed)."
    )
    text = recommended(3, {"alike": 39}, "alike", "slow")
    of_default = "(2,000 samples/s, 12 % of a step exposed communication)"
    assert text == f"At 1x2 weak, use default {of_default}: nothing is faster beyond chance."
    text = recommended(1, {}, "fast")
    assert (text[:21], text[-49:]) == ("At 1x2 weak, use fast", ": the fastest in one repeat, which may be chance.")


def test_a_scale_where_another_variant_is_best_is_named() -> None:
    specs = specs_of(["default", "fast"], scales=("1x1", "1x2", "2x2"))
    records = records_of(specs)
    for spec in specs:
        if (spec.variant, str(spec.scale)) == ("fast", "1x2"):
            records[spec.name] = make_record(spec, 0.8 * rate(spec))
    said = [line.partition(" (")[0] for line in sentences(compared(specs, records)) if ", use " in line]
    assert said == ["At 2x2 weak, use fast", "At 1x2 weak, use default"]


def test_a_difference_that_one_of_many_may_show_by_chance_is_not_shown() -> None:
    names = [f"v{k}" for k in range(19)]
    specs = specs_of(["default", "near", *names])
    records = records_of(specs)
    near = {1: 1.010, 2: 1.013, 3: 1.016}
    for spec in specs:
        if spec.variant == "near":
            records[spec.name] = make_record(spec, near[spec.repeat] * rate(spec.replace(variant="default")))
    assert rows(compared(specs, records))["near"].verdict == NO_DIFFERENCE
    alone = [spec for spec in specs if spec.variant in ("default", "near")]
    found = compared(alone, {spec.name: records[spec.name] for spec in alone})
    assert rows(found)["near"].verdict == FASTER


def test_no_variant_is_silently_dropped() -> None:
    variants = ["default", "broken", "part", "missing", "left-out"]
    specs = specs_of(variants)
    records = records_of([spec for spec in specs if spec.variant in ("default", "part")])
    for spec in specs:
        if spec.variant == "broken" or (spec.variant, spec.repeat) == ("part", 2):
            records[spec.name] = make_failed_record(spec, "CUDA out of memory")
        if spec.variant == "left-out":
            records[spec.name] = make_failed_record(spec, "not started", "an earlier run hung", started=False)
    found = compared(specs, records)
    own = rows(found)
    assert set(own) == set(variants)
    assert own["broken"].verdict == "failed: CUDA out of memory"
    assert own["missing"].verdict == NOT_RUN
    assert own["left-out"].verdict == "not run: an earlier run hung"
    assert (own["part"].verdict, own["part"].repeats) == (NO_DIFFERENCE, 2)
    assert "1 of 3 repeats failed: CUDA out of memory" in own["part"].notes[0]
    text = " ".join(sentences(found))
    assert "Failed runs: part at 1x2 weak, broken at 1x2 weak." in text
    assert "Not run: missing at 1x2 weak." in text


def test_without_a_default_nothing_is_compared_and_it_says_why() -> None:
    specs = specs_of(["default", "fast"])
    records = records_of([spec for spec in specs if spec.variant == "fast"])
    found = compared(specs, records)
    assert {name: row.verdict for name, row in rows(found).items()} == {"default": "not run", "fast": "default not run"}
    assert sentences(found)[0].startswith("Nothing can be compared: ")


def test_runs_of_other_jobs_or_nodes_are_named() -> None:
    specs = specs_of(["default", "fast"], fast={"launcher": "srun"})
    records = records_of(specs)
    for spec in specs:
        record = records[spec.name]
        if spec.variant == "fast" and record.job:
            job = record.job.replace(id="77")
            records[spec.name] = record.replace(job=job, world=record.world.replace(hosts=("node9",)))
    found = compared(specs, records)
    assert "not in one job on the same nodes (r1, r2, r3)" in rows(found)["fast"].notes[-1]


def test_what_a_variant_changes_and_what_is_not_alike_is_named() -> None:
    specs = specs_of(["default", "fast"], fast={"launcher": "srun", "env": {"A": "1"}})
    found = rows(compared(specs, records_of(specs, fast={"autocast_dtype": "bfloat16", "batch_per_gpu": 128})))["fast"]
    fields = {each.split()[0] for each in found.unlike}
    assert fields == {"autocast_dtype", "batch_per_gpu", "launcher", "env_template"}
    assert "batch_per_gpu 128 (reference: 64)" in found.unlike


# How often intervals and verdicts hold

TRUE, LADDERS = 1.1, 2000


def ladders(
    repeats: int, drift: float, within: float, variants: int = 1, ratio: float = TRUE, seed: int = 7
) -> tuple[np.ndarray, np.ndarray]:
    """Throughputs of a default, shape (LADDERS, repeats), and of variants, shape (LADDERS, variants, repeats).

    drift: relative noise that the runs of one repeat share. within: noise of each run.
    """
    generator = np.random.default_rng(seed)
    shared = 1000 * generator.lognormal(0, drift, (LADDERS, 1, repeats))
    runs = shared * generator.lognormal(0, within, (LADDERS, 1 + variants, repeats))
    return runs[:, 0], ratio * runs[:, 1:]


@pytest.mark.parametrize(
    ("repeats", "drift", "within"), [(2, 0.1, 0.01), (3, 0.1, 0.01), (3, 0.0, 0.03), (10, 0.1, 0.01)]
)
def test_the_interval_of_pairs_holds_the_truth_as_often_as_it_says(repeats: int, drift: float, within: float) -> None:
    default, variants = ladders(repeats, drift, within)
    found = [paired(here, there) for here, there in zip(variants[:, 0], default, strict=True)]
    held = [one.low <= TRUE <= one.high for one in found if one.low is not None and one.high is not None]
    assert len(held) == LADDERS if repeats > 2 else len(held) > 0.9 * LADDERS  # wider than a factor of 4: not known
    assert 0.93 <= np.mean(held) <= 0.97


def test_one_repeat_gives_a_ratio_and_no_interval() -> None:
    one = paired([1100.0], [1000.0])
    assert one.value == pytest.approx(1.1)
    assert (one.low, one.high, chance(one)) == (None, None, None)
    assert beyond_chance([one, None]) == (False, False)
