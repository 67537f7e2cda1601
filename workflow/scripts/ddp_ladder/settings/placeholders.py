"""Placeholders: ``{lr}`` becomes a value, ``{nodes} * 4`` a number, ``{{`` and ``}}`` are literal braces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

NAMES: tuple[str, ...] = (
    "batch_per_gpu",
    "global_batch",
    "lr",
    "nodes",
    "gpus_per_node",
    "world_size",
    "threads_per_rank",
    "run_dir",
    "data_dir",
    "start_dir",
    "seed",
    "backend",
)
NUMBERS = ("batch_per_gpu", "global_batch", "lr", "nodes", "gpus_per_node", "world_size", "threads_per_rank", "seed")

_TOKEN = re.compile(r"(?P<escaped>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<stray>[{}])")

# A quotient needs spaces, because {seed}/{nodes} may be a directory, or a shard such as 1/4.
_OPERAND = rf"(?:\{{(?:{'|'.join(NUMBERS)})\}}|[0-9]+(?:\.[0-9]+)?)"
_OPERATOR = r"(?: *(?:\*|//) *| +/ +)"
_ARITHMETIC = re.compile(rf"(?P<head>[^\s{{}}=]+=)?(?P<terms>{_OPERAND}(?:{_OPERATOR}{_OPERAND})+)")


def names_in(template: str) -> set[str]:
    """Return the names in ``template``, also unknown ones.

    Raises ValueError for an unmatched brace.
    """
    return {name for name, _ in _split(template) if name is not None}


def is_arithmetic(template: str) -> bool:
    """Return True for a product or quotient with placeholders, alone or after ``name=``."""
    return "{" in template and _ARITHMETIC.fullmatch(template) is not None


def expand(template: str, values: Mapping[str, object]) -> str:
    """Return the template with ``values`` filled in, and a product or quotient of whole numbers computed.

    Only plain names are placeholders (``{a.b}``, ``{a[0]}`` and ``{0}`` are unknown names), and values are not expanded
    again. Raises ValueError for a name that is unknown or has no value, for an unmatched brace, and for a product or
    quotient that is not a whole number.
    """
    if is_arithmetic(template):
        head, _, terms = template.rpartition("=")
        return (f"{head}=" if head else "") + str(whole_number(terms, values))
    return "".join(literal if name is None else _value(name, values) for name, literal in _split(template))


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


def literal(template: str) -> str:
    """Return the text with literal braces doubled, and those of placeholders unchanged."""
    parts = re.split(rf"(\{{(?:{'|'.join(NAMES)})\}})", template)
    return "".join(part if k % 2 else part.replace("{", "{{").replace("}", "}}") for k, part in enumerate(parts))


def _value(name: str, values: Mapping[str, object]) -> str:
    if name not in NAMES:
        raise ValueError(f"unknown placeholder {{{name}}}")
    value = values.get(name)
    if value is None:
        raise ValueError(f"placeholder {{{name}}} has no value")
    return str(value)


def _split(template: str) -> Iterator[tuple[str | None, str]]:
    """Yield (name, "") for a placeholder and (None, text) for the text between them."""
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
