"""The archive of a ladder: a zip with a manifest, read back without the settings of the place where it is shown.

Its records are those that were believed when it was made: their raw files are not in it.
"""

from __future__ import annotations

import getpass
import io
import json
import os
import platform
import pwd
import re
import shlex
import socket
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from ddp_ladder_instrument.redaction import HIDDEN, SHORTEST, secrets_in, without_values
from pydantic import Field, TypeAdapter

from ddp_ladder import __version__
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.assembly.run_records import FullyCheckedRecords, RecordOrError, RunRecords, as_made
from ddp_ladder.common.files import (
    opened,
    parsed_json,
    read_as,
    read_bytes,
    readable,
    sha256,
    write_atomically,
)
from ddp_ladder.common.formats import count, in_short
from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.common.model import Count, Model, Several
from ddp_ladder.ledger.jobs import read_rows
from ddp_ladder.plan.plan import Plan, RunSpec, Units, read_plan
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.report.page import write_report
from ddp_ladder.report.view import Believed, LadderResults, believed_records, read_results
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.terms import PLAIN_VARIANT, REFERENCE_VARIANT
from ddp_ladder.settings.yaml import texts

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
    if directory.exists() and readable(Manifest, directory / MANIFEST) != _manifest(file, _read(file)):
        what = "the archive would be unpacked here, among other files"
        raise UserError(Problem(str(directory), what, next="move the archive or this directory"))
    return directory


def read_unpacked(directory: Path) -> LadderResults:
    """Read the results in an unpacked archive. Raises UserError."""
    manifest = read_as(Manifest, directory / MANIFEST)
    ladder = read_results(directory, read_plan(directory / "plan.json"), runs=ArchivedRecords(directory))
    known = {field.name for field in fields(Work)}
    work = replace(ladder.work, **{name: value for name, value in manifest.report.items() if name in known})
    ladder = replace(ladder, unread=manifest.unread, begun=manifest.begun)
    return replace(ladder, warnings=(*manifest.warnings, *ladder.warnings), jobs=read_rows(directory), work=work)


def read_archive(file: Path, directory: Path) -> tuple[Manifest, LadderResults]:
    """Unpack an archive in a directory and read it. Raises UserError."""
    return unpack(file, directory), read_unpacked(directory)


LARGEST = 1_000_000  # bytes of a text that is kept whole
TOO_LARGE = f"texts above {LARGEST:,} bytes"
FILES = (
    "accounting.csv", "bad_nodes.json", "fit/*.json", "forecast/*.json", "gates/*.json", "jobs/*/*.json",
    "machine/*/*/machine.json", "preflight/*.json", "preflight/*/facts/*.json",
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
    own = {"ddp_ladder": __version__, "python": platform.python_version()}
    data: dict[str, Any] = {
        "plan.json": replace(plan, units=Units.of(settings)).to_json(),  # as the report here: plan.json may be older
        "settings/config.yaml": settings.experiment.model_dump(mode="json", by_alias=True),
        "settings/cluster.yaml": settings.site.model_dump(mode="json", by_alias=True),
        "versions.json": {**own, **{name: version(name) for name in PACKAGES}},
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

    python workflow/scripts/report.py --archive FILE.zip
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


# --- Names in the files of an archive (people, homes, accounts, login hosts, addresses), and the words in their place.


GROUPS = ("jusers", "userexternal", "userinternal", "usertrain", "users", "bsc")  # of homes: a directory for each
NOBODY = frozenset({"", "root", "localhost", "user", "shared", "home", *GROUPS})  # in place of a name of a person
FIRST_USER = 1000  # user id: those below are of services
_NAME = r"([A-Za-z0-9][\w.-]*)"
_HOME = re.compile(
    rf"""(?x) (?: /(?:linkhome|lus/home)(?:/[\w.-]+){{2}}        # of a community and a group
    | /(?:home[s\d]*|[Uu]sers?|jusers)(?:/(?:[a-z]|{"|".join(GROUPS)}))?
    | (?<![\w.-])(?:/\w+)?/u\d?(?:/[a-z])? ) /{_NAME}"""
)
_LOGIN = re.compile(rf"\b(?:USER|LOGNAME|[A-Z]+_USER)=['\"]?{_NAME}|\blogin\s+{_NAME}(?=\s+password\s)")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}")
_ACCOUNT = re.compile(rf"(?:--account[= ]|#SBATCH +-A *)['\"]?{_NAME}")
_DIRECTORY = re.compile(r"/([A-Za-z_][\w-]{0,31})(?=/)")


Key = TypeVar("Key", int, str)


@dataclass(frozen=True)
class Names:
    """What must not appear in an archive."""

    users: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # of the machine that archives: a login node, or a person's own
    addresses: tuple[str, ...] = ()  # of e-mail
    secrets: tuple[str, ...] = ()  # values

    @classmethod
    def of_this_machine(cls, directory: Path, accounts: Iterable[str], secrets: Iterable[str]) -> Names:
        """Return the names of who archives and of who owns the directory. secrets: the variables that hold one."""
        owners = [found for uid in (os.getuid(), directory.stat().st_uid) if (found := _known(pwd.getpwuid, uid))]
        users = [getpass.getuser(), *(os.environ.get(name, "") for name in ("USER", "LOGNAME", "SLURM_JOB_USER"))]
        users += _names_of(owners)
        known = [os.environ.get(name, "") for name in ("SLURM_JOB_ACCOUNT", "SLURM_ACCOUNT", "SBATCH_ACCOUNT")]
        host = socket.gethostname()
        return cls(
            users=tuple(users),
            homes=(str(Path.home()), *(owner.pw_dir for owner in owners)),
            accounts=(*accounts, *known),
            hosts=(socket.getfqdn(), host, host.partition(".")[0], os.environ.get("SLURM_SUBMIT_HOST", "")),
            secrets=tuple(os.environ.get(name, "") for name in secrets),
        )

    def with_those_in(self, texts: Iterable[str], settings: Iterable[str] = ()) -> Names:
        """Return these names with those that texts show: whose homes, addresses and accounts they name, and secrets.

        A secret that a text shows as one is also hidden where nothing tells that it is one; of the settings any.
        """
        users, addresses, accounts = dict[str, None](), dict[str, None](), dict[str, None]()
        directories, secrets = set[str](), set[str]()
        for text in dict.fromkeys(texts):
            for place in self._homes:
                users |= dict.fromkeys(name.rstrip(".") for name in place.findall(text))
            users |= dict.fromkeys(name for names in _LOGIN.findall(text) for name in names)
            addresses |= dict.fromkeys(_ADDRESS.findall(text))
            accounts |= dict.fromkeys(_ACCOUNT.findall(text))
            directories |= {*_DIRECTORY.findall(text)}
            secrets |= {secret for secret in secrets_in(text) if re.search(r"\d", secret)}
        secrets |= {secret for text in settings for secret in secrets_in(text)}
        people = [found for name in sorted(directories - own_words()) if (found := _known(pwd.getpwnam, name))]
        people = [found for found in people if found.pw_uid >= FIRST_USER]
        more = {
            "users": (*users, *_names_of(people)), "addresses": addresses, "accounts": accounts,
            "homes": [found.pw_dir for found in people],
            "secrets": sorted(secret for secret in secrets if len(secret) >= SHORTEST),
        }  # fmt: skip
        return replace(self, **{kind: (*getattr(self, kind), *found) for kind, found in more.items()})

    @cached_property
    def _homes(self) -> list[re.Pattern[str]]:
        """Return where texts name a home: in the usual places, and as far below one as the homes of this machine."""
        own = [re.match(r"(.*/[a-z]*home[s\d]*)((?:/[^/]+)+)$", home) for home in self.homes]
        deep = [rf"{re.escape(home[1])}(?:/[\w.-]+){{{home[2].count('/') - 1}}}/{_NAME}" for home in own if home]
        return [*map(re.compile, dict.fromkeys(deep)), _HOME]

    @cached_property
    def _words(self) -> dict[str, str]:
        """Return the word in place of each name, in lower case, the longest name first."""
        users, words = _distinct(self.users), dict[str, str]()
        for kind, names in (("login", self.hosts), ("account", self.accounts), ("email", self.addresses)):
            words |= {name: kind if kind == "account" else f"{kind}{k}" for k, name in enumerate(_distinct(names), 1)}
        words |= {name: f"user{k}" for k, name in enumerate(users, 1)}
        for home in _distinct(self.homes):
            if home.count("/") > 1:  # not /root, which names nobody
                name = home.rpartition("/")[2]
                words[home] = f"/home/{words.get(name, 'user1')}"
        words |= {secret: HIDDEN for secret in self.secrets if secret}
        shown = {form: word for name, word in words.items() for form in _forms(name)}
        return {form.lower(): shown[form] for form in sorted(shown, key=len, reverse=True)}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        # Between letters and digits a short name may be any part of a word.
        forms = [form for form in self._words if form not in own_words()]
        parts = (f"{_edge(form[0], '<!')}{re.escape(form)}{_edge(form[-1], '!')}" for form in forms)
        return re.compile("|".join(parts), re.IGNORECASE) if forms else None

    @cached_property
    def _out_of_each_once(self) -> Callable[[str], str]:
        return cache(self.out_of)  # the texts of a thousand ranks are mostly the same

    def out_of(self, text: str) -> str:
        text, pattern = without_values(text, os.environ), self._pattern
        for place in (*self._homes, _LOGIN, _ACCOUNT):  # where a word of the ladder is a name, too
            text = place.sub(self._renamed, text)
        return pattern.sub(lambda found: self._words.get(found[0].lower(), HIDDEN), text) if pattern else text

    def _renamed(self, found: re.Match[str]) -> str:
        name = next(filter(None, found.groups())).rstrip(".")
        word, begin = self._words.get(name.lower(), name), found[0].rindex(name)
        return f"{found[0][:begin]}{word}{found[0][begin + len(name) :]}"

    def out_of_data(self, data: Any) -> Any:
        """Return what a JSON file holds without the names and secrets; keys of the ladder stay, being its words."""
        if isinstance(data, str):
            return self._out_of_each_once(data)
        if isinstance(data, list | tuple):
            return [self.out_of_data(value) for value in data]
        if isinstance(data, Mapping):
            return {self.out_of_data(str(key)): self.out_of_data(value) for key, value in data.items()}
        return data

    @property
    def replaced(self) -> dict[str, int]:
        """Return how many names of each kind stand for others, by the word in their place."""
        counted = (("user", self.users), ("account", self.accounts), ("login", self.hosts), ("email", self.addresses))
        return {word: len(_distinct(names)) for word, names in counted}

    @property
    def shown(self) -> list[str]:
        """Return all names that are replaced, without secrets."""
        return _distinct((*self.users, *self.accounts, *self.hosts, *self.addresses))


def texts_in(data: Any) -> Iterator[str]:
    """Yield every text of what a JSON file holds."""
    return (text for _, text in texts(data))


@cache
def own_words() -> frozenset[str]:
    """Return the words of keys and fixed values in the ladder's files: one is no name, but where only a name can be."""
    models: tuple[Any, ...] = (Plan, *_below(Model))
    _, schema = TypeAdapter.json_schemas([(model, "validation", TypeAdapter(model)) for model in models])
    words = {REFERENCE_VARIANT, PLAIN_VARIANT, *_fixed_in(schema)}
    return frozenset(part.lower() for word in words for part in (word, *re.findall(r"[A-Za-z0-9]+", word)))


def _below(model: type[Model]) -> Iterator[type[Model]]:
    for each in model.__subclasses__():
        yield each
        yield from _below(each)


def _fixed_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from map(str, (*schema.get("properties", ()), *schema.get("enum", ()), schema.get("const", "")))
        schema = [*schema.values()]
    for part in schema if isinstance(schema, list) else ():
        yield from _fixed_in(part)


def _known(look_up: Callable[[Key], pwd.struct_passwd], key: Key) -> pwd.struct_passwd | None:
    try:
        return look_up(key)
    except KeyError:
        return None


def _names_of(people: Iterable[pwd.struct_passwd]) -> list[str]:
    return [text for person in people for text in (person.pw_name, person.pw_gecos.partition(",")[0])]


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.strip().lower() not in NOBODY))


def _forms(name: str) -> set[str]:
    """Return a name as it is, and as JSON and a shell write it."""
    quoted = shlex.quote(name)
    return {
        name,
        json.dumps(name)[1:-1],
        json.dumps(name, ensure_ascii=False)[1:-1],
        quoted[1:-1] if quoted[0] == "'" else quoted,
    }


def _edge(sign: str, look: str) -> str:
    return f"(?{look}[A-Za-z0-9])" if sign.isalnum() else ""
