"""Names in the files of an archive (people, homes, accounts, login hosts, addresses), and the words in their place."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ddp_ladder_instrument.redaction import HIDDEN, without_values

NOBODY = frozenset({"", "root", "localhost", "user", "shared", "home"})  # in place of a name, and none of a person
_HOME = re.compile(r"/(?:home|homes|users|Users|jusers)/(?:[a-z]/)?([A-Za-z0-9][\w.-]*)")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}")
_ACCOUNT = re.compile(r"(?:--account[= ]|#SBATCH +-A *)['\"]?([\w.-]+)")


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
        owners = [found for uid in (os.getuid(), directory.stat().st_uid) if (found := _known(uid))]
        users = [getpass.getuser(), *(os.environ.get(name, "") for name in ("USER", "LOGNAME", "SLURM_JOB_USER"))]
        users += [text for owner in owners for text in (owner.pw_name, owner.pw_gecos.partition(",")[0])]
        known = [os.environ.get(name, "") for name in ("SLURM_JOB_ACCOUNT", "SLURM_ACCOUNT", "SBATCH_ACCOUNT")]
        host = socket.gethostname()
        return cls(
            users=tuple(users),
            homes=(str(Path.home()), *(owner.pw_dir for owner in owners)),
            accounts=(*accounts, *known),
            hosts=(socket.getfqdn(), host, host.partition(".")[0], os.environ.get("SLURM_SUBMIT_HOST", "")),
            secrets=tuple(os.environ.get(name, "") for name in secrets),
        )

    def with_those_in(self, texts: Iterable[str]) -> Names:
        """Return these names with those that texts show: whose homes, addresses and accounts they name."""
        users, addresses, accounts = dict[str, None](), dict[str, None](), dict[str, None]()
        for text in texts:
            users |= dict.fromkeys(name.rstrip(".") for name in _HOME.findall(text))
            addresses |= dict.fromkeys(_ADDRESS.findall(text))
            accounts |= dict.fromkeys(_ACCOUNT.findall(text))
        more = {"users": users, "addresses": addresses, "accounts": accounts}
        return replace(self, **{kind: (*getattr(self, kind), *found) for kind, found in more.items()})

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
        parts = (f"{_edge(form[0], '<!')}{re.escape(form)}{_edge(form[-1], '!')}" for form in self._words)
        return re.compile("|".join(parts), re.IGNORECASE) if self._words else None

    @cached_property
    def _out_of_each_once(self) -> Callable[[str], str]:
        return cache(self.out_of)  # the texts of a thousand ranks are mostly the same

    def out_of(self, text: str) -> str:
        text, pattern = without_values(text, os.environ), self._pattern
        return pattern.sub(lambda found: self._words.get(found[0].lower(), HIDDEN), text) if pattern else text

    def out_of_data(self, data: Any) -> Any:
        """Return what a JSON file holds without the names and secrets, in keys, too."""
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


def texts_in(data: Any) -> Iterable[str]:
    """Yield every text of what a JSON file holds."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield str(key)
            yield from texts_in(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from texts_in(value)


def _known(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


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
