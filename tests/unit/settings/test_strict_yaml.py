from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.paths import places
from ddp_ladder.settings import strict_yaml
from ddp_ladder.settings.strict_yaml import Document, key_name, resolve, shown


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str | bytes) -> Document:
    file = Path("c.yaml")
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return strict_yaml.read(file)


def message(text: str | bytes) -> str:
    with pytest.raises(UserError) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("FALSE", False),
        ("0", 0),
        ("-12", -12),
        ("+5", 5),
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        (".5", 0.5),
        ("1.", 1.0),
        ("0.10", 0.1),
        ("1.2.3", "1.2.3"),
        ("2x4", "2x4"),
        ("--lr", "--lr"),
        ("-", "-"),
        ("host:29500", "host:29500"),
        ("nope", "nope"),
        ("$(touch x)", "$(touch x)"),
        ("; rm -rf /", "; rm -rf /"),
        ("größe", "größe"),
        ("\u0661\u0662", "\u0661\u0662"),  # digits to Python, text to YAML
    ],
)
def test_plain_values_follow_yaml_1_2(text: str, value: Any) -> None:
    result = resolve(text)
    assert result == value
    assert type(result) is type(value)


def test_data_lines_and_texts() -> None:
    document = read('a: 1e-3\nb:\n  - x\n  - "012"\n  - {c: 8}\n\n\nd: |\n  no\n')
    assert document.data == {"a": 0.001, "b": ["x", "012", {"c": 8}], "d": "no\n"}
    assert document.lines == {
        ("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 2): 5, ("b", 2, "c"): 5, ("d",): 8,
    }  # fmt: skip
    assert document.data["a"].text == "1e-3"
    assert document.data["b"][2]["c"].text == "8"


def test_where() -> None:
    document = Document(Path("c.yaml"), {}, {("a",): 3, ("a", "b"): 4}, overridden={("o", "p"): None})
    assert document.where() == "c.yaml"
    assert document.where("x") == "c.yaml: x"
    assert document.where("a", "b") == "c.yaml, line 4: a.b"
    assert document.where("a", "missing", 0) == "c.yaml, line 3: a.missing[0]"
    assert document.where("o", "p", "q") == "--config: o.p.q"
    assert document.where("o") == "c.yaml: o"


def test_names_and_values_are_shown_on_one_printable_line() -> None:
    assert key_name(("stages", "stage2", "scales", 0)) == "stages.stage2.scales[0]"
    assert key_name(("env", "A=B\x1b")) == 'env."A=B\\u001b"'
    assert shown("a\nb\x1b[31m\u202e") == '"a\\nb\\u001b[31m\\u202e"'
    assert shown("größe") == '"größe"'
    assert len(shown("x" * 1000)) == 100


def test_a_byte_order_mark_is_no_matter() -> None:
    assert read(b"\xef\xbb\xbfa: 1\n").data == {"a": 1}


NUMBER_OR_TEXT = "a plain number, or text in quotes"
TRAPS = {
    text: (
        f"some YAML readers take {text} for {old}",
        NUMBER_OR_TEXT,
        f'write {new}, or "{text}" in quotes for the text',
    )
    for text, old, new in [
        ("1:30:00", "the number 5400", "a plain number"),
        ("1:30", "the number 90", "a plain number"),
        ("012", "the number 10", "12"),
        ("08", "text", "8"),
        ("-00", "the number 0", "0"),
        ("0o12", "text", "a plain number"),
        ("0x1F", "the number 31", "a plain number"),
        ("1_000", "the number 1000", "1000"),
        (".inf", "the number inf", "a plain number"),
    ]
}
TRAPS["2026-01-31"] = (
    "some YAML readers take 2026-01-31 for a date",
    "text in quotes",
    'write "2026-01-31" in quotes',
)
TRAPS["1e999"] = (
    "a number too large to be kept exactly",
    NUMBER_OR_TEXT,
    "write a smaller number, or put it in quotes if you mean the text",
)
for _word, _truth in [
    *((word, "false") for word in ("no", "No", "NO", "off", "n", "N")),
    *((word, "true") for word in ("yes", "Yes", "ON", "y")),
]:
    TRAPS[_word] = (
        f"some YAML readers take the word {_word} for {_truth}",
        "true, false, null, or text in quotes",
        f'write {_truth}, null for none, or "{_word}" in quotes for the word',
    )


@pytest.mark.parametrize("value", TRAPS)
def test_traps_are_refused_where_they_stand(value: str) -> None:
    what, allowed, advice = TRAPS[value]
    with pytest.raises(UserError) as caught:
        read(f"a:\n  b: [{value}]\n")
    assert caught.value.problems == (Problem("c.yaml, line 2: a.b[0]", what, value, allowed, advice),)


@pytest.mark.parametrize("value", TRAPS)
def test_traps_in_quotes_are_text(value: str) -> None:
    assert read(f"a: '{value}'\nb: \"{value}\"\n").data == {"a": value, "b": value}


def test_a_whole_number_with_a_point_is_a_whole_number() -> None:
    whole, big = read("a: 16.0\nb: 1e30\n").data.values()
    assert (whole, whole.text, isinstance(whole, int)) == (16, "16.0", True)
    assert isinstance(big, float)


@pytest.mark.parametrize("value", [".nan", "-.INF", "9" * 5000, "1" * 5000 + ".5e9", "2026-1-1 10:00:00", "0b11"])
def test_more_traps(value: str) -> None:
    with pytest.raises(ValueError, match=r"number|time|date"):
        resolve(value)


@pytest.mark.parametrize("key", ["no", "1", "1.5", "true", "~", "012", "1:30"])
def test_keys_that_are_not_text(key: str) -> None:
    assert message(f"a:\n  {key}: 1\n") == (
        f"c.yaml, line 2: a.{key_name((key,))}: a key that is not text\n"
        f"  found    {key}\n"
        "  allowed  text as key\n"
        f'  next     put it in quotes: "{key}"'
    )
    assert read(f'"{key}": 1\n').data == {key: 1}


def test_complex_key() -> None:
    assert message("a: {{lr}: 1}\n") == (
        "c.yaml, line 1: a: a list or mapping used as a key\n"
        "  found    a mapping\n"
        "  allowed  text as key\n"
        '  next     if you mean a placeholder such as "{lr}", put it in quotes'
    )


def test_duplicate_key() -> None:
    assert message("a: 1\nb: {c: 1,\n  d: 2, c: 3}\na: 2\n") == (
        "c.yaml, line 3: b.c: duplicate key, first on line 2\n"
        "  found    3\n"
        "  allowed  each key once\n"
        "  next     keep one of the two lines\n"
        "\n"
        "c.yaml, line 4: a: duplicate key, first on line 1\n"
        "  found    2\n"
        "  allowed  each key once\n"
        "  next     keep one of the two lines"
    )


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "null\n", "~"])
def test_empty_file(text: str) -> None:
    assert message(text) == (
        "c.yaml: the file is empty\n"
        "  allowed  keys and values, such as those of the file that ships with ddp-ladder\n"
        "  next     write the settings, or restore the shipped file: git checkout -- c.yaml"
    )


@pytest.mark.parametrize(("text", "found"), [("# x\n- a\n", "a list"), ("\nhello\n", '"hello"'), ("\n'1'\n", '"1"')])
def test_no_mapping_at_top_level(text: str, found: str) -> None:
    assert message(text) == (
        "c.yaml, line 2: the file does not hold keys with values\n"
        f"  found    {found}\n"
        "  allowed  lines of the form key: value\n"
        "  next     start each setting with its name and a colon, see config/README.md"
    )


def test_missing_file() -> None:
    with pytest.raises(UserError) as caught:
        strict_yaml.read(Path("config/none.yaml"))
    assert str(caught.value) == (
        "config/none.yaml: there is no such file\n"
        f"  allowed  a file, {places()}\n"
        "  next     check the spelling and the directory"
    )


def test_a_path_with_a_control_character_is_no_file() -> None:
    with pytest.raises(UserError, match=r'^"a\\u0000b.yaml": a control character in the path of the file\n'):
        strict_yaml.read(Path("a\0b.yaml"))


def test_a_directory_is_no_file() -> None:
    Path("d.yaml").mkdir()
    with pytest.raises(UserError) as caught:
        strict_yaml.read(Path("d.yaml"))
    assert str(caught.value) == (
        "d.yaml: the file cannot be read: Is a directory\n"
        "  allowed  a YAML file that you may read\n"
        "  next     check the path and its permissions with ls -l"
    )


def test_not_utf_8() -> None:
    assert message(b"a: 1\nb: \xe9\n") == (
        "c.yaml, line 2: the file is not UTF-8 text\n"
        "  found    byte 0xe9\n"
        "  allowed  text in UTF-8\n"
        "  next     save the file as UTF-8 in your editor"
    )


def test_control_character() -> None:
    assert message("a: 1\nb: \x1b\n") == (
        "c.yaml, line 2: not YAML: a control character\n"
        '  found    "\\u001b"\n'
        "  allowed  printable text, tabs and line ends\n"
        "  next     remove the character"
    )


def test_a_time_limit_as_slurm_writes_it() -> None:
    with pytest.raises(UserError) as caught:
        read("stages:\n  stage1: {runtime: 1:00:00}\n")
    (problem,) = caught.value.problems
    assert problem.where == "c.yaml, line 2: stages.stage1.runtime"
    assert (problem.allowed, problem.next) == ("a whole number of minutes", "write minutes: runtime: 60")


@pytest.mark.parametrize(
    ("text", "place", "advice"),
    [
        ("a: 1\n\tb: 2\n", "line 2, column 1", "put spaces in place of the tab"),
        ("a: b: c\n", "line 1, column 5", "put text that holds a colon in quotes"),
        ('a: "b\n', "line 2, column 1", "close the quotation mark"),
        ("a: [1, 2\nb: 3\n", "line 2, column 2", "close the bracket or quotation mark"),
        ("a: @b\n", "line 1, column 4", "put the value in quotes"),
        ("a: 1\n---\nb: 1\n", "line 2, column 1", "keep one document: remove the second ---"),
        ("a: 1\n b: 2\n", "line 2, column 3", "put text that holds a colon in quotes"),
        ("a:\n  b: 1\n c: 2\n", "line 3, column 2", "check the indentation"),
    ],
)
def test_not_yaml(text: str, place: str, advice: str) -> None:
    first, *_, last = message(text).splitlines()
    assert first.startswith(f"c.yaml, {place}: not YAML: ")
    assert last.startswith(f"  next     {advice}")


def test_nested_too_deeply() -> None:
    assert message("[" * 20_000) == (
        "c.yaml: not YAML that can be read: brackets or keys are nested too deeply\n"
        "  next     look for a run of opening brackets and remove it"
    )


def test_aliases_are_refused_before_they_multiply() -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    assert message(bomb) == (
        "c.yaml, line 2: YAML aliases are not used here\n"
        "  found    *a\n"
        "  allowed  values written out\n"
        "  next     write the value again in place of the alias"
    )
    assert "YAML aliases" in message("a: &a [*a]\n")


def test_merge_key() -> None:
    assert message("a:\n  <<: {b: 1}\n") == (
        'c.yaml, line 2: a."<<": YAML merge keys are not used here\n'
        "  found    <<\n"
        "  allowed  keys written out\n"
        "  next     write the merged keys out"
    )


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!!set", "!mine"])
def test_tags(tag: str) -> None:
    assert message(f"a: {tag} [x]\n") == (
        "c.yaml, line 1: a: YAML tags are not used here\n"
        f"  found    {tag}\n"
        "  allowed  plain values, lists and mappings\n"
        "  next     remove the tag"
    )


def test_all_problems_of_a_file_come_together() -> None:
    with pytest.raises(UserError) as caught:
        read("a: no\nb: 012\nb: 1\nc: !!int 3\n")
    assert [problem.where for problem in caught.value.problems] == [
        "c.yaml, line 1: a",
        "c.yaml, line 2: b",
        "c.yaml, line 3: b",
        "c.yaml, line 4: c",
    ]
