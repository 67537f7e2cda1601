"""Names of environment variables that no communication library reads: warnings with a did-you-mean, no refusal."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ddp_ladder_instrument import slow_settings

from ddp_ladder.common.messages import Problem
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.settings.checks import environments
from ddp_ladder.settings.keys import Settings, Site

FILE = Path(__file__).with_name("variables.txt")
SHELL = "the shell's environment"

# Every name of these families is listed; longer prefixes first.
CLOSED = {"TORCH_NCCL_": "torch", "NCCL_": "NCCL", "GLOO_": "Gloo", "OMP_": "OpenMP"}
# Of these only the common names are, so a warning needs a name that is very like one of them.
OPEN = ("TORCH_", "TORCHELASTIC_", "PYTORCH_", "GOMP_", "KMP_", "CUDA_", "HSA_", "FI_", "UCX_", "OFI_NCCL_")
PREFIXES = (*CLOSED, *OPEN)
LIKE, VERY_LIKE = 0.65, 0.9  # of difflib


def check_variables(settings: Settings, shell: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return a warning for each variable in network.env, workload.env, the variants and the shell that nothing reads,
    or that slows every step.
    """
    places = list[tuple[str, str, str]]()
    for file, path, env in environments(settings):
        places += [(file.where(*path, name), name, value) for name, value in env.items()]
    names = sorted(name for name in shell if name.startswith(PREFIXES) or name in slow_settings.VARIABLES)
    places += [(f"{SHELL}: {name}", name, shell[name]) for name in names]
    found = [_slow(settings.site, *place) or _problem(place[1], place[0]) for place in places]
    return tuple(dict.fromkeys(filter(None, found)))


def _slow(site: Site, where: str, name: str, value: str) -> Problem | None:
    found = slow_settings.variables({name: value})
    words = slow_settings.in_words(found, is_gpu(site.node.device), site.network.transport)
    return Problem(where, "it slows every step", words, next=slow_settings.REMOVE) if words else None


def _problem(name: str, where: str) -> Problem | None:
    if _is_known(name):
        return None
    family = next((library for prefix, library in CLOSED.items() if name.startswith(prefix)), None)
    names = {_words(known): known for known in known_names()}
    near = difflib.get_close_matches(_words(name), names, n=1, cutoff=LIKE if family else VERY_LIKE)
    if not family and not near:
        return None
    what = f"no release of {family or 'a communication library'} that is known here reads this variable"
    if name in ("NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT"):
        advice = "remove it: the timeout of collectives is an argument of init_process_group in the script"
    elif near:
        meant = names[near[0]]
        opposite = ("DISABLE" in name) != ("DISABLE" in meant)
        advice = f'did you mean "{meant}"?' + (" It says the opposite: exchange 0 and 1" if opposite else "")
    else:
        advice = "remove it, unless a plugin or a newer release reads it"
    return Problem(where, what, name, next=advice)


def _words(name: str) -> str:
    """Return the sorted words of a name, with ENABLE for DISABLE: people write NCCL_ENABLE_IB for NCCL_IB_DISABLE."""
    return "_".join(sorted(name.upper().replace("DISABLE", "ENABLE").split("_")))


@cache
def known_names() -> tuple[str, ...]:
    """Read the list, once. A name that ends with * stands for all that begin like it."""
    return tuple(line for line in FILE.read_text().splitlines() if line and not line.startswith("#"))


def _is_known(name: str) -> bool:
    return name in known_names() or any(known.endswith("*") and name.startswith(known[:-1]) for known in known_names())
