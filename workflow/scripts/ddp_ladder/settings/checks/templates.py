"""Checks for placeholders, products and quotients that have no value in some run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.messages import Problem, did_you_mean
from ddp_ladder.common.redaction import NOT_SHOWN, secret_arguments
from ddp_ladder.settings import placeholders
from ddp_ladder.settings.checks.given import Given
from ddp_ladder.settings.placeholders import NUMBERS, expand, is_arithmetic, literal, whole_number
from ddp_ladder.settings.secrets import is_secret
from ddp_ladder.settings.strict_yaml import Document, KeyPath, shown
from ddp_ladder.settings.terms import batches

_PREPARE_NAMES = ("data_dir", "seed")
_COUNTS = ("batch_per_gpu", "global_batch", "world_size", "nodes", "gpus_per_node")


@dataclass(frozen=True)
class _Template:
    """A text with placeholders, its place, and the names that it may use."""

    document: Document
    path: KeyPath
    text: str
    allowed: tuple[str, ...] = placeholders.NAMES
    is_secret: bool = False

    @property
    def shown(self) -> str:
        return NOT_SHOWN if self.is_secret else shown(self.text)

    @property
    def where(self) -> str:
        return self.document.where(*self.path)


def placeholders_without_a_value(given: Given) -> Iterator[Problem]:
    """Refuse braces that are not a placeholder, and placeholders without a value in some run."""
    for template in _all_templates(given):
        try:
            names = sorted(placeholders.names_in(template.text))
        except ValueError:
            yield _brace_problem(template)
            continue
        problems = list(_placeholder_problems(given, template, names))
        yield from problems
        if not problems and is_arithmetic(template.text):
            yield from _arithmetic_problem(given, template)


def _arithmetic_problem(given: Given, template: _Template) -> Iterator[Problem]:
    """Yield a problem for the first run in which a product or quotient is not a whole number."""
    for run, numbers in _numbers(given):
        try:
            expand(template.text, numbers)
        except ValueError as error:
            yield Problem(
                where=template.where,
                what="not a whole number",
                found=f"{template.shown}: {error} ({run})",
                allowed="whole numbers and placeholders that are, with * / // between; / has to divide evenly",
                next="write // in place of / to round down, or choose numbers that divide evenly in every run"
                if " / " in str(error)
                else 'half of {nodes} is "{nodes} // 2"; a factor of {lr} belongs in workload.lr',
            )
            return


def _numbers(given: Given) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield mode/scale/repeat of each run, and the values of its number placeholders."""
    workload = given.workload
    scales = [scale for stage in given.experiment.stages for scale in stage.scales]
    for mode, scale, repeat in itertools.product(
        given.experiment.modes, scales, range(1, given.experiment.jobs * given.experiment.repeats.most + 1)
    ):
        first = given.experiment.first_scale.world_size
        if mode == "strong" and workload.batch_per_gpu * first % scale.world_size:
            continue  # reported by batch_that_strong_mode_cannot_divide
        batch, global_batch = batches(workload.batch_per_gpu, mode, scale.world_size, first)
        yield (
            f"{mode}/{scale}/r{repeat}",
            {
                "batch_per_gpu": batch,
                "global_batch": global_batch,
                "lr": workload.lr,
                "nodes": scale.nodes,
                "gpus_per_node": scale.gpus_per_node,
                "world_size": scale.world_size,
                "threads_per_rank": given.site.node.threads_per_rank,
                "seed": workload.seed + repeat - 1,
            },
        )


def samples_that_are_no_whole_number(given: Given) -> Iterator[Problem]:
    """Refuse samples_per_step that is not a whole number above 0 in every run."""
    text = given.workload.samples_per_step
    if text is None:
        return
    for run, numbers in _numbers(given):
        try:
            samples = whole_number(text, {name: numbers[name] for name in _COUNTS})
            objection = "" if samples > 0 else f": {samples} ({run})"
        except ValueError as error:
            objection = f": {error} ({run})"
        if objection:
            yield Problem(
                where=given.config.where("workload", "samples_per_step"),
                what="not a number of samples",
                found=shown(text) + objection,
                allowed="whole numbers above 0 and "
                + " ".join(f"{{{name}}}" for name in _COUNTS)
                + ", with * / // between",
                next='write how many samples one process consumes in one optimizer step, such as "{batch_per_gpu} * 4"',
            )
            return


def _all_templates(given: Given) -> Iterator[_Template]:
    workload = given.workload
    yield from _templates_of_arguments(given, ("workload", "args"), workload.args)
    for index, text in enumerate((workload.prepare or ())[1:], start=1):
        yield _Template(given.config, ("workload", "prepare", index), text, _PREPARE_NAMES)
    if workload.directory is not None:
        yield _Template(given.config, ("workload", "directory"), workload.directory)
    for name, text in _templates_in(workload.env):
        yield _Template(given.config, ("workload", "env", name), text)
    for variant in given.experiment.variants:
        yield from _templates_of_arguments(given, ("variants", variant.name, "args"), variant.args)
        for name, text in _templates_in(variant.env):
            yield _Template(given.config, ("variants", variant.name, "env", name), text)
    for name, text in _templates_in(given.site.network.env):
        yield _Template(given.cluster, ("network", "env", name), text)


def _templates_of_arguments(given: Given, path: KeyPath, arguments: Sequence[str]) -> Iterator[_Template]:
    secrets = secret_arguments(arguments)
    for index, text in enumerate(arguments):
        yield _Template(given.config, (*path, index), text, is_secret=index in secrets)


def _templates_in(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values are filled in: a secret's is taken as it is, with all its braces."""
    return ((name, value) for name, value in env.items() if not is_secret(name, value))


def _placeholder_problems(given: Given, template: _Template, names: Sequence[str]) -> Iterator[Problem]:
    unknown = [name for name in names if name not in placeholders.NAMES]
    if unknown:
        yield _brace_problem(template, unknown[0])
        return
    for name in names:
        if name not in template.allowed:
            yield Problem(
                where=template.where,
                what="a placeholder that has no value here",
                found=template.shown,
                allowed=" ".join(f"{{{word}}}" for word in template.allowed),
                next="write the value itself: data is prepared once, for every scale",
            )
        # prepare without data_dir is reported by preparation_that_cannot_start
        elif name == "data_dir" and given.workload.data_dir is None and template.path[1] != "prepare":
            yield _valueless(template, "data_dir", "data/digits")
        elif name == "lr" and given.workload.lr is None:
            yield _valueless(template, "lr", "0.05")


def _brace_problem(template: _Template, name: str = "") -> Problem:
    """Return the problem of braces that are not a placeholder. name: the text between them, if known."""
    words = [f"{{{word}}}" for word in template.allowed]
    with_braces = re.sub(rf"\b(?:{'|'.join(NUMBERS)})\b", r"{\g<0>}", name)
    if is_arithmetic(with_braces):
        advice = f"put the braces around the names alone: {shown(with_braces)}"
    else:
        guess = did_you_mean(f"{{{name}}}", words) if re.fullmatch(r"\w+", name) else None
        closed = template.text.count("{") == template.text.count("}")
        keep = f"{'' if closed else 'close the placeholder, or '}double literal braces"
        advice = guess or f"{keep}: {_in_quotes(literal(template.text))}"
        if template.is_secret:
            advice = keep
        elif "${" in template.text:
            advice = f"write the value of a shell variable, which is not expanded here; or {advice}"
    return Problem(
        where=template.where,
        what="braces that are no placeholder",
        found=template.shown,
        allowed=f"{' '.join(words)}, and {{{{ and }}}} for literal braces",
        next=advice,
    )


def _in_quotes(text: str) -> str:
    """Return text in quotes, as it is typed into YAML."""
    return shown(text) if "'" in text or not text.isprintable() else f"'{text}'"


def _valueless(template: _Template, name: str, example: str) -> Problem:
    return Problem(
        where=template.where,
        what=f"{{{name}}} is used, but workload.{name} is null",
        found=template.shown,
        allowed=f"{{{name}}} together with a value of workload.{name}",
        next=f"set workload.{name}, for example {name}: {example}, or remove the argument",
    )
