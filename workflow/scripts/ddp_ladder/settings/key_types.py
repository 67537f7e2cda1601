"""How a value of config.yaml or cluster.yaml is read, besides the bounds in its field."""

# Without `from __future__ import annotations`, as keys.

import ast
import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.annotated_handlers import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError

from ddp_ladder.common.files import located
from ddp_ladder.common.model import Model, Several
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.platform.engines import ENGINES
from ddp_ladder.platform.launchers import LAUNCHERS, WITH_RANKS
from ddp_ladder.settings.terms import MAY_DIFFER, Scale

T = TypeVar("T")


class KeySection(Model):
    """A section of a file. The text below a key describes it, in the JSON Schema and docs/ too.

    A key that is left empty has its default, unless null is one of its values.
    """

    model_config = ConfigDict(regex_engine="python-re")

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if value is not None or not cls._has_default(key)}

    @classmethod
    def _has_default(cls, key: str) -> bool:
        known = cls.model_fields.get(key)
        return known is not None and not known.is_required() and type(None) not in get_args(known.annotation)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Pydantic's use_attribute_docstrings reads the sources at each start; only the schemas need the texts.
        written = handler(core_schema)
        keys = handler.resolve_ref_schema(written)["properties"]
        sections = [base for base in reversed(cls.__mro__) if issubclass(base, KeySection)]
        bodies = [ast.parse(inspect.getsource(section)).body[0] for section in sections]
        for key, text in chain.from_iterable(pairwise(ast.iter_child_nodes(body)) for body in bodies):
            match key, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    keys[cls.model_fields[name].alias or name]["description"] = " ".join(words.split())  # one line
        return written


def refused(what: str, advice: str) -> PydanticCustomError:
    """Return the error of a validator: what is wrong, and what to do."""
    return PydanticCustomError("refused", "{what}", {"what": what, "next": advice})


# Types of values


def form(pattern: str, words: str, most: int = 1000) -> Any:
    """Return the constraint of a text to a pattern, which ``words`` describe for people."""
    # In Python, $ also matches before a last line end; JSON Schema has no \Z.
    whole = rf"{pattern}(?!\n)"
    return Field(pattern=whole, max_length=most, json_schema_extra={"patternErrorMessage": words})


def _scale(value: Any) -> Scale:
    if isinstance(value, Scale):
        return value
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    if not re.fullmatch(_SCALE, value):
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": _SCALE})
    return Scale.parse(value)


def _different(items: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(items)) < len(items):
        raise refused("an item twice", "remove the second of the two")
    return items


_HOME = BeforeValidator(
    lambda value: os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value
)
_AS_TEXT = BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value)
_OWN_PLACE = AfterValidator(lambda script: script if script.startswith("-") else located(script))
_SCALE = "^[1-9][0-9]{0,3}x[1-9][0-9]{0,3}$"
NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
NAME_WORDS = "letters, digits and . _ - with a letter or digit first"
DIFFERENT = AfterValidator(_different)
# Without ./, // and a last /, so that each file has one name.
_ONE_SPELLING = AfterValidator(lambda path: str(PurePosixPath(path)))

Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Short = Annotated[str, Field(min_length=1, max_length=100)]
Name = Annotated[str, form(NAME, NAME_WORDS, 60)]
_OF_SCALE = {
    "type": "string",
    "description": "Nodes x GPUs per node.",
    "pattern": _SCALE,
    "patternErrorMessage": "nodes x GPUs per node, such as 2x4",
    "examples": ["2x4"],
}
AnyScale = Annotated[Scale, PlainValidator(_scale), PlainSerializer(str), WithJsonSchema(_OF_SCALE)]
_RECOMMENDED = {**_OF_SCALE, "pattern": f"^recommended$|{_SCALE}", "patternErrorMessage": "recommended, or 2x4"}
ScaleOrRecommended = Annotated[
    Scale | Literal["recommended"],
    PlainValidator(lambda value: value if value == "recommended" else _scale(value)),
    PlainSerializer(str),
    WithJsonSchema({**_RECOMMENDED, "examples": ["recommended", "2x4"]}),
]
MOST_WITNESS_STEPS = 10_000
WitnessSteps = Annotated[
    Annotated[int, Field(ge=1, le=MOST_WITNESS_STEPS), Tag("number")] | Annotated[Literal["off"], Tag("off")],
    Discriminator(lambda value: "number" if isinstance(value, int) else "off"),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": MOST_WITNESS_STEPS,
            "pattern": "^off$",
            "patternErrorMessage": f"a whole number from 1 to {MOST_WITNESS_STEPS}, or off",
        }
    ),
]
Scales = Annotated[Several[AnyScale], Field(min_length=1, max_length=100), DIFFERENT]
_TYPED = WithJsonSchema({"type": ["string", "number", "boolean"], "description": "Passed as it is typed."})
Typed = Annotated[str, _AS_TEXT, _HOME, Field(max_length=100_000), _TYPED]
Variable = Annotated[str, form("^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable", 1000)]
Arguments = Annotated[Several[Typed], Field(max_length=1000)]
Environment = Annotated[dict[Variable, Typed], Field(max_length=1000)]
_PATH = form(r"^[^$]*$", "a path without shell variables; ~/ at its start is the home directory", 10_000)
PathText = Annotated[str, _HOME, Field(min_length=1), _PATH]
_DIRECTORY = form(
    r"^(?!\.?/*$)[A-Za-z0-9._/][A-Za-z0-9._/-]*$",
    "a path of letters, digits and . _ - / (it becomes part of Snakemake's file patterns)",
)
Directory = Annotated[str, _HOME, _DIRECTORY, _ONE_SPELLING]
_TEMPLATE = form(
    r"^(?!\.?/*$)[A-Za-z0-9._/{][A-Za-z0-9._/{}-]*$", "a path of letters, digits and . _ - / with placeholders"
)
WithPlaceholders = Annotated[str, _HOME, _TEMPLATE, _ONE_SPELLING]
_OF_SLURM = form(
    r"^[A-Za-z0-9_(\[][A-Za-z0-9._@+=:&|,*()\[\]-]*$",
    "a value of letters, digits and . _ @ + - = : & | , * ( ) [ ] (it reaches sbatch through a shell)",
)
OfSlurm = Annotated[str, _OF_SLURM]
_OPTION = form(
    r"^--(?!signal=R?B:)[a-z][a-z0-9-]*(=[A-Za-z0-9._:@%+=,/\[\]-]+)?$",
    "one option in its long form, --name or --name=value, without spaces and quotes; a signal not to the batch "
    "shell (B:), which would end the job at once",
)
Option = Annotated[str, _OPTION, Field(description="One option.", examples=["--exclusive"])]
_GRES = form(
    r"^gpu(:[0-9]{3,}|:[0-9]*[A-Za-z_][A-Za-z0-9._-]*)?$",
    "gpu, or gpu:type such as gpu:a100, as `sinfo --format=%G` shows it without its number, which the scale sets",
    100,
)
Gres = Annotated[str, _GRES]
_FIELD = Field(description="Name of a field.", examples=["num_workers"])
FieldName = Annotated[Literal[MAY_DIFFER], _FIELD]  # type: ignore[valid-type]


def _gpus_in_words(kind: str) -> str:
    options = {name: engine.gpu_options[kind] for name, engine in ENGINES.items() if kind in engine.gpu_options}
    return f"{kind} is " + ", ".join(f"{' '.join(words) or 'nothing'} with {name}" for name, words in options.items())


_ENGINES, _LAUNCHERS, _WITH_RANKS = tuple(ENGINES), tuple(LAUNCHERS), tuple(WITH_RANKS)
_DEVICES, _BACKENDS = tuple(ACCELERATORS), tuple(dict.fromkeys(device.backend for device in ACCELERATORS.values()))
_AUTO = ("auto", *_BACKENDS)
_IS_FOR = "; ".join(f"{name} {accelerator.is_for}" for name, accelerator in ACCELERATORS.items())
Device = Annotated[Literal[_DEVICES], Field(description=f"{_IS_FOR}.")]  # type: ignore[valid-type]
Backend = Annotated[Literal[_BACKENDS], Field()]  # type: ignore[valid-type]
_AUTO_IS = " and ".join(f"{accelerator.backend} with device {name}" for name, accelerator in ACCELERATORS.items())
BackendOrAuto = Annotated[
    Literal[_AUTO],  # type: ignore[valid-type]
    Field(description=f"Backend of torch.distributed. auto is {_AUTO_IS}."),
]
_GPUS_INSIDE = tuple(dict.fromkeys(kind for engine in ENGINES.values() for kind in engine.gpu_options))
GpusInside = Annotated[
    Literal[_GPUS_INSIDE],  # type: ignore[valid-type]
    Field(
        description="How the engine shows GPUs inside, with device cuda: "
        f"{'; '.join(map(_gpus_in_words, _GPUS_INSIDE))}. Null adds no option, for sites where a module does it."
    ),
]
Engine = Annotated[Literal[_ENGINES], Field()]  # type: ignore[valid-type]
Launcher = Annotated[Literal[_LAUNCHERS], Field()]  # type: ignore[valid-type]
_STARTS = ", ".join(f"{name} {launcher.starts}" for name, launcher in WITH_RANKS.items())
SiteLauncher = Annotated[Literal[_WITH_RANKS], Field(description=f"{_STARTS}.")]  # type: ignore[valid-type]
Script = Annotated[str, Field(min_length=1, max_length=1000), _HOME, _OWN_PLACE]
Command = Annotated[
    Several[Typed], Field(min_length=1, max_length=1000), AfterValidator(lambda words: (located(words[0]), *words[1:]))
]
_MODULE = form("^[A-Za-z0-9_./][A-Za-z0-9_.,:@=+/-]*$", "a module's name, such as PyTorch/2.8.0")
Module = Annotated[str, _MODULE, Field(description="A module's name.", examples=["PyTorch/2.8.0"])]
_INTERFACE = form("^[A-Za-z0-9][A-Za-z0-9._:,@-]*$", "an interface's name such as eth0 or ib0, or auto", 100)
InterfaceName = Annotated[str, _INTERFACE]
_InterfaceOfNode = Annotated[InterfaceName, Field(description="Interface of one node.", examples=["eth0"])]
Interface = Annotated[
    Annotated[InterfaceName, Tag("of all nodes")]
    | Annotated[
        dict[Annotated[str, form(NAME, "one node's name, as `sinfo --Node` shows it", 100)], _InterfaceOfNode],
        Field(min_length=1, max_length=10_000),
        Tag("of each node"),
    ],
    Discriminator(lambda value: "of each node" if isinstance(value, dict) else "of all nodes"),
]


@dataclass(frozen=True)
class OrAuto:
    """Marks a section that may be a whole number or ``auto``, the section's defaults, instead, in its JSON Schema."""

    words: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        own = handler(schema)
        options = own.pop("oneOf", None) or own.pop("anyOf")
        return {**own, "anyOf": [*options, {"const": "auto"}], "patternErrorMessage": self.words}


@dataclass(frozen=True)
class OrNumber:
    """Marks a section that may be a whole number instead, in its JSON Schema."""

    most: int

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "integer", "minimum": 1, "maximum": self.most}]}
