"""The saves of real scripts on two ranks: number, bytes as the files have them, seconds, and where the log is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder_instrument import log
from ddp_ladder_instrument.recorder import Recorder
from instrument_support import oldest_python
from scripts_support import MISSING, run, warmed
from warm import Warm

warm = warmed("torch")
oldest = warmed("torch", python=oldest_python)
EACH = 4 * (300 * 40 + 40)  # bytes of the parameters


def saves_of(warm: Warm, directory: Path, how: str) -> tuple[list[dict[str, Any]], list[list[tuple[float, float]]]]:
    measured = run(warm, directory, "checkpoints.py", how, ranks=2)
    assert [ran.code for ran in measured.ranks] == [0, 0], measured.ranks[0].err
    records = [measured.ran.rank(rank) for rank in (0, 1)]
    assert [why for record in records for why in record["not_measured"] if not why.startswith(MISSING)] == []
    return [record["phases"]["saves"] for record in records], [record["phases"]["saves_s"] for record in records]


def test_torch_save_on_rank_0(warm: Warm, tmp_path: Path) -> None:
    (first, second), (spans, _) = saves_of(warm, tmp_path, "torch")
    written = sum(path.stat().st_size for path in tmp_path.glob("snapshot-*.pt"))
    assert first == {"count": 3, "seconds": first["seconds"], "aside_s": 0, "bytes": written}
    assert first["seconds"] == pytest.approx(sum(end_s - begin_s for begin_s, end_s in spans), abs=1e-4)
    assert second == {"count": 0, "seconds": 0, "aside_s": 0, "bytes": 0}


@pytest.mark.parametrize("torch", ["warm", "oldest"])
@pytest.mark.parametrize("how", ["checkpoint", "async"])
def test_checkpoints(request: pytest.FixtureRequest, tmp_path: Path, how: str, torch: str) -> None:
    """Each is one save, whatever torch.save writes in it and in which thread."""
    ranks, _ = saves_of(request.getfixturevalue(torch), tmp_path, how)
    assert [saves["count"] for saves in ranks] == [3, 3]
    assert [saves["aside_s"] > 0 for saves in ranks] == [how == "async"] * 2
    assert all(saves["seconds"] > 0 for saves in ranks)
    files = [path for path in tmp_path.glob("checkpoint-*/*") if path.name != ".metadata"]
    assert sum(saves["bytes"] for saves in ranks) == sum(path.stat().st_size for path in files) > 3 * EACH


def test_a_save_in_a_thread_is_beside_the_training(warm: Warm, tmp_path: Path) -> None:
    ranks, _ = saves_of(warm, tmp_path, "thread")
    for saves in ranks:
        assert (saves["count"], saves["seconds"], saves["aside_s"] > 0) == (3, 0, True)
        assert saves["bytes"] > 3 * EACH


def test_a_save_into_a_file_object(warm: Warm, tmp_path: Path) -> None:
    measured = run(warm, tmp_path, "checkpoints.py", "buffer", ranks=2)
    for rank, ran in enumerate(measured.ranks):
        words = ran.out.split()
        assert measured.ran.rank(rank)["phases"]["saves"]["count"] == 3
        assert measured.ran.rank(rank)["phases"]["saves"]["bytes"] == sum(map(int, words[1::2])) > 3 * EACH


def test_saves_of_a_log_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WHOLE_STEPS", 4)
    recorder = Recorder()
    recorder.begin()
    optimizer = type("Optimizer", (), {})()
    for _ in range(200):
        recorder.backward(0.0)
        recorder.after_step(optimizer, (), {})
        recorder.saved(log.TORCH_SAVE, 1.0, 2.0, 3.0, False)
        recorder.saved(log.TORCH_SAVE, 1.0, 2.0, 3.0, True)
    recorder.end()
    assert recorder.log.is_cut
    assert recorder.judged().phases["saves"] == {"count": 400, "seconds": 200, "aside_s": 200, "bytes": 1200}
