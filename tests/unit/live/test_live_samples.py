from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.live.samples import TAIL_BYTES, GpuSample, NodeSample, last_sample
from ddp_ladder.nodes.files import columns


def table(path: Path, gpus: int, rows: list[dict[str, str]], end: str = "") -> Path:
    names = columns(fabric=False, gpus=gpus)
    lines = [",".join(names), *(",".join(row.get(name, "") for name in names) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines) + end)
    return path


def row(time_s: float, **figures: str) -> dict[str, str]:
    return {"time_s": str(time_s), "cpu_fraction": "0.25", "cpu_busiest_fraction": "0.5", **figures}


def last(path: Path) -> NodeSample | None:
    with path.open("rb") as file:
        return last_sample(file, "node7")


def test_the_last_complete_line(tmp_path: Path) -> None:
    path = table(tmp_path / "node0.csv", 0, [row(10.0), row(12.0)], end="14.0,0.9")
    assert last(path) == NodeSample("node7", 12.0, 0.25, 0.5)


def test_no_line_yet(tmp_path: Path) -> None:
    path = table(tmp_path / "node0.csv", 0, [], end="10.0,0.2")
    assert last(path) is None
    path.write_text("time_s,cpu_fr")  # half a header
    assert last(path) is None


def test_gpus_and_counters_that_they_lack(tmp_path: Path) -> None:
    figures = {"gpu0_busy_fraction": "0.92", "gpu0_memory_used_bytes": "31000000000", "gpu1_power_w": "402.5"}
    sample = last(table(tmp_path / "node0.csv", 2, [row(10.0, **figures)]))
    assert sample is not None
    assert sample.gpus == (GpuSample(0.92, 31e9, None), GpuSample(None, None, 402.5))


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = table(tmp_path / "node0.csv", 8, [row(2.0 * k) for k in range(500)])
    assert path.stat().st_size > 3 * TAIL_BYTES
    sample = last(path)
    assert sample is not None
    assert (sample.time_s, len(sample.gpus)) == (998.0, 8)


@pytest.mark.parametrize("text", ["time_s,cpu_fraction\n1.0\n", "time_s,cpu_fraction\n1.0,fast\n", "a,b\n1,2\n"])
def test_another_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "node0.csv").write_text(text)
    with pytest.raises(ValueError, match=r"values|could not convert|without time_s"):
        last(tmp_path / "node0.csv")
