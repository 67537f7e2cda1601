"""Models of files: strict, and clear about what does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from ddp_ladder.common.files import OWN, SCHEMAS
from ddp_ladder.common.model import Model, Several, first_error
from pydantic import Field, ValidationError, model_validator


class Inner(Model):
    count: Annotated[int, Field(ge=1, description="How many.")]


class Outer(Model):
    inner: Inner
    names: Several[str] = ()

    @model_validator(mode="after")
    def _odd(self) -> Outer:
        if self.inner.count == 13:
            raise ValueError("13 is not wanted")
        return self


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"inner": {"count": "1"}}, "inner/count: should be a valid integer, found '1'"),
        ({"inner": {"count": True}}, "inner/count: should be a valid integer, found True"),
        ({"inner": {"count": 1.0}}, "inner/count: should be a valid integer, found 1.0"),
        ({"inner": {"count": 0}}, "inner/count: should be greater than or equal to 1, found 0"),
        ({"inner": {}}, "inner/count is missing"),
        ({"inner": {"count": 1}, "names": ["a", 2]}, "names/1: should be a valid string, found 2"),
        ({"inner": {"count": 1}, "names": "abc"}, "names: should be a valid tuple, found 'abc'"),
        ({"inner": {"count": 1}, "colour": "red"}, "colour: there is no such key"),
        ({"inner": {"count": 13}}, "13 is not wanted"),
        ([], "top level: should be a valid dictionary or instance of Outer, found []"),
    ],
)
def test_the_first_violation_in_words(data: Any, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        Outer.model_validate(data)
    assert first_error(error.value) == message


def test_a_copy_with_other_values_is_checked() -> None:
    outer = Outer(inner=Inner(count=1))
    assert outer.replace(names=("a",)) == Outer.model_validate({"inner": {"count": 1}, "names": ["a"]})
    with pytest.raises(ValueError, match="13 is not wanted"):
        outer.replace(inner=Inner(count=13))


def test_the_schemas_are_those_of_the_models(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(OWN / ".ci/write_schemas.py"), str(tmp_path)], check=True)
    written, kept = ({file.name: file.read_text() for file in place.iterdir()} for place in (tmp_path, SCHEMAS))
    assert written == kept, "run `make schemas`"
