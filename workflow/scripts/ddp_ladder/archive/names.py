"""Names in the files of an archive (people, homes, accounts, login hosts, addresses), and the words in their place."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from ddp_ladder_instrument.redaction import HIDDEN, SHORTEST, secrets_in, without_values
from pydantic import TypeAdapter

from ddp_ladder.common.model import Model
from ddp_ladder.plan.plan import Plan
from ddp_ladder.settings.terms import PLAIN_VARIANT, REFERENCE_VARIANT
from ddp_ladder.settings.yaml import texts

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
