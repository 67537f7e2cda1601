from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.live.results_directory import results_directory


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        ("results: /scratch/me/results\n", "/scratch/me/results"),
        ("repeats: 3\n", "results"),
        ("results: [", "results"),  # it is being edited
        ("", "results"),
    ],
)
def test_as_the_experiment_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, directory: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert results_directory() == Path(directory)
