"""Files that an earlier report wrote and this one does not: they are deleted, so that nobody sends them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ddp_ladder.common.files import writing
from ddp_ladder.common.paths import CENTRES
from ddp_ladder.report.comparison_files import FILES
from ddp_ladder.report.usage_files import FOLDER
from ddp_ladder.report.usage_section import SCALES

PICTURE = re.compile(rf"({SCALES}|usage_.+_(weak|strong)_\d+x\d+_r\d+)\.(svg|png)")


def delete_outdated(report: Path, written: Collection[Path]) -> tuple[Path, ...]:
    """Delete the files of a report that it may write, but did not this time, and return them; no other file.

    report: the directory. written: the files of this report. Raises NotWritten.
    """
    outdated = tuple(path for path in _of_some_reports(report) if path not in written and path.is_file())
    for path in outdated:
        with writing(path):
            path.unlink(missing_ok=True)
    return outdated


def _of_some_reports(report: Path) -> Iterator[Path]:
    """Yield the paths of files that depend on settings or on the runs, whether they exist or not."""
    yield from (report / name for name in FILES)
    yield from (report / f"{centre.stem}.zip" for centre in sorted(CENTRES.glob("*.toml")))
    yield from (path for path in sorted((report / FOLDER).glob("usage_*")) if PICTURE.fullmatch(path.name))
