from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.slurm.jobs import JobEnd, job_end_file, read_job_end, write_job_end

END = JobEnd("7", "stage1", "1x1", "TIMEOUT", "7.log", False, "node1", "TimeLimit", "its time was up", "raise it")


def test_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_job_end(tmp_path, "1x1") is None
    assert write_job_end(tmp_path, END) == job_end_file(tmp_path, "1x1")
    assert read_job_end(tmp_path, "1x1") == END


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema_version": 2}', '{"schema_version": 1}', "x"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = job_end_file(tmp_path, "1x1")
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ValueError, match=r"1x1\.json"):
        read_job_end(tmp_path, "1x1")
