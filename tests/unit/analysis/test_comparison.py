"""Comparison of variants, and of folders of results: verdicts, what differs, and the advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_ladder.analysis.compared import (
    FASTER,
    NO_DIFFERENCE,
    PERHAPS_FASTER,
    REFERENCE,
    SLOWER,
    WITHHELD,
    Compared,
    Comparison,
)
from ddp_ladder.analysis.comparison import NOT_RUN, compare_variants
from ddp_ladder.analysis.comparison_of_results import Folder, compare_results
from ddp_ladder.analysis.comparison_words import sentences
from ddp_ladder.analysis.variant_changes import variant_changes
from ddp_ladder.plan.plan import RunSpec, make_plan
from ddp_ladder.records.record import Record
from ddp_ladder.settings.loading import load_settings
from make_records import make_failed_record, make_plan_of, make_record, make_spec, records_by_name

DRIFT = {1: 0.9, 2: 1.0, 3: 1.2, 4: 1.05, 5: 0.97}
WOBBLE = {1: 0.001, 2: -0.001, 3: 0.0005, 4: -0.0007, 5: 0.0002}  # of a variant beside the default
SPEED = {"default": 1.0, "fast": 1.1, "alike": 1.0001, "slow": 0.6}
Changes = Mapping[str, Mapping[str, Any]]


def specs_of(
    variants: Sequence[str], repeats: int = 3, scales: Sequence[str] = ("1x2",), **changes: Any
) -> list[RunSpec]:
    return [
        make_spec(scale, variant=variant, repeat=repeat, **changes.get(variant, {}))
        for scale in scales
        for repeat in range(1, repeats + 1)
        for variant in variants
    ]


def rate(spec: RunSpec, speed: float = 1.0) -> float:
    own = 1 + (WOBBLE[spec.repeat] if spec.variant != "default" else 0)
    return 1000 * spec.gpus * speed * SPEED.get(spec.variant, 1.0) * DRIFT[spec.repeat] * own


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
    assert {name: row.found for name, row in own.items()} == {
        "default": REFERENCE,
        "fast": FASTER,
        "alike": NO_DIFFERENCE,
        "slow": SLOWER,
    }
    assert [row.rank for row in found.panels[0].rows] == [1, 2, 3, 4]
    assert [row.name for row in found.panels[0].rows] == ["fast", "alike", "default", "slow"]
    fast = own["fast"].ratio
    assert fast is not None
    assert fast.value == pytest.approx(1.1, rel=1e-3)
    assert own["fast"].step_time_s == pytest.approx(128 / 2200, rel=2e-3)
    text = " ".join(sentences(found))
    assert text.startswith("At 1x2 weak, faster than default: fast 1.100 times [1.09")
    assert "Slower: slow 0.600" in text
    assert "No difference shown: alike." in text


def test_one_repeat_withholds_and_two_are_wide() -> None:
    one = compared(specs_of(["default", "fast"], repeats=1))
    assert rows(one)["fast"].found == WITHHELD
    assert "one repeat shows no scatter" in " ".join(sentences(one))
    two, three = (compared(specs_of(["default", "alike"], repeats=count)) for count in (2, 3))
    ratios = [rows(each)["alike"].ratio for each in (two, three)]
    wide, narrow = (each.high - each.low for each in ratios if each and each.high and each.low)
    assert wide > 2 * narrow
    assert rows(two)["alike"].notes == ("two pairs of repeats make a wide interval",)


def test_a_difference_that_one_of_many_may_show_by_chance_is_a_perhaps() -> None:
    names = [f"v{k}" for k in range(19)]
    specs = specs_of(["default", "near", *names])
    records = records_of(specs)
    near = {1: 1.010, 2: 1.013, 3: 1.016}
    for spec in specs:
        if spec.variant == "near":
            records[spec.name] = make_record(spec, near[spec.repeat] * rate(spec.replace(variant="default")))
    assert rows(compared(specs, records))["near"].found == PERHAPS_FASTER
    alone = [spec for spec in specs if spec.variant in ("default", "near")]
    found = compared(alone, {spec.name: records[spec.name] for spec in alone})
    assert rows(found)["near"].found == FASTER
    text = " ".join(sentences(compared(specs, records)))
    assert "no variant is shown to be faster than default" in text
    assert "of 20 intervals one may miss 1 by chance" in text


def test_no_variant_is_silently_dropped() -> None:
    variants = ["default", "broken", "part", "missing", "left-out"]
    specs = specs_of(variants)
    records = records_of([spec for spec in specs if spec.variant in ("default", "part")])
    for spec in specs:
        if spec.variant == "broken" or (spec.variant, spec.repeat) == ("part", 2):
            records[spec.name] = make_failed_record(spec, "CUDA out of memory")
        if spec.variant == "left-out":
            records[spec.name] = make_failed_record(spec, "not started", "an earlier run hung", started=False)
    own = rows(compared(specs, records))
    assert set(own) == set(variants)
    assert own["broken"].found == "failed: CUDA out of memory"
    assert own["missing"].found == NOT_RUN
    assert own["left-out"].found == "not run: an earlier run hung"
    assert own["part"].ratio is not None
    assert own["part"].ratio.repeats == 2
    assert "1 of 3 repeats failed: CUDA out of memory" in own["part"].notes[0]
    text = " ".join(sentences(compared(specs, records)))
    assert "Failed runs: part at 1x2 weak, broken at 1x2 weak." in text
    assert "Not run: missing at 1x2 weak." in text


def test_a_failed_repeat_takes_its_counterpart_out_and_no_other_takes_its_place() -> None:
    specs = specs_of(["default", "fast"], repeats=5)
    records = records_of(specs)
    for spec in specs:
        if (spec.variant, spec.repeat) in (("default", 1), ("fast", 5)):
            records[spec.name] = make_failed_record(spec)
    row = rows(compared(specs, records))["fast"]
    assert row.found == FASTER
    assert row.ratio is not None
    assert (row.ratio.repeats, row.ratio.value) == (3, pytest.approx(1.1, rel=1e-3))
    assert row.notes[-1] == "3 of 5 repeats are pairs"


def test_without_a_default_nothing_is_compared_and_it_says_why() -> None:
    specs = specs_of(["default", "fast"])
    records = records_of([spec for spec in specs if spec.variant == "fast"])
    for spec in specs:
        if spec.variant == "default":
            records[spec.name] = make_failed_record(spec, "CUDA out of memory")
    found = compared(specs, records)
    assert rows(found)["fast"].found == "default failed: CUDA out of memory"
    assert rows(found)["default"].found == "failed: CUDA out of memory"
    assert sentences(found)[0].startswith("Nothing can be compared: ")
    assert sentences(compared(specs, {}))[0] == "Nothing can be compared: not run."


def test_runs_of_other_jobs_or_nodes_are_named_and_no_advice_is_given() -> None:
    specs = specs_of(["default", "fast"], fast={"launcher": "srun"})
    records = records_of(specs)
    for spec in specs:
        record = records[spec.name]
        if spec.variant == "fast" and record.job:
            job = record.job.replace(id="77")
            records[spec.name] = record.replace(job=job, world=record.world.replace(hosts=("node9",)))
    found = compared(specs, records)
    row = rows(found)["fast"]
    assert not row.alike_nodes
    assert "not in one job on the same nodes (r1, r2, r3: job 77 on node9; default: job local-" in row.notes[-1]
    text = " ".join(sentences(found))
    assert "fast was not measured on default's nodes" in text
    assert "To make" not in text


def test_the_advice_names_what_is_not_alike_and_where_the_variant_is_slower() -> None:
    specs = specs_of(["default", "fast"], scales=("1x1", "1x2"), fast={"env": {"A": "1"}})
    records = records_of(specs, fast={"autocast_dtype": "bfloat16", "batch_per_gpu": 128})
    for spec in specs:
        if spec.variant == "fast" and str(spec.scale) == "1x1":
            records[spec.name] = make_record(spec, 0.5 * rate(spec))
    found = compared(specs, records)
    row = rows(found)["fast"]
    assert {each.field for each in row.unlike} == {"autocast_dtype", "batch_per_gpu"}
    text = " ".join(sentences(found))
    assert 'To make fast the default: set workload.env.A: "1" in config/config.yaml.' in text
    assert "batch_per_gpu 128 (reference: 64): samples/s can be compared, but the optimisation differs" in text
    assert "autocast_dtype bfloat16 (reference: none): the precision differs" in text
    assert "But fast is slower at 1x1 weak, 0.55" in text


def test_one_process_for_all_gpus_is_not_advised_as_the_default() -> None:
    text = " ".join(sentences(compared(specs_of(["default", "fast"], fast={"launcher": "python"}))))
    assert "fast cannot become the default: with launcher python there is one process." in text
    assert "To make" not in text


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "srun": {"launcher": "srun"},
    "gloo": {"network": {"backend": "gloo"}},
    "interface": {"network": {"interface": "ib0"}},
    "env": {"env": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": 1, "OURS": "other"}},
    "args": {"args": ["--bf16", "--steps", "{global_batch}", "--text", 'a "b"']},
    "all": {"launcher": "srun", "network": {"backend": "gloo"}, "args": ["--x"], "env": {"NCCL_DEBUG": "INFO"}},
}


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "default"])
def test_following_the_advice_makes_the_variant_the_default(variant: str, tmp_path: Path) -> None:
    """The keys are written into the settings as they are named, and the default's runs become the variant's."""
    config: dict[str, Any] = {
        "workload": {"script": __file__, "batch_per_gpu": 8, "args": ["--a", "b"], "env": {"OURS": "1", "KEPT": "2"}},
        "stages": {"stage1": {"scales": ["1x1"]}, "stage2": {"scales": ["1x2"]}},
        "variants": dict(VARIANTS),
        "measure": {"plain_baseline": False},
        "repeats": 1,
    }
    cluster: dict[str, Any] = {"site": "here", "node": {"gpus": 2, "device": "cpu", "cpus": 2}}
    files = {"config/config.yaml": config, "config/cluster.yaml": cluster}

    def runs() -> dict[str, RunSpec]:
        for file, data in files.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(yaml.safe_dump(data))
        plan = make_plan(load_settings(*(tmp_path / file for file in files)))
        return {run.name: run for run in plan.runs}

    before = runs()
    named = [variant_changes(before["default/weak/1x2/r1"], before[f"{variant}/weak/1x2/r1"])]
    for change in named[0]:
        section: dict[str, Any] = files[change.file]
        *parents, key = change.key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = (
            [*section[key], *change.value]
            if change.adds
            else yaml.safe_load(change.to_set.split(": ", 1)[1].rsplit(" in ", 1)[0])
        )
    assert named[0]
    after = runs()
    for scale in ("1x1", "1x2"):
        wanted, now = before[f"{variant}/weak/{scale}/r1"], after[f"default/weak/{scale}/r1"]
        assert now == wanted.replace(variant="default")


def folder(name: str, specs: Sequence[RunSpec], speed: float = 1.0, **fingerprint: Any) -> Folder:
    records = [make_record(s, rate(s, speed), fingerprint=fingerprint) for s in specs]
    return Folder(name, make_plan_of(specs), records_by_name(records), ())


def test_results_are_compared_where_both_have_them_and_the_differing_fields_are_named() -> None:
    before = folder("old", specs_of(["default", "gone"], repeats=5, scales=("1x1", "1x2")), torch="2.4.0")
    after = folder("new", specs_of(["default", "fresh"], repeats=5, scales=("1x2", "2x1")), speed=2.0, torch="2.13.0")
    found = compare_results([before, after])
    assert [panel.place for panel in found.panels] == ["1x2 weak"]
    row = rows(found)["default"]
    assert row.found == FASTER
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx(2.0)
    assert [each.in_words for each in row.unlike] == ["torch 2.13.0 (reference: 2.4.0)"]
    assert found.missing == (
        "only in old: default weak 1x1, gone weak 1x1, gone weak 1x2",
        "only in new: default weak 2x1, fresh weak 1x2, fresh weak 2x1",
    )
    text = " ".join(sentences(found))
    assert text.startswith("At 1x2 weak, against old, faster: default 2.000 times [1.")
    assert "What differs: torch 2.13.0 (reference: 2.4.0)." in text


def test_results_of_other_jobs_are_no_pairs() -> None:
    """The same drift in both folders would cancel in pairs; it is not taken for one."""
    specs = specs_of(["default"], repeats=5)
    row = rows(compare_results([folder("old", specs), folder("new", specs, speed=1.02)]))["default"]
    assert row.found == NO_DIFFERENCE


def test_settings_and_nodes_count_as_differences_and_failures_are_shown() -> None:
    before = folder("old", specs_of(["default"]))
    specs = specs_of(["default"], default={"launcher": "srun", "env": {"NCCL_ALGO": "Ring"}})
    records = {s.name: make_record(s, rate(s), hosts=["other"]) for s in specs}
    after = Folder("new", make_plan_of(specs), records)
    row = rows(compare_results([before, after]))["default"]
    assert {each.field for each in row.unlike} == {"launcher", "env_template", "nodes"}
    failed = replace(after, records={s.name: make_failed_record(s, "CUDA out of memory") for s in specs})
    assert rows(compare_results([before, failed]))["default"].found == "failed: CUDA out of memory"
    other = rows(compare_results([failed, before]))["default"]
    assert other.found == "in the first folder: failed: CUDA out of memory"


def test_three_folders_are_each_compared_with_the_first() -> None:
    specs = specs_of(["default"], repeats=5)
    found = compare_results([folder(name, specs, speed) for name, speed in (("a", 1), ("b", 3), ("c", 0.3))])
    assert [(row.label, row.found) for row in found.panels[0].rows] == [("default, b", FASTER), ("default, c", SLOWER)]
