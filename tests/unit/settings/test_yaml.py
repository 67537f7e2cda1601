"""YAML 1.2 with the line of each key; what is not YAML is one message with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings import yaml
from ddp_ladder.settings.yaml import YamlFile, key_name, scalar


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str | bytes) -> YamlFile:
    file = Path("c.yaml")
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return yaml.read(file)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("FALSE", False),
        ("0", 0), ("-12", -12), ("+5", 5), ("012", 12), ("0x1F", "0x1F"),
        ("1e-3", 1e-3), (".5", 0.5), ("1.", 1.0), ("16.0", 16.0),
        *((word, word) for word in ("no", "Off", "yes", "on", "y", "1:30:00", "1_000", "2026-01-31", "0b11", ".inf")),
        *((text, text) for text in ("1.2.3", "2x4", "--lr", "-", "host:29500", "$(touch x)", "; rm -rf /", "größe")),
        ("\u0661\u0662", "\u0661\u0662"),  # digits to Python, text to YAML
        ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_plain_values_follow_yaml_1_2(text: str, value: Any) -> None:
    result = scalar(text)
    assert (result, type(result)) == (value, type(value))


def test_data_lines_and_values_that_stay_as_typed() -> None:
    document = read(
        "\ufeff"  # a byte order mark is no matter
        'a: 1e-3\nb:\n  - x\n  - "012"\n  - {c: 8}\n\nd: |\n  no\n'
        "args: [1e-4, 0.50, true, null]\nenv: {A: +5, B: }\nprepare:\n"
    )
    assert document.data == {
        "a": 0.001, "b": ["x", "012", {"c": 8}], "d": "no\n", "args": ["1e-4", "0.50", "true", "null"],
        "env": {"A": "+5", "B": ""}, "prepare": None,
    }  # fmt: skip
    lines = {key_name(path): line for path, line in document.lines.items()}
    expected = {"a": 1, "b": 2, "b[0]": 3, "b[2]": 5, "b[2].c": 5, "d": 7, "args[1]": 9, "env.A": 10}
    assert expected.items() <= lines.items()


@pytest.mark.parametrize(
    ("text", "head", "advice"),
    [
        ("# only a comment\n", "c.yaml: the file is empty", "restore the shipped file: git checkout -- c.yaml"),
        ("# x\n- a\n", "c.yaml: the file is empty, or holds no keys", "restore the shipped file"),
        ("a: {{lr}: 1}\n", "c.yaml, line 1, column 5: not YAML: a list or mapping as a key", 'such as "{lr}"'),
        ("b: {c: 1,\n  c: 3}\n", "c.yaml, line 2, column 3: not YAML: duplicate key b.c, first on line 1", ""),
        (b"a: 1\nb: \xe9\n", "c.yaml: the file cannot be read: 'utf-8' codec", ""),
        ("a: 1\nb: \x1b\n", "c.yaml: the file cannot be read: unacceptable character", ""),
        ("a: 1\n\tb: 2\n", "c.yaml, line 2, column 1: not YAML: ", "check indentation"),
        ("a: b: c\n", "c.yaml, line 1, column 5: not YAML: ", "text with a colon"),
        ('a: "b\n', "c.yaml, line 2, column 1: not YAML: ", "quotation marks"),
        ("a: [1, 2\nb: 3\n", "c.yaml, line 2, column 2: not YAML: ", "brackets"),
        ("a: @b\n", "c.yaml, line 1, column 4: not YAML: ", "@ or % "),
        ("a: &a [*a]\n", "c.yaml: the file cannot be read: maximum recursion", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_message(text: str | bytes, head: str, advice: str) -> None:
    with pytest.raises(UserError) as caught:
        read(text)
    first, *_, last = str(caught.value).splitlines()
    assert first.startswith(head)
    assert last.startswith("  next     ")
    assert advice in last
