"""report/CENTRE.zip: what a centre asks for, in one file. The same content gives the same bytes; no secret is in it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ddp_ladder.common.redaction import redacted
from ddp_ladder.records.run_records import RunRecords
from ddp_ladder.report.centre_checks import Case

TEXTS = (".md", ".tex", ".csv", ".sh", ".txt", ".json")
WRITTEN = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can have
NAMES = {"proposal.md": "report.md", "proposal.tex": "report.tex"}
LEFT_OUT = re.compile(r"index\.html|usage/.*\.svg")  # pictures of what runs used are there as PNG, of one run per scale


def archive(results: Path, files: Mapping[str, str | bytes], case: Case | None) -> bytes:
    """Return the zip file: the report's own files, and of one run of each scale job script and monitoring.

    files: of the report, by path below it. A file that cannot be read is left out.
    """
    content = {NAMES.get(name, name): data for name, data in files.items() if not LEFT_OUT.fullmatch(name)}
    for name, path in _others(results, case):
        with suppress(OSError):
            content[name] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(content):
            info = zipfile.ZipInfo(name, WRITTEN)
            info.external_attr = 0o644 << 16
            file.writestr(info, _clean(name, content[name]), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _clean(name: str, data: str | bytes) -> bytes:
    """Return the bytes of a file, a text without secrets."""
    if not name.endswith(TEXTS):
        return data.encode() if isinstance(data, str) else data
    return redacted(data if isinstance(data, str) else data.decode(errors="replace")).encode()


def _others(results: Path, case: Case | None) -> Iterator[tuple[str, Path]]:
    """Yield the name in the archive and the path of each file that is not the report's own."""
    yield "accounting.csv", results / "accounting.csv"
    if case is None:
        return
    for scale, script in case.job_scripts.items():
        yield f"jobs/{scale}/job.sh", results / script
    for scale, runs in case.runs.items():
        for run in runs[:1]:
            directory = RunRecords(results).directory(run.spec)
            for node_rank in range(run.spec.nodes):
                yield f"monitoring/{scale}/node{node_rank}.csv", directory.samples(node_rank)
