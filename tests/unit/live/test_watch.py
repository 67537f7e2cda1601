from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.live.watch import results_directory, show_once
from make_live import climb_to
from make_runs import edit


def problem_of(results: Path) -> Problem:
    with pytest.raises(UserError) as error:
        show_once(results)
    (problem,) = error.value.problems
    return problem


def test_a_file_is_no_results_directory(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    problem = problem_of(tmp_path / "config.yaml")
    assert problem.where == str(tmp_path / "config.yaml")
    assert problem.what == "this is a file, not the results directory of a ladder"
    assert problem.next == "name the directory with plan.json: --results DIR"


def test_a_plan_that_cannot_be_used_may_be_of_another_users_ladder(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    again = "whoever runs this ladder starts it again, which writes the plan anew; a ladder of another version"
    climb_to(tmp_path, ("1x1",), "1x1")
    edit(plan, lambda data: data.update(schema_version=0))
    assert (problem_of(tmp_path).next or "").startswith(again)
    write_json(plan, {})
    assert problem_of(tmp_path).what == "this is not a valid plan"
    assert (problem_of(tmp_path).next or "").startswith(again)
    plan.unlink()
    plan.mkdir()
    assert problem_of(tmp_path).next == "ask whoever runs this ladder to make it readable"


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        ("results: /scratch/me/results\n", "/scratch/me/results"),
        ("repeats: 3\n", "results"),
        ("results: [", "results"),  # it is being edited
        ("", "results"),
    ],
)
def test_the_results_are_as_the_experiment_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, directory: str
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert results_directory() == Path(directory)
