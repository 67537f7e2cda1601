from __future__ import annotations

import pytest
from ddp_ladder.settings.placeholders import NAMES, expand, names_in


def test_every_name_expands() -> None:
    for name in NAMES:
        assert names_in(f"{{{name}}}") == {name}
        assert expand(f"a-{{{name}}}-b", {name: 3}) == "a-3-b"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("{lr}{lr}", "0.10.1"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{0.1}"),
        ('{{"lr": {lr}}}', '{"lr": 0.1}'),
        ("$(touch x); rm -rf ~ `id`", "$(touch x); rm -rf ~ `id`"),
        ("größe={lr}", "größe=0.1"),
        ("%s %(lr)s $lr", "%s %(lr)s $lr"),
    ],
)
def test_expand(template: str, expected: str) -> None:
    assert expand(template, {"lr": 0.1}) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{nodes} * 4", "12"),
        ("{nodes}*{world_size}", "36"),
        ("{world_size} // 5 * 2", "4"),
        ("2 * {nodes}//4", "1"),
        ("{world_size} / 4", "3"),
        ("--batch-size={world_size} // 2", "--batch-size=6"),
        ("+trainer.devices={nodes} * 2", "+trainer.devices=6"),
        ("a * b", "a * b"),
        ("2 * 4", "2 * 4"),
        ("{nodes}/{world_size}", "3/12"),
        ("{run_dir}//3", "r//3"),
        ("{run_dir} / 3", "r / 3"),
        ("{nodes} * 4 samples", "3 * 4 samples"),
        ("of {nodes} * 4", "of 3 * 4"),
        ("{nodes} + 1", "3 + 1"),
        ("{{nodes}} * 4", "{nodes} * 4"),
    ],
)
def test_products_and_quotients_are_worked_out(template: str, expected: str) -> None:
    assert expand(template, {"nodes": 3, "world_size": 12, "run_dir": "r"}) == expected


@pytest.mark.parametrize("template", ["{nodes} / 2", "{nodes} // 0", "{nodes} * 1.5", "{lr} * 2", "x={nodes} / 0"])
def test_what_is_no_whole_number(template: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        expand(template, {"nodes": 3, "lr": "0.1"})


def test_a_value_is_not_expanded_again() -> None:
    assert expand("{data_dir}", {"data_dir": "{lr}", "lr": 1}) == "{lr}"


@pytest.mark.parametrize("template", ["{", "}", "{lr", "lr}", "{{lr}", "{lr}}", "{l{r}"])
def test_brace_without_partner(template: str) -> None:
    with pytest.raises(ValueError, match="without its partner"):
        names_in(template)
    with pytest.raises(ValueError, match="without its partner"):
        expand(template, {"lr": 1})


@pytest.mark.parametrize("name", ["", "0", "lr.real", "lr[0]", "lr!r", "lr:>9", " lr ", "LR", "nope"])
def test_only_plain_known_names_are_understood(name: str) -> None:
    assert names_in(f"{{{name}}}") == {name}
    with pytest.raises(ValueError, match="unknown placeholder"):
        expand(f"{{{name}}}", {name: 1, "lr": 1})


@pytest.mark.parametrize("values", [{}, {"lr": None}])
def test_name_without_value(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"placeholder \{lr\} has no value"):
        expand("{lr}", values)
