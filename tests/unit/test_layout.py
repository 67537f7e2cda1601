"""The packages and modules that CONTRIBUTING and the instrument list are those on disk."""

from __future__ import annotations

import re
from pathlib import Path

import ddp_ladder_instrument

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "workflow/scripts"
UNIT = ROOT / "tests/unit"


def modules(directory: Path) -> list[str]:
    files = [file.relative_to(directory) for file in directory.rglob("*.py")]
    return sorted(str(file.with_suffix("")) for file in files if file.stem != "__init__")


def packages() -> dict[str, Path]:
    return {file.parent.name: file.parent for file in (SCRIPTS / "ddp_ladder").glob("*/__init__.py")}


def test_the_tree_in_contributing_is_the_tree_on_disk() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _, _, tree = text.partition("    workflow/scripts/ddp_ladder/\n")
    tree, _, _ = tree.partition("\n\n")
    listed = re.split(r"^      (\w+)/", tree, flags=re.MULTILINE)[1:]
    told = dict(zip(listed[::2], listed[1::2], strict=True))
    assert set(told) == set(packages())
    for name, directory in packages().items():
        sentence, _, names = told[name].rpartition(".\n")
        assert sentence.split(), name
        assert sorted(names.split()) == modules(directory), name


def test_the_instrument_lists_its_modules() -> None:
    listed = re.findall(r"^    (\w+) ", ddp_ladder_instrument.__doc__ or "", re.MULTILINE)
    assert sorted(listed) == modules(SCRIPTS / "ddp_ladder_instrument")


def test_unit_tests_mirror_the_packages() -> None:
    directories = {file.parent.name for file in UNIT.glob("*/test_*.py")}
    assert directories == {*packages(), "instrument"}
