"""Placeholders, products and quotients."""

from __future__ import annotations

import pytest
from ddp_ladder.settings.terms import PLACEHOLDERS, expand

VALUES: dict[str, object] = {"lr": 0.1, "nodes": 3, "world_size": 12, "run_dir": "r", "data_dir": "{lr}"}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("{lr}{lr}", "0.10.1"),
        ("{{{lr}}}", "{0.1}"),
        ('{{"lr": {lr}}}', '{"lr": 0.1}'),
        ("$(touch x); rm -rf ~ `id` größe %s %(lr)s $lr", "$(touch x); rm -rf ~ `id` größe %s %(lr)s $lr"),
        ("{data_dir}", "{lr}"),  # not expanded again
        ("{nodes} * 4", "12"),
        ("{nodes}*{world_size}", "36"),
        ("{world_size} // 5 * 2", "4"),
        ("{world_size} / 4", "3"),
        ("--batch-size={world_size} // 2", "--batch-size=6"),
        ("2 * 4", "2 * 4"),
        ("{nodes}/{world_size}", "3/12"),
        ("{run_dir}//3", "r//3"),
        ("of {nodes} * 4", "of 3 * 4"),
        ("{{nodes}} * 4", "{nodes} * 4"),
    ],
)
def test_expand(template: str, expected: str) -> None:
    assert expand(template, VALUES) == expected
    assert all(expand(f"a-{{{name}}}-b", {name: 3}) == "a-3-b" for name in PLACEHOLDERS)


@pytest.mark.parametrize(
    ("templates", "said"),
    [
        (["{nodes} / 2", "{nodes} // 0", "{nodes} * 1.5", "{lr} * 2", "x={nodes} / 0"], "is not a whole number"),
        (["{", "}", "{lr", "lr}", "{{lr}", "{lr}}", "{l{r}"], "without its partner"),
        (["{}", "{0}", "{lr.real}", "{lr[0]}", "{lr:>9}", "{ lr }", "{LR}"], "unknown placeholder"),
        (["{seed}"], r"placeholder \{seed\} has no value"),
    ],
)
def test_what_cannot_be_filled_in(templates: list[str], said: str) -> None:
    for template in templates:
        with pytest.raises(ValueError, match=said):
            expand(template, {**VALUES, "seed": None})
