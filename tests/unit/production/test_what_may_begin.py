"""Which production may begin, and on which chain: each refusal names the key and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.messages import UserError
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.production.chain import chain_directory
from ddp_ladder.production.plan import Production, production_of
from ddp_ladder.settings.load import load_settings
from make_jobs import LINK, write_job
from make_preflight import write_preflight
from make_runs import edit

KEYS = {"scale": "1x2", "args": ["--epochs", 9], "up_to_hours": 5, "unproven": True}


def begun(results: Path, **keys: Any) -> Production:
    overrides = {"production": {**KEYS, **keys}}
    settings = load_settings(Path("config/config.yaml"), Path("config/sites/local.yaml"), overrides)
    return production_of(settings, make_plan(settings), results)


@pytest.mark.parametrize(
    ("keys", "key", "what", "advice"),
    [
        (
            {"up_to_hours": None},
            "up_to_hours",
            "are not set",
            "process hours, greater than 0: set up_to_hours below production",
        ),
        ({"unproven": False}, "scale", "1x2 was not measured", "climb to it first"),
        ({"scale": "9x9", "unproven": False}, "scale", "9x9 was not measured", "`unproven: true`"),
        ({"scale": "recommended"}, "scale", "no scale is recommended yet", "climb first"),
        ({"runtime": 5, "warn_before_s": 300}, "runtime", "no time for the script", "raise production.runtime"),
    ],
)
def test_what_may_not_begin(tmp_path: Path, keys: dict[str, Any], key: str, what: str, advice: str) -> None:
    with pytest.raises(UserError) as raised:
        begun(tmp_path, **keys)
    (problem,) = raised.value.problems
    assert f"production.{key}" in problem.where
    assert what in problem.what
    assert advice in f"{problem.allowed}: {problem.next}"


def test_the_preflight_and_the_reserve_are_part_of_the_time_of_a_job(tmp_path: Path) -> None:
    """As it was measured; without that, as long as it may take."""
    with pytest.raises(UserError) as raised:
        begun(tmp_path, runtime=5, warn_before_s=60)
    (problem,) = raised.value.problems
    assert problem.found == (
        "5 min 00 s, of which 3 min 00 s for the preflight, "
        "1 min 00 s for the script after the signal (warn_before_s), 1 min 10 s for the end of a job under Slurm"
    )
    assert problem.allowed == "6 minutes or more"
    job = begun(tmp_path, runtime=6, warn_before_s=60).job
    edit(write_preflight(tmp_path, job), lambda result: result.update(took_s=65.0, status="ok"))
    assert begun(tmp_path, runtime=4, warn_before_s=30).chain.before_signal_s(4) == 240 - 65 - 70 - 30
    with pytest.raises(UserError, match="4 minutes or more"):
        begun(tmp_path, runtime=3, warn_before_s=60)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"args": ["--epochs", 10]}, "arguments --epochs 9 (now --epochs 10)"),
        ({"scale": "1x1"}, "scale 1x2 (now 1x1)"),
        ({"runtime": 60, "up_to_hours": 50, "warn_before_s": 5, "slurm": {"partition": "long"}}, None),
    ],
)
def test_a_chain_is_of_one_script_with_one_set_of_arguments(
    tmp_path: Path, keys: dict[str, Any], found: str | None
) -> None:
    directory = chain_directory(tmp_path)
    write_json(directory / "plan.json", begun(tmp_path).plan.to_json())
    begun(tmp_path, **keys)  # no link has begun
    write_job(directory, **LINK)
    if found is None:
        begun(tmp_path, **keys)
        return
    with pytest.raises(UserError) as raised:
        begun(tmp_path, **keys)
    (problem,) = raised.value.problems
    assert problem.found == found
    assert f"mv {directory} {directory}-1" in str(problem.next)
