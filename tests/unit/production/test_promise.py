"""What production promises: the figure of the spec that was measured, and of no other; what differs is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.common.messages import UserError
from ddp_ladder.plan import short_runs as fits
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.plan.short_runs import Fit, Trial, fit_file, planned
from ddp_ladder.production.plan import Production, dry_run_text, production_of, rehearsal_plan, rehearsal_text
from ddp_ladder.production.rehearsal import rehearsal_directory, rehearsed, write_rehearsal
from ddp_ladder.records.record import read_record, write_record
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.load import load_settings
from make_runs import RATES, write_run
from project_copy import ROOT

ARGS = ["--batch-size", "{batch_per_gpu}", "--epochs", "2"]
RATE = "1,840 samples/s, of the ladder"


@pytest.fixture(autouse=True)
def _script_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("train")  # as the records of tests have it


def settings(production: dict[str, Any] | None = None, **keys: Any) -> Settings:
    workload = {"script": "train.py", "args": ARGS, "data_dir": None, "prepare": None, **keys.pop("workload", {})}
    chain = {"scale": "1x2", "up_to_hours": 50, "unproven": True, **(production or {})}
    given = {"repeats": 1, "workload": workload, "production": chain, **keys}
    return load_settings(ROOT / "config/config.yaml", ROOT / "config/sites/local.yaml", given)


def searched(given: Settings, chosen: int) -> None:
    """Write a search that has chosen this batch."""
    plan = make_plan(given)
    trials = (Trial(batch_per_gpu=chosen, outcome="fits", samples_per_s=1.0),)
    keys = {"key": fits.search_key(plan), "workload": fits.workload_key(plan), "schema_version": 1}
    fit = Fit(**keys, scale="1x1", headroom_percent=10.0, trials=trials, chosen=chosen)
    write_json(fit_file(Path(plan.results), plan.first_scale), fit.model_dump())


def climbed(given: Settings) -> None:
    """Write the runs of the ladder, as they are planned."""
    for spec in planned(given).runs:
        write_run(Path(given.experiment.results), spec, RATES[str(spec.scale)])


def begun(given: Settings) -> tuple[Production, str]:
    """Return production, and what its dry run prints."""
    production = production_of(given, planned(given), Path(given.experiment.results))
    return production, dry_run_text(production, (), "done")


def test_the_batch_that_a_search_chose_is_that_of_ladder_rehearsal_and_production() -> None:
    given = settings(workload={"batch_per_gpu": {"from": 8, "to": 512}})
    with pytest.raises(UserError, match=r"workload\.batch_per_gpu: the batch per GPU is not chosen yet"):
        begun(given)
    searched(given, 32)
    climbed(given)
    production, text = begun(given)
    specs = [run for run in planned(given).runs if str(run.scale) == "1x2"]
    specs += [production.job.runs[0], *rehearsal_plan(given).runs]
    assert {(spec.batch_per_gpu, spec.global_batch, *spec.args[:2]) for spec in specs} == {
        (32, 64, "--batch-size", "32")
    }
    assert "batch      32 per GPU, 64 in all" in text
    assert f"promised   {RATE}; slower" in text
    text = rehearsal_text(given)
    assert "scale      1x2: 1 node, 2 ranks" in text
    assert "two, one after the other; SIGUSR1 after 2 min 00 s, the end" in text
    assert "python train.py --batch-size 32" in text
    # Of an edited script it is another search; the batch of the last one can be written down.
    Path("train.py").write_text("another")
    with pytest.raises(UserError, match="the last search chose 32, for others"):
        begun(given)


@pytest.mark.parametrize(
    ("keys", "measured"),
    [
        ({"production": {"args": [*ARGS[:2], "--epochs", "9"]}}, "args: was --epochs 2, is --epochs 9"),
        ({"production": {"args": ["--batch-size", "64"]}}, "what was measured differs: batch_per_gpu: was passed"),
        ({"measure": {"max_steps": 100}, "workload": {"directory": "{run_dir}"}}, ""),
        ({"fingerprint": {"may_differ": ["script_sha256"]}, "edited": True}, ""),
        ({"edited": True}, "what was measured differs: script_sha256: was "),
    ],
)
def test_a_figure_is_promised_for_what_was_measured(keys: dict[str, Any], measured: str) -> None:
    edited = keys.get("edited", False)
    given = settings(**{name: value for name, value in keys.items() if name != "edited"})
    climbed(given)
    if edited:
        Path("train.py").write_text("another")
    production, text = begun(given)
    assert production.measured.startswith(measured)
    assert bool(production.measured) == bool(measured)
    is_promised = "differs" not in measured
    assert (RATE in text) == is_promised
    assert production.measured in text


def test_a_rehearsal_holds_for_another_place_and_of_another_script_both_values_are_named() -> None:
    given = settings(workload={"directory": "{run_dir}"})
    results = Path(given.experiment.results)
    spec = begun(given)[0].job.runs[0]
    write_rehearsal(
        rehearsal_directory(results),
        rehearsal_plan(given).runs[0],
        [Finding(kind="rehearsal", severity="note", measured="")],
    )
    assert rehearsed(results, spec, given).startswith("passed on ")
    with pytest.raises(UserError, match=r"directory: was \{run_dir\}, is none"):
        rehearsed(results, begun(settings())[0].job.runs[0], given)


def test_a_figure_in_doubt_is_promised_with_its_doubt() -> None:
    given = settings()
    climbed(given)
    for file in Path(given.experiment.results).glob("runs/default/weak/1x2/*/record.json"):
        record = read_record(file)
        doubt = remark("doubtful count", "the number of samples is doubtful", "set samples_per_step")
        write_record(file, record.replace(remarks=(doubt,)))
    production, text = begun(given)
    assert production.chain.promised_samples_per_s is not None
    assert production.chain.promise_doubt == "at 1x2 the number of samples is doubtful"
    assert "warning: its speed is in doubt: at 1x2 the number of samples is doubtful" in text
