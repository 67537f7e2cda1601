"""The report: what a ladder found, as CSV, Markdown, pictures and one self-contained page.

It works on whatever there is: no record at all, one stage, failed runs, a closed gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ddp_ladder import formats
from ddp_ladder.files import write_atomically
from ddp_ladder.fingerprint import (
    BATCH,
    DIGEST_LENGTH,
    MUST_MATCH,
    batch_per_gpu_seen,
    global_batch_seen,
    in_full,
)
from ddp_ladder.headline import PLURALS, Headline, device_word, headline
from ddp_ladder.ladder_results import GateView, LadderResults
from ddp_ladder.plots import efficiency_figure, inline_svg, render, throughput_figure
from ddp_ladder.record import Failure, Record
from ddp_ladder.scaling import ScalePoint, scale_points

TEMPLATES = Path(__file__).parents[2] / "report"
CSV_FIRST = (  # the columns that readers of scaling.csv may rely on, in this order
    "variant",
    "mode",
    "stage",
    "nodes",
    "gpus_per_node",
    "world_size",
    "batch_per_gpu",
    "global_batch",
    "repeats",
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "speedup",
    "efficiency",
    "efficiency_low",
    "efficiency_high",
    "step_time_s",
    "data_wait_fraction",
    "exposed_comm_fraction",
    "gpu_hours_per_million_samples",
    "status",
)
CSV_MORE = (
    "speedup_low",
    "speedup_high",
    "step_time_s_low",
    "step_time_s_high",
    "straggler_fraction",
    "startup_s",
    "note",
)
CSV_COLUMNS = CSV_FIRST + CSV_MORE
SAID_WHEN_ABSENT = ("autocast_dtype", "optimizer")  # "none" is news here, elsewhere it is noise
MOST_RUNS_IN_PRINT = 30  # a longer list of runs is for the screen


@dataclass(frozen=True)
class Definition:
    """What a figure means. columns: those of scaling.csv."""

    name: str
    columns: tuple[str, ...]
    unit: str
    text: str


DEFINITIONS = (
    Definition(
        "scale",
        ("stage", "nodes", "gpus_per_node", "world_size"),
        "1",
        "nodes x GPUs per node; n is their product, the number of ranks. Stage 1 is one GPU, stage 2 one node, stage 3 several nodes.",
    ),
    Definition(
        "mode",
        ("mode", "batch_per_gpu", "global_batch"),
        "samples",
        "weak: the batch per GPU is constant and the global batch grows with n; strong: the global batch is constant.",
    ),
    Definition(
        "variant",
        ("variant", "repeats"),
        "1",
        "a named set of overrides of workload, network or launcher; repeats counts the good runs that the figures are made of.",
    ),
    Definition(
        "samples/s",
        ("samples_per_s", "samples_per_s_low", "samples_per_s_high"),
        "1/s",
        "X(n): training samples that all ranks really drew per second, without the sampler's padding. Median over repeats of the median over blocks.",
    ),
    Definition(
        "speed-up",
        ("speedup", "speedup_low", "speedup_high"),
        "1",
        "X(n) / X(1), with X(1) of the same variant and mode at 1x1.",
    ),
    Definition(
        "efficiency",
        ("efficiency", "efficiency_low", "efficiency_high"),
        "1 (shown in %)",
        "X(n) / (n X(1)). Given only where every field marked = below is equal at both scales.",
    ),
    Definition(
        "step time",
        ("step_time_s", "step_time_s_low", "step_time_s_high"),
        "s (shown in ms)",
        "median over blocks of (the slowest rank's block time / steps in the block).",
    ),
    Definition(
        "data wait",
        ("data_wait_fraction",),
        "1 (shown in %)",
        "time spent waiting for the data loader / step time, over all ranks.",
    ),
    Definition(
        "exposed comm.",
        ("exposed_comm_fraction",),
        "1 (shown in %)",
        "gradient communication that the backward pass did not hide / step time, as DDP measures it.",
    ),
    Definition(
        "straggler",
        ("straggler_fraction",),
        "1 (shown in %)",
        "(slowest rank's median step - median rank's) / slowest rank's.",
    ),
    Definition(
        "start-up",
        ("startup_s",),
        "s",
        "from the launcher's start to the end of the first step; never part of the throughput.",
    ),
    Definition(
        "GPU h per million samples",
        ("gpu_hours_per_million_samples",),
        "h",
        "n x 1,000,000 / X(n) / 3600.",
    ),
    Definition(
        "status",
        ("status", "note"),
        "",
        "ok; check: efficiency over 105 %; incomplete: repeats are missing; not comparable: a field differs from the baseline; failed: a repeat failed; not run.",
    ),
)


@dataclass(frozen=True)
class Series:
    """One table: the points of one mode and variant."""

    title: str
    points: tuple[ScalePoint, ...]


@dataclass(frozen=True)
class FailureGroup:
    """One cause, with all the runs that it ended."""

    failure: Failure
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """One row of "what was measured on": each distinct value, with its places when there are several."""

    name: str
    must_match: bool
    values: tuple[tuple[str, str], ...]  # (value, places)


@dataclass(frozen=True)
class ReportView:
    """Everything that the page and the Markdown show."""

    title: str
    written_on: date
    unit: str
    results: LadderResults
    points: tuple[ScalePoint, ...]
    headline: Headline
    series: tuple[Series, ...]
    failures: tuple[FailureGroup, ...]
    measured: tuple[Measured, ...]
    runs: tuple[Record, ...]
    machine: str

    @property
    def gates(self) -> Mapping[str, GateView]:
        return self.results.gates

    @property
    def stages(self) -> tuple[str, ...]:
        return self.results.plan.stages

    @property
    def units(self) -> str:
        return PLURALS[self.unit]

    @property
    def thresholds(self) -> dict[str, float | None]:
        """Efficiency that each stage's gate asks for, a fraction."""
        return {stage: gate.min_efficiency for stage, gate in self.results.plan.gates.items()}

    @property
    def notes(self) -> tuple[ScalePoint, ...]:
        return tuple(point for point in self.points if point.note)

    @property
    def anything_measured(self) -> bool:
        return any(point.samples_per_s is not None for point in self.points)


def write_report(
    results: Path, found: LadderResults, written_on: date | None = None
) -> tuple[Path, ...]:
    """Write results/report/ and return the files, the page first. Raises OSError when the disk is full."""
    view = make_view(found, written_on or date.today())
    throughput = throughput_figure(view.points, view.units)
    efficiency = efficiency_figure(view.points, view.thresholds)
    inline = {
        "throughput": inline_svg(throughput, "throughput", "Throughput", describe(view, "throughput")),
        "efficiency": inline_svg(efficiency, "efficiency", "Efficiency", describe(view, "efficiency")),
    }
    files: dict[str, str | bytes] = {
        "index.html": page(view, inline),
        "scaling.md": markdown(view),
        "scaling.csv": table(view.points).to_csv(index=False, float_format="%.6g"),
        "throughput.svg": render(throughput, "svg"),
        "throughput.png": render(throughput, "png"),
        "efficiency.svg": render(efficiency, "svg"),
        "efficiency.png": render(efficiency, "png"),
    }
    for name, content in files.items():
        write_atomically(results / "report" / name, content)
    return tuple(results / "report" / name for name in files)


def table(points: Sequence[ScalePoint]) -> pd.DataFrame:
    """scaling.csv: one row per variant x mode x scale, columns CSV_COLUMNS."""
    return pd.DataFrame([asdict(point) for point in points], columns=list(CSV_COLUMNS))


def make_view(found: LadderResults, written_on: date) -> ReportView:
    """Work out everything that is shown. Pure."""
    points = scale_points(found.plan.runs, found.records)
    runs = _ordered_runs(found, points)
    return ReportView(
        title=f"Scaling of {_workload(found)} on {found.plan.site}",
        written_on=written_on,
        unit=device_word(found),
        results=found,
        points=points,
        headline=headline(found, points),
        series=_series(points),
        failures=_failures(runs),
        measured=_measured(runs),
        runs=tuple(runs),
        machine=_machine(runs),
    )


def _ordered_runs(found: LadderResults, points: Sequence[ScalePoint]) -> list[Record]:
    """Records in the order of the tables: mode, variant, scale, repeat."""
    order = {(point.mode, point.variant, point.scale): index for index, point in enumerate(points)}

    def place(run: Record) -> tuple[int, int]:
        spec = run.spec
        return order[spec.mode, spec.variant, spec.scale], spec.repeat

    return sorted(found.records.values(), key=place)


def _workload(found: LadderResults) -> str:
    scripts = dict.fromkeys(run.script for run in found.plan.runs)
    return " and ".join(script.rsplit("/", 1)[-1] for script in scripts) or "nothing"


def _series(points: Sequence[ScalePoint]) -> tuple[Series, ...]:
    keys = dict.fromkeys((point.mode, point.variant) for point in points)
    variants = {variant for _, variant in keys}
    return tuple(
        Series(
            formats.capitalised(f"{mode} scaling")
            + (f", variant {variant}" if len(variants) > 1 else ""),
            tuple(point for point in points if (point.mode, point.variant) == (mode, variant)),
        )
        for mode, variant in keys
    )


def _failures(runs: Sequence[Record]) -> tuple[FailureGroup, ...]:
    """Causes of failure; a run that was left out on purpose is none (its scale's note says why)."""
    groups: dict[Failure, list[str]] = {}
    for run in runs:
        if run.failure and run.job:
            groups.setdefault(run.failure, []).append(run.spec.name)
    return tuple(FailureGroup(failure, tuple(names)) for failure, names in groups.items())


# What was measured on


def _measured(runs: Sequence[Record]) -> tuple[Measured, ...]:
    """Fingerprint fields of all runs that have one; those that must match first, without what nobody has."""
    seen = [run for run in runs if run.fingerprint]
    rows = [(item.name, True, item.value) for item in MUST_MATCH]
    rows += [
        ("batch", True, _batch),
        ("backend", False, lambda run: run.world.backend),
        ("launcher", False, lambda run: run.spec.launcher),
        ("cpus", False, lambda run: run.fingerprint.get("cpus")),
        ("env", False, lambda run: [f"{key}={value}" for key, value in run.spec.env.items()]),
    ]
    table = [
        Measured(name, must, _values(name, [(run, value(run)) for run in seen]))
        for name, must, value in rows
        if seen
    ]
    hosts = sorted({host for run in seen for host in run.world.hosts})
    if hosts:
        table.append(Measured("hosts", False, ((", ".join(hosts), ""),)))
    absent = ((in_full(None), ""),)
    return tuple(row for row in table if row.values != absent or row.name in SAID_WHEN_ABSENT)


def _batch(run: Record) -> str:
    """The batch that must be equal in the run's mode."""
    if BATCH[run.spec.mode].name == "batch_per_gpu":
        return f"{batch_per_gpu_seen(run)} per GPU"
    return f"{global_batch_seen(run)} global"


def _values(name: str, seen: Sequence[tuple[Record, Any]]) -> tuple[tuple[str, str], ...]:
    places: dict[str, list[Record]] = {}
    for run, value in seen:
        text = in_full(value)[: DIGEST_LENGTH if name.endswith("sha256") else None]
        places.setdefault(text, []).append(run)
    if len(places) == 1:
        return tuple((value, "") for value in places)
    everyone = [run for run, _ in seen]
    return tuple((value, _places(runs, everyone)) for value, runs in places.items())


def _places(runs: Sequence[Record], everyone: Sequence[Record]) -> str:
    """Name the runs of one value by what tells them apart: ``1x1, 1x2`` or ``gloo`` or ``strong 1x2``."""
    modes = {run.spec.mode for run in everyone}
    variants = {run.spec.variant for run in everyone}
    for parts in (("variant",), ("scale",), ("mode",), ("mode", "scale"), ("variant", "scale")):
        mine = {_label(run, parts) for run in runs}
        others = {_label(run, parts) for run in everyone if run not in runs}
        if not mine & others:
            return ", ".join(dict.fromkeys(_label(run, parts) for run in runs))
    parts = (*(("mode",) if len(modes) > 1 else ()), *(("variant",) if len(variants) > 1 else ()))
    names = dict.fromkeys(_label(run, (*parts, "scale", "repeat")) for run in runs)
    return ", ".join(names)


def _label(run: Record, parts: Sequence[str]) -> str:
    words = {
        "variant": run.spec.variant,
        "mode": run.spec.mode,
        "scale": str(run.spec.scale),
        "repeat": f"r{run.spec.repeat}",
    }
    return " ".join(words[part] for part in parts)


def _machine(runs: Sequence[Record]) -> str:
    """One sentence for a proposal: hardware and versions. Empty while nothing has been measured."""
    seen = [run for run in runs if run.fingerprint]
    if not seen:
        return ""
    hosts = {host for run in seen for host in run.world.hosts}

    def of(key: str) -> str:
        values = dict.fromkeys(str(run.fingerprint[key]) for run in seen if run.fingerprint.get(key))
        return " / ".join(values)

    hardware = of("gpu") or of("cpu_model") or "an unnamed processor"
    versions = [("PyTorch", "torch"), ("CUDA", "cuda"), ("NCCL", "nccl"), ("Python", "python")]
    software = ", ".join(f"{label} {of(key)}" for label, key in versions if of(key))
    precision = of("autocast_dtype") or of("parameter_dtype")
    text = f"Measured on {formats.count(len(hosts), 'host')} with {hardware}, {software}"
    return f"{text}; precision {precision}." if precision else f"{text}."


# The page


def page(view: ReportView, inline: Mapping[str, str]) -> str:
    """index.html. inline: the two pictures as SVG elements. Everything else is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("significant", "factor", "percent", "share", "milliseconds", "megabytes"):
        environment.filters[name] = getattr(formats, name)
    environment.filters["stage_name"] = formats.stage_name
    environment.filters["capitalised"] = formats.capitalised
    environment.filters["full_stop"] = formats.full_stop
    return environment.get_template("index.html.j2").render(
        view=view,
        plots={name: Markup(svg) for name, svg in inline.items()},
        definitions=DEFINITIONS,
        interval=formats.interval,
        most_runs_in_print=MOST_RUNS_IN_PRINT,
        peak_memory=peak_memory_bytes,
        host_words=host_words,
    )


def host_words(hosts: Sequence[str]) -> str:
    """``a``, ``a, b``, ``a to h (8)``."""
    return ", ".join(hosts) if len(hosts) < 3 else f"{hosts[0]} to {hosts[-1]} ({len(hosts)})"


def peak_memory_bytes(run: Record) -> int | None:
    """The largest of any rank: of the device where it has memory of its own, else of the host."""
    for kind in ("device", "host"):
        known = [rank.peak_memory_bytes.get(kind) for rank in run.ranks]
        values = [value for value in known if value is not None]
        if values:
            return max(values)
    return None


def describe(view: ReportView, what: str) -> str:
    """A picture in words, for those who cannot see it."""
    said = []
    for point in view.points:
        if point.samples_per_s is None:
            continue
        figure = (
            f"{formats.significant(point.samples_per_s)} samples/s"
            if what == "throughput"
            else formats.percent(point.efficiency)
        )
        said.append(f"{point.mode} {point.variant} {point.scale}: {figure}")
    return f"{what} by scale. {'; '.join(said) or 'nothing measured yet'}."


# Markdown


def markdown(view: ReportView) -> str:
    """scaling.md: to be pasted into a proposal."""
    parts = [f"# {_md(view.title)}", _md(view.headline.text)]
    if view.headline.next:
        parts.append(f"Next: {_md(formats.full_stop(view.headline.next))}")
    if view.machine:
        parts.append(_md(view.machine))
    for series in view.series:
        parts += [f"## {_md(series.title)}", _md_points(series.points)]
    if view.notes:
        parts.append("\n".join(f"- {_md(_place(view, p))}: {_md(p.note)}" for p in view.notes))
    parts.append("Square brackets: 95 % intervals (bootstrap over repeats and blocks).")
    if view.unit != "GPU":
        parts.append('This site has no GPU: each "GPU" of a scale is one CPU process.')
    parts += ["## Gates", _md_gates(view)]
    if view.failures:
        parts += ["## Failed runs", "\n".join(_md_failure(group) for group in view.failures)]
    if view.results.warnings:
        lines = [f"- {_md(warning)}" for warning in view.results.warnings]
        parts += ["## Left out", "\n".join(lines)]
    parts += ["## Definitions", _md_definitions()]
    if view.measured:
        parts += ["## Measured on", _md_measured(view)]
    parts.append(f"Written by ddp-ladder on {view.written_on.isoformat()}.")
    return "\n\n".join(parts) + "\n"


def _place(view: ReportView, point: ScalePoint) -> str:
    return f"{point.scale}" if len(view.series) < 2 else f"{point.scale} {point.mode} {point.variant}"


def _md(text: str) -> str:
    """Text that Markdown and HTML take literally, on one line."""
    flat = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "|", "[", "]", "$"):
        flat = flat.replace(sign, f"\\{sign}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _md_table(header: Sequence[str], rows: Sequence[Sequence[str]], figures: int = 0) -> str:
    """figures: how many of the last columns are right-aligned."""
    rule = ["---"] * (len(header) - figures) + ["---:"] * figures
    lines = [header, rule, *[[_md(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _md_points(points: Sequence[ScalePoint]) -> str:
    header = (
        "scale",
        "status",
        "GPUs",
        "batch per GPU",
        "global batch",
        "repeats",
        "samples/s",
        "speed-up",
        "efficiency",
        "step time (ms)",
        "data wait",
        "exposed comm.",
        "GPU h per 10^6 samples",
    )
    return _md_table(header, [_md_point(point) for point in points], figures=11)


def _md_point(point: ScalePoint) -> tuple[str, ...]:
    rate, efficiency = formats.significant(point.samples_per_s), formats.percent(point.efficiency)
    if point.samples_per_s is not None:
        low, high = (formats.significant(x) for x in (point.samples_per_s_low, point.samples_per_s_high))
        rate += f" {formats.interval(low, high)}"
    if point.efficiency is not None and point.world_size > 1:
        low, high = (formats.percent(x) for x in (point.efficiency_low, point.efficiency_high))
        efficiency += f" {formats.interval(low, high)}"
    return (
        str(point.scale),
        point.status,
        str(point.world_size),
        str(point.batch_per_gpu),
        str(point.global_batch),
        str(point.repeats),
        rate,
        formats.factor(point.speedup),
        efficiency,
        formats.milliseconds(point.step_time_s),
        formats.share(point.data_wait_fraction),
        formats.share(point.exposed_comm_fraction),
        formats.significant(point.gpu_hours_per_million_samples),
    )


def _md_gates(view: ReportView) -> str:
    lines = []
    for stage in view.stages:
        gate = view.gates.get(stage)
        if gate is None:
            lines.append(f"- {formats.stage_name(stage)}: not judged yet")
            continue
        why = f": {_md(gate.why)}" if gate.why else ""
        lines.append(f"- {formats.stage_name(stage)}: **{gate.verdict}**{why}")
        lines += [
            f"    - {_md(f'{item.scale} {item.mode} {item.variant}')}: "
            f"{_md(item.in_words)}, wanted {_md(item.wanted)}{'' if item.ok else ' (**not met**)'}"
            for item in gate.worth_showing
        ]
    return "\n".join(lines) or "No stage is planned."


def _md_failure(group: FailureGroup) -> str:
    failure = group.failure
    return (
        f"- {_md(', '.join(group.runs))}: {_md(failure.verdict)}. Why: {_md(failure.why)} "
        f"Next: {_md(failure.next)}"
    )


def _md_definitions() -> str:
    rows = [(item.name, item.unit, item.text) for item in DEFINITIONS]
    return _md_table(("figure", "unit", "definition"), rows)


def _md_measured(view: ReportView) -> str:
    rows = [
        (row.name, "=" if row.must_match else "", "; ".join(_with_places(pair) for pair in row.values))
        for row in view.measured
    ]
    return _md_table(("field", "must match", "value"), rows)


def _with_places(pair: tuple[str, str]) -> str:
    value, places = pair
    return f"{value} ({places})" if places else value
