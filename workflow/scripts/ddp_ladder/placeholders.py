"""Placeholders in arguments: ``{lr}`` becomes a value, ``{{`` and ``}}`` are literal braces."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

NAMES: tuple[str, ...] = (
    "batch_per_gpu",
    "global_batch",
    "lr",
    "nodes",
    "gpus_per_node",
    "world_size",
    "run_dir",
    "data_dir",
    "start_dir",
    "seed",
    "backend",
)

_TOKEN = re.compile(r"(?P<escaped>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<stray>[{}])")


def names_in(template: str) -> set[str]:
    """Return the names in ``template``, also unknown ones.

    Raises ValueError for a brace without its partner.
    """
    return {name for name, _ in _split(template) if name is not None}


def expand(template: str, values: Mapping[str, object]) -> str:
    """Put ``values`` in place of the names.

    Nothing but a plain name is understood (``{a.b}``, ``{a[0]}`` and ``{0}`` are unknown names),
    and a value is never expanded again. Raises ValueError for a name that is unknown or has no
    value, and for a brace without its partner.
    """
    return "".join(literal if name is None else _value(name, values) for name, literal in _split(template))


def product(text: str) -> int:
    """Multiply out ``64 * 4``. Raises ValueError for anything but whole numbers above 0 with ``*`` between them."""
    factors = [factor.strip() for factor in text.split("*")]
    if not all(factor.isascii() and factor.isdigit() and int(factor) > 0 for factor in factors):
        raise ValueError(f"{text!r} is not a product of whole numbers")
    return math.prod(map(int, factors))


def _value(name: str, values: Mapping[str, object]) -> str:
    if name not in NAMES:
        raise ValueError(f"unknown placeholder {{{name}}}")
    value = values.get(name)
    if value is None:
        raise ValueError(f"placeholder {{{name}}} has no value")
    return str(value)


def _split(template: str) -> Iterator[tuple[str | None, str]]:
    """Yield (name, "") for a placeholder and (None, text) for what stands between them."""
    end = 0
    for token in _TOKEN.finditer(template):
        yield None, template[end : token.start()]
        end = token.end()
        if token["stray"]:
            raise ValueError(f"{token['stray']} without its partner in {template!r}")
        if token["escaped"]:
            yield None, token["escaped"][0]
        else:
            yield token["name"], ""
    yield None, template[end:]
