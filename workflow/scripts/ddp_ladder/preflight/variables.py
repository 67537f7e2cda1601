"""Names of environment variables that no communication library reads: warnings with a did-you-mean, no refusal."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from ddp_ladder.common.messages import Problem
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.yaml import Document

FILE = Path(__file__).with_name("variables.txt")
SHELL = "the shell's environment"

# Every name of these families is listed; longer prefixes first.
CLOSED = {"TORCH_NCCL_": "torch", "NCCL_": "NCCL", "GLOO_": "Gloo", "OMP_": "OpenMP"}
# Of these only the common names are, so a warning needs a name that is one edit away.
OPEN = ("TORCH_", "TORCHELASTIC_", "PYTORCH_", "GOMP_", "KMP_", "CUDA_", "HSA_", "FI_", "UCX_", "OFI_NCCL_")
PREFIXES = (*CLOSED, *OPEN)


def check_variables(settings: Settings, shell: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return a warning for each name in network.env, workload.env, the variants and the shell that nothing reads."""

    def in_file(document: Document, *path: str) -> Callable[[str], str]:
        return lambda name: document.where(*path, name)

    places: list[tuple[Mapping[str, str], Callable[[str], str]]] = [
        (settings.site.network.env, in_file(settings.cluster, "network", "env")),
        (settings.experiment.workload.env, in_file(settings.config, "workload", "env")),
        *(
            (variant.env, in_file(settings.config, "variants", name, "env"))
            for name, variant in settings.experiment.variants.items()
        ),
        ({name: "" for name in sorted(shell) if name.startswith(PREFIXES)}, lambda name: f"{SHELL}: {name}"),
    ]
    found = (_problem(name, where) for names, where in places for name in names)
    return tuple(dict.fromkeys(problem for problem in found if problem))


def _problem(name: str, where: Callable[[str], str]) -> Problem | None:
    if _is_known(name):
        return None
    if _is_known(name.upper()):
        return Problem(where(name), "libraries read this name in upper case only", name, next=f"write {name.upper()}")
    if family := next((prefix for prefix in CLOSED if name.startswith(prefix)), None):
        what = f"no release of {CLOSED[family]} that is known here reads this variable"
        if family != "OMP_" and name.endswith("_TIMEOUT"):
            advice = "remove it: the timeout of collectives is an argument of init_process_group in the script"
        else:
            advice = _guess(name, family) or "remove it, unless a plugin or a newer release reads it"
        return Problem(where(name), what, name, next=advice)
    if near := _one_edit_away(name):
        what = f"one letter away from {near}, and probably without effect"
        return Problem(where(name), what, name, next=f'did you mean "{near}"?')
    return None


def _guess(name: str, family: str) -> str | None:
    """Return ``did you mean "x"?`` for the known name that is most like an unknown one of a closed family."""
    same_words = (each for each in known_names() if _words(each) == _words(name))
    meant = _one_edit_away(name) or next(same_words, None) or _of_another_family(name) or _similar(name, family)
    if meant is None:
        return None
    opposite = ("DISABLE" in name) != ("DISABLE" in meant) and "ABLE" in name and "ABLE" in meant
    return f'did you mean "{meant}"?' + (" It says the opposite: exchange 0 and 1" if opposite else "")


def _words(name: str) -> frozenset[str]:
    """Return the words of a name, with ENABLE for DISABLE: people write NCCL_ENABLE_IB for NCCL_IB_DISABLE."""
    return frozenset(name.replace("DISABLE", "ENABLE").split("_"))


def _of_another_family(name: str) -> str | None:
    """Return the known name with or without torch's prefix."""
    return next((each for each in (f"TORCH_{name}", name.removeprefix("TORCH_")) if each in known_names()), None)


def _similar(name: str, family: str) -> str | None:
    rests = [each.removeprefix(family) for each in known_names() if each.startswith(family)]
    found = difflib.get_close_matches(name.removeprefix(family), rests, n=1, cutoff=0.6)
    return family + found[0] if found else None


@cache
def known_names() -> tuple[str, ...]:
    """Read the list, once. A name that ends with * stands for all that begin like it."""
    return tuple(line for line in FILE.read_text().splitlines() if line and not line.startswith("#"))


def _is_known(name: str) -> bool:
    return name in known_names() or any(each.endswith("*") and name.startswith(each[:-1]) for each in known_names())


def _one_edit_away(name: str) -> str | None:
    near = (each for each in known_names() if abs(len(each) - len(name)) < 2)
    return next((each for each in near if _is_one_edit(name, each)), None)


def _is_one_edit(one: str, other: str) -> bool:
    """Return True if one character is inserted, left out or another, or two neighbours are exchanged."""
    start = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        return one != other  # one of them is longer by its last character
    rest, of_other = one[start:], other[start:]
    swapped = rest[:2] == of_other[:2][::-1] and rest[2:] == of_other[2:]
    return swapped or rest[1:] in (of_other, of_other[1:]) or rest == of_other[1:]
