"""Placeholders: ``{lr}`` becomes a value, ``{nodes} * 4`` a number, ``{{`` and ``}}`` are literal braces."""

from __future__ import annotations

import re
from collections.abc import Mapping

NUMBERS = (
    "batch_per_gpu", "global_batch", "accumulation", "lr", "nodes", "gpus_per_node", "world_size", "threads_per_rank",
)  # fmt: skip
PATHS = ("run_dir", "data_dir", "start_dir")
NAMES = (*NUMBERS, *PATHS, "seed", "backend")

_TOKEN = re.compile(r"(?P<escaped>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<stray>[{}])")

# A quotient needs spaces, because {seed}/{nodes} may be a directory, or a shard such as 1/4.
_OPERAND = rf"(?:\{{(?:{'|'.join(NUMBERS)})\}}|[0-9]+(?:\.[0-9]+)?)"
_OPERATOR = r"(?: *(?:\*|//) *| +/ +)"
_ARITHMETIC = re.compile(rf"(?P<head>[^\s{{}}=]+=)?(?P<terms>{_OPERAND}(?:{_OPERATOR}{_OPERAND})+)")


def expand(template: str, values: Mapping[str, object]) -> str:
    """Return the template with ``values`` filled in, and a product or quotient of whole numbers computed.

    Only plain names are placeholders (``{a.b}``, ``{a[0]}`` and ``{0}`` are unknown names), and values are not expanded
    again. Raises ValueError for a name that is unknown or has no value, for an unmatched brace, and for a product or
    quotient that is not a whole number.
    """
    if "{" in template and (product := _ARITHMETIC.fullmatch(template)):
        return (product["head"] or "") + str(whole_number(product["terms"], values))
    return _TOKEN.sub(lambda token: _filled(token, values), template)


def _filled(token: re.Match[str], values: Mapping[str, object]) -> str:
    name = token["name"]
    if token["escaped"]:
        return token["escaped"][0]
    if token["stray"]:
        raise ValueError(f"{token['stray']} without its partner")
    if name not in NAMES:
        raise ValueError(f"unknown placeholder {{{name}}}")
    if values.get(name) is None:
        raise ValueError(f"placeholder {{{name}}} has no value")
    return str(values[name])


def whole_number(terms: str, values: Mapping[str, object]) -> int:
    """Compute ``64 * {nodes} // 2`` from left to right.

    ``//`` rounds down, ``/`` must divide evenly. Raises ValueError if a part is not a whole number.
    """
    first, *rest = re.split(rf"({_OPERATOR})", terms.strip())
    result = _operand(first, values)
    for operator, text in zip(rest[::2], rest[1::2], strict=True):
        operand = _operand(text, values)
        if operator.strip() == "*":
            result *= operand
        elif operand == 0 or (operator.strip() == "/" and result % operand):
            raise ValueError(f"{result} {operator.strip()} {operand} is not a whole number")
        else:
            result //= operand
    return result


def _operand(text: str, values: Mapping[str, object]) -> int:
    number = expand(text, values)
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{number} is not a whole number")
    return int(number)
