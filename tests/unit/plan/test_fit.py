"""The search for the batch per GPU: which batches are tried, which one is chosen, and what makes it search again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.plan import short_runs as fits
from ddp_ladder.plan.plan import Plan, make_plan
from ddp_ladder.plan.short_runs import Fit, Trial, choice, fit_file, fit_of, planned, search
from ddp_ladder.plan.text import plan_text
from ddp_ladder.settings.keys import Settings
from pydantic import TypeAdapter
from test_plan import NODE, run_of, settings


def tried(least: int, most: int, largest: int) -> list[int]:
    """Return the batches that are tried where this one is the largest that fits."""
    batches: list[int] = []

    def trial(batch: int) -> bool:
        batches.append(batch)
        return batch <= largest

    search(least, most, trial)
    return batches


def test_batches_are_doubled_until_one_does_not_fit_and_then_bisected_to_a_tenth() -> None:
    assert tried(8, 4096, 300) == [8, 16, 32, 64, 128, 256, 512, 384, 320, 288, 304]
    assert tried(8, 4096, 20) == [8, 16, 32, 24]
    assert tried(8, 100, 1000) == [8, 16, 32, 64, 96]  # a multiple of the smallest
    assert tried(8, 100, 7) == [8]
    assert tried(8, 15, 1000) == [8]


def test_no_batch_is_tried_twice_and_the_largest_is_found_to_a_tenth_or_the_smallest_batch() -> None:
    for least in (1, 6):
        for largest in range(least, 300):
            batches = tried(least, 256, largest)
            assert len(set(batches)) == len(batches)
            assert all(batch % least == 0 for batch in batches)
            fitting = max(batch for batch in batches if batch <= largest)
            assert min(largest, 256 // least * least) - fitting <= max(least, 0.1 * fitting)


def trial(batch: int, rate: float, headroom: float | None = 0.5) -> Trial:
    return Trial(batch_per_gpu=batch, outcome="fits", samples_per_s=rate, memory_headroom_fraction=headroom)


OUT = Trial(batch_per_gpu=512, outcome="out of memory", why="CUDA out of memory: no 2 GiB left")


def test_the_smallest_batch_near_the_best_throughput_is_chosen_among_those_that_leave_the_headroom() -> None:
    trials = [trial(64, 900), trial(128, 980), trial(256, 1000), OUT]
    assert choice(trials, 10) == 128
    assert choice([*trials, trial(384, 2000, 0.05)], 10) == 128
    assert choice([*trials, trial(384, 2000, 0.05)], 5) == 384
    assert choice([trial(64, 900, None)], 10) == 64  # the limit is not known
    assert choice([trial(64, 900, 0.01), OUT], 10) is None


def searched(**keys: Any) -> Settings:
    workload = {"batch_per_gpu": {"from": 8, "to": 512}, **keys.pop("workload", {})}
    return settings(workload=workload, **keys)


def written(results: Path, given: Settings, chosen: int = 96) -> Fit:
    plan = make_plan(given)
    fit = Fit(
        key=fits.search_key(plan), workload=fits.workload_key(plan), scale="1x1", headroom_percent=10,
        trials=(trial(chosen, 1e3), OUT), chosen=chosen, schema_version=1,
    )  # fmt: skip
    write_json(fit_file(results, plan.first_scale), fit.model_dump())
    return fit


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("train()")


def test_a_plan_without_a_choice_holds_the_settings_that_make_it_again_with_one() -> None:
    workload = {"directory": "{run_dir}", "samples_per_step": "{batch_per_gpu}"}
    given = searched(modes=["weak", "strong"], workload=workload)
    plan = TypeAdapter(Plan).validate_python(json.loads(json.dumps(make_plan(given).to_json())))
    assert {run.batch_per_gpu for run in plan.runs if run.mode == "weak"} == {8}
    chosen = fits.with_batch(plan, 96)
    assert chosen == make_plan(given.with_batch(96))
    assert chosen.batch_search is None
    assert run_of(chosen, "default/strong/1x4/r1").batch_per_gpu == 24
    # The names of the runs do not depend on the batch: Snakemake knows them before.
    assert [run.name for run in chosen.runs] == [run.name for run in plan.runs]
    assert "batch 8 per GPU, 8 in all, the smallest that the first job will try" in plan_text(plan, ["stage1"], {})


def test_the_choice_is_kept_until_what_it_depends_on_changes() -> None:
    given = searched()
    assert planned(given).batch_search
    written(Path("results"), given)
    assert planned(given) == make_plan(given.with_batch(96))
    assert planned(searched(repeats=5, variants={"default": {}, "ring": {}})).batch_search is None
    others = (
        searched(workload={"args": ["--batch", "{batch_per_gpu}", "--wide"]}),
        searched(workload={"batch_per_gpu": {"from": 8, "to": 1024}}),
        searched(workload={"batch_per_gpu": {"from": 8, "to": 512, "headroom_percent": 20}}),
        searched(workload={"env": {"A": "1"}}),
        searched(site={"node": {**NODE, "memory_mb": 1000}}),
        searched(site={"slurm": {"partition": "small"}}),
    )
    for other in others:
        assert planned(other).batch_search
    Path("train.py").write_text("train(2)")
    assert planned(given).batch_search
    assert planned(given.with_batch(64)) == make_plan(given.with_batch(64))
    fit_file(Path("results"), "1x1").write_text("{")
    assert planned(given).batch_search


def test_a_search_is_shown_with_the_batch_that_it_chose_for_the_workload_of_now() -> None:
    given, results = searched(), Path("results")
    written(results, given)
    assert fit_of(planned(given), results)
    assert fit_of(planned(given.with_batch(96)), results)  # the user has written the choice into the file
    assert not fit_of(planned(given.with_batch(64)), results)
    other = searched(workload={"args": ["--batch", "{batch_per_gpu}", "--wide"]})
    assert not fit_of(planned(other.with_batch(96)), results)
    Path("train.py").write_text("train(2)")
    assert not fit_of(planned(given.with_batch(96)), results)
