"""Make the archive of a ladder, for reviewers, support desks and repositories of data."""

from __future__ import annotations

import io
import json
import platform
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from ddp_ladder import __version__
from ddp_ladder.archive.archive import MANIFEST, Manifest, read_unpacked
from ddp_ladder.archive.names import Names, texts_in
from ddp_ladder.assembly.run_records import FullyCheckedRecords, as_made
from ddp_ladder.common.files import read_bytes, sha256, write_atomically
from ddp_ladder.common.formats import count, in_short
from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.plan.plan import Units, read_plan
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import Believed, believed_records
from ddp_ladder.settings.keys import Settings

LARGEST = 1_000_000  # bytes of a text that is kept whole
TOO_LARGE = f"texts above {LARGEST:,} bytes"
FILES = (
    "accounting.csv", "bad_nodes.json", "fit/*.json", "forecast/*.json", "gates/*.json", "jobs/*/*.json",
    "machine/*/*/lscpu.txt", "machine/*/*/machine.json", "preflight/*.json", "preflight/*/facts/*.json",
    "production/*.csv", "production/*.json", "runs/*/*/*/r*/job.sh", "runs/*/*/*/r*/train.log",
    "witness/*.json",
)  # fmt: skip
RAW = ("ranks", "nodes")
PACKAGES = ("snakemake", "numpy", "pydantic", "matplotlib")
AT_ONE_TIME = (1980, 1, 1, 0, 0, 0)  # of each file in the zip: equal contents make equal bytes
Members = dict[str, bytes]


def archive_name(site: str, made_on: date) -> str:
    """Return ``archive-lumi-2026-11-28.zip``."""
    return f"archive-{re.sub(r'[^A-Za-z0-9._-]+', '-', site) or 'site'}-{made_on.isoformat()}.zip"


def make_archive(
    results: Path,
    settings: Settings,
    names: Names,
    made_on: date,
    warning: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> bytes:
    """Return the zip. names: those that are known beforehand; others are found. Raises UserError.

    warning: what the settings of now differ in from those of the runs. say: is told what is done next.
    """
    say(f"reading  {results}: records and raw files")
    data, believed = _data(results, settings)
    texts, left_out = _add_files(results, data)
    own = texts_in([value for name, value in data.items() if name.startswith("settings/")])
    say(f"looking  for names and secrets in {count(len(data) + len(texts), 'file')}")
    names = names.with_those_in((*texts_in(data), *texts.values()), own)
    members = without_names(names, data, texts)
    manifest = Manifest(
        site=names.out_of(settings.site.site),
        made_on=made_on.isoformat(),
        report=settings.experiment.report.model_dump(mode="json", exclude_defaults=True),
        left_out=left_out,
        unread=believed.unread,
        begun=believed.begun,
        warnings=tuple(names.out_of(line) for line in believed.warnings),
        files={},
    )
    wanted = sum(name.endswith("record.json") for name in members)
    try:
        members |= _report(manifest, members, wanted, say)
    except (UserError, ValueError) as error:
        what = "its files cannot be read any more, once names and secrets are replaced"
        advice = f"is one of them also a word of the settings, such as a variant? {in_short(names.shown, 20)}"
        raise UserError(Problem("archive", what, str(error), next=advice)) from None
    readme = _readme(manifest, names, (*sorted(members), MANIFEST), names.out_of(warning))
    members["README.md"] = readme.encode()
    digests = {name: sha256(content) for name, content in sorted(members.items())}
    members[MANIFEST] = _dumped(MANIFEST, manifest.replace(files=digests).model_dump())
    return _zipped(members)


def without_names(names: Names, data: Mapping[str, Any], texts: Mapping[str, str]) -> Members:
    """Return the files by name; data: JSON or, if the name says so, YAML."""
    members = {name: _dumped(name, names.out_of_data(value)) for name, value in data.items()}
    members |= {name: names.out_of(text).encode() for name, text in texts.items()}
    return {names.out_of(name): content for name, content in members.items()}


def _data(results: Path, settings: Settings) -> tuple[dict[str, Any], Believed]:
    """Return plan, records, settings and versions by file name; and the records. Raises UserError without any."""
    runs = FullyCheckedRecords(results)
    plan = as_made(read_plan(results / "plan.json"), runs)
    believed = believed_records(runs, plan.runs)
    if not believed.records:
        advice = "start snakemake first; `snakemake report` names what is wrong with records that exist"
        raise UserError(Problem(str(results), "there is no record to archive", next=advice))
    data: dict[str, Any] = {
        "plan.json": replace(plan, units=Units.of(settings)).to_json(),  # as the report here: plan.json may be older
        "settings/config.yaml": settings.experiment.model_dump(mode="json", by_alias=True),
        "settings/cluster.yaml": settings.site.model_dump(mode="json", by_alias=True),
        "versions.json": _versions(),
        **{f"runs/{name}/record.json": record.model_dump(mode="json") for name, record in believed.records.items()},
    }
    return data, believed


def _add_files(results: Path, data: dict[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Add what JSON files hold to the data; return the other texts, and the bytes that are left out by kind."""
    texts: dict[str, str] = {}
    left_out: dict[str, int] = {}
    for name, file in sorted(_files(results)):
        if file.stat().st_size > LARGEST:
            left_out[TOO_LARGE] = left_out.get(TOO_LARGE, 0) + file.stat().st_size
            continue
        text = printable(read_bytes(file).decode(errors="replace"))
        if name.endswith(".json"):
            try:
                data[name] = json.loads(text)
            except ValueError:  # damaged: the reports name it
                texts[name] = text
        else:
            texts[name] = text
    raw = (file for kind in RAW for file in results.glob(f"runs/*/*/*/r*/{kind}/*") if file.is_file())
    left_out["raw files of ranks and nodes"] = sum(file.stat().st_size for file in raw)
    return texts, left_out


def _files(results: Path) -> Iterator[tuple[str, Path]]:
    for pattern in FILES:
        for file in results.glob(pattern):
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(results).as_posix(), file


def _versions() -> dict[str, str]:
    return {"ddp_ladder": __version__, "python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def _dumped(name: str, data: Any) -> bytes:
    if name.endswith(".yaml"):
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode()
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def _report(manifest: Manifest, members: Mapping[str, bytes], wanted: int, say: Callable[[str], None]) -> Members:
    """Return the report of the members, which thus has no other name. wanted: the number of records."""
    with tempfile.TemporaryDirectory() as part, chdir(part):
        directory = Path("results")  # as texts name it
        for name, content in {**members, MANIFEST: _dumped(MANIFEST, manifest.model_dump())}.items():
            write_atomically(directory / name, content)
        ladder = read_unpacked(directory)
        if len(ladder.records) != wanted:
            lost = f"{wanted - len(ladder.records)} of {count(wanted, 'record')}"
            raise ValueError("; ".join((lost, *ladder.warnings)))
        write_report(ladder, date.fromisoformat(manifest.made_on), say=say)
        made = sorted(file for file in (directory / "report").rglob("*") if file.is_file())
        return {file.relative_to(directory).as_posix(): read_bytes(file) for file in made}


def _zipped(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, AT_ONE_TIME)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, members[name])
    return out.getvalue()


def _readme(manifest: Manifest, names: Names, files: tuple[str, ...], warning: str) -> str:
    top = dict.fromkeys(name.partition("/")[0] for name in files)
    kinds = "\n".join(f"| `{name}` | {WHAT[name]} |" for name in top if name in WHAT)
    words = {"user": "users", "account": "accounts (all are `account`)", "login": "names of the host that archived",
             "email": "e-mail addresses"}  # fmt: skip
    replaced = "\n".join(f"- {words[word]}, as `{word}…`: {number}" for word, number in names.replaced.items())
    left_out = "\n".join(f"- {kind}: {size / 1e6:,.1f} MB" for kind, size in manifest.left_out.items() if size)
    unread, begun = count(manifest.unread, "record"), count(manifest.begun, "run")
    missing = f"- {unread} that cannot be believed, and {begun} without one: `manifest.json` says why"
    note = f"\nThe settings here are of the day of the archive, and differ from those of the runs: {warning}\n"
    return README.format(
        site=manifest.site, made_on=manifest.made_on, version=manifest.ddp_ladder, kinds=kinds, replaced=replaced,
        left_out="\n".join(filter(None, (left_out, missing * bool(manifest.warnings)))) or "- nothing",
        note=note * bool(warning),
    )  # fmt: skip


WHAT = {
    "accounting.csv": "what each job held and used",
    "bad_nodes.json": "nodes that failed a preflight",
    "fit": "the search for the batch",
    "forecast": "what was expected of each stage",
    "gates": "the verdict on each stage, with its figures",
    "jobs": "each job's own account",
    "machine": "what the nodes are",
    "manifest.json": "version, and the SHA-256 of each file",
    "plan.json": "every run, resolved",
    "preflight": "the tests of nodes, network and collectives",
    "production": "the chain of jobs of the training",
    "report": "tables and plots: open `report/index.html` in a browser",
    "runs": "of each run the record (all figures), the log, and `job.sh` if it was written",
    "settings": "config.yaml and cluster.yaml, with all defaults",
    "witness": "which batches the script trains on, as one run of it has shown",
    "versions.json": "of the workflow's own software; that of the training is in each record",
}
README = """# A scaling ladder on {site}

Measured with ddp-ladder, archived on {made_on} by version {version}. Open `report/index.html` in a browser. The same
report, written again from the records, without the cluster or its settings:

    snakemake report --config archive=FILE.zip
    python workflow/scripts/history.py FILE.zip OTHER.zip    # beside other dates, sites or software
{note}
| file | what it is |
| --- | --- |
{kinds}

Replaced, each by the same word in every file:

{replaced}

Homes are `/home/user…`; values of secrets are `***`. Names of compute nodes are kept. Free texts, such as logs, may
name what no rule knows: look through `runs/*/*/*/*/train.log` before you publish.

Left out:

{left_out}

The records were compared with the raw files when the archive was made. Without them no record can be judged anew by
later rules, and the pictures of what runs used over time are missing.
"""
