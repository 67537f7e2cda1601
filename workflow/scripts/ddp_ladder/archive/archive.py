"""The archive of a ladder: a zip with a manifest, read back without the settings of the place where it is shown.

Its records are those that were believed when it was made: their raw files are not in it.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ddp_ladder import __version__
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.assembly.run_records import RecordOrError, RunRecords
from ddp_ladder.common.files import opened, parsed_json, read_json, sha256, write_atomically
from ddp_ladder.common.formats import in_short
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import Count, Model, Several
from ddp_ladder.ledger.jobs import read_rows
from ddp_ladder.plan.plan import RunSpec, read_plan
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.report.results import LadderResults, read_results

MANIFEST = "manifest.json"
VERSION = 1
MOST_BYTES = 2_000_000_000  # of all files, unpacked
AGAIN = "copy it again, or make it again with `snakemake archive`"


class Manifest(Model):
    """What an archive says of itself."""

    format: Literal["ddp-ladder archive"] = "ddp-ladder archive"
    schema_version: int = VERSION
    ddp_ladder: str = __version__
    site: str
    made_on: str  # a date
    report: Mapping[str, Any] = Field(description="The training whose hours are shown.")
    left_out: Mapping[str, int] = Field(description="Bytes of the files that are not in it, by kind.")
    unread: Count = Field(description="Records that could not be believed, and are not in it.")
    begun: Count = Field(description="Runs without a record.")
    warnings: Several[str] = Field(description="Those of the original report on its records.")
    files: Mapping[str, str] = Field(description="SHA-256 of each file.")


class ArchivedRecords(RunRecords):
    """The records of an archive, which were compared with their raw files when it was made."""

    def believed(self, spec: RunSpec) -> Record:
        return read_record(self.directory(spec).record).model_copy(update={"spec": spec})

    def kept(self, spec: RunSpec) -> Record | None:
        return None  # there are no raw files to assemble one from

    def made(self, spec: RunSpec) -> RecordOrError:
        try:
            return self.believed(spec)
        except (OSError, ValueError) as error:
            return error

    def is_begun(self, spec: RunSpec) -> bool:
        return False  # the plan is as it was made


def unpack(file: Path, directory: Path) -> Manifest:
    """Write the files of an archive below ``directory``, after all of them were checked. Raises UserError."""
    contents = _read(file)
    manifest = _manifest(file, contents)
    for name, content in contents.items():
        write_atomically(directory / name, content)
    return manifest


def _read(file: Path) -> dict[str, bytes]:
    try:
        with opened(file) as content, zipfile.ZipFile(content) as archive:
            infos = archive.infolist()
            if outside := [info.filename for info in infos if _leads_out(info)]:
                what = "it has files that would lead out of its directory"
                raise UserError(Problem(str(file), what, in_short(outside)))
            if MANIFEST not in archive.namelist():
                raise UserError(_no_archive(file, f"a zip without {MANIFEST}"))
            if sum(info.file_size for info in infos) > MOST_BYTES:
                raise UserError(_no_archive(file, f"more than {MOST_BYTES / 1e9:g} GB when unpacked"))
            return {info.filename: archive.read(info) for info in infos}
    except OSError as error:
        raise UserError(Problem(str(file), f"it cannot be read: {error.strerror or error}", next=AGAIN)) from None
    # What zipfile raises for damaged data, another method of compression, and encryption.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(_no_archive(file, f"no whole zip file ({error})")) from None


def _leads_out(info: zipfile.ZipInfo) -> bool:
    path, is_link = Path(info.filename), stat.S_ISLNK(info.external_attr >> 16)
    return is_link or path.is_absolute() or ".." in path.parts or "\\" in info.filename or info.is_dir()


def _no_archive(file: Path, found: str) -> Problem:
    return Problem(str(file), "this is no whole archive of ddp-ladder", found, "the file of `snakemake archive`", AGAIN)


def _manifest(file: Path, contents: Mapping[str, bytes]) -> Manifest:
    try:
        data = parsed_json(contents[MANIFEST], Path(MANIFEST))
        version = data["schema_version"]
        if isinstance(version, int) and version > VERSION:
            what, newer = (
                "a newer version wrote this archive",
                f"version {version}, of ddp-ladder {data.get('ddp_ladder')}",
            )
            raise UserError(Problem(str(file), what, newer, str(VERSION), "use that version or a newer one"))
        manifest = Manifest.from_json(data)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(_no_archive(file, str(error))) from None
    given = {name: sha256(content) for name, content in contents.items() if name != MANIFEST}
    if wrong := sorted(name for name in {*given, *manifest.files} if given.get(name) != manifest.files.get(name)):
        raise UserError(Problem(str(file), "it is not as it was made", in_short(wrong), next=AGAIN))
    return manifest


def shown_directory(file: Path) -> Path:
    """Return where an archive is unpacked to be shown: beside it. Raises UserError if other files are there."""
    directory = file.with_suffix("")
    if directory == file:
        what = "the archive is unpacked beside it, in a directory of its name without .zip"
        raise UserError(Problem(str(file), what, allowed="a name that ends in .zip", next=f"mv {file} {file}.zip"))
    if directory.exists() and _manifest_in(directory) != parsed_json(_read(file)[MANIFEST], Path(MANIFEST)):
        what = "the archive would be unpacked here, among other files"
        raise UserError(Problem(str(directory), what, next="move the archive or this directory"))
    return directory


def _manifest_in(directory: Path) -> Any:
    try:
        return read_json(directory / MANIFEST)
    except (OSError, ValueError):
        return None  # no archive was unpacked here


def read_unpacked(directory: Path) -> LadderResults:
    """Read the results in an unpacked archive. Raises UserError."""
    manifest = Manifest.from_json(read_json(directory / MANIFEST))
    ladder = read_results(directory, read_plan(directory / "plan.json"), runs=ArchivedRecords(directory))
    known = {field.name for field in fields(Work)}
    work = replace(ladder.work, **{name: value for name, value in manifest.report.items() if name in known})
    ladder = replace(ladder, unread=manifest.unread, begun=manifest.begun)
    return replace(ladder, warnings=(*manifest.warnings, *ladder.warnings), jobs=read_rows(directory), work=work)


def read_archive(file: Path, directory: Path) -> tuple[Manifest, LadderResults]:
    """Unpack an archive in a directory and read it. Raises UserError."""
    return unpack(file, directory), read_unpacked(directory)
