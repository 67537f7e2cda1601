"""The final report of a chain of production: planned against used, as one page, as text and as CSV. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

from ddp_ladder import __version__
from ddp_ladder.common.formats import (
    UNKNOWN,
    capitalised,
    count,
    duration,
    full_stop,
    gigabytes,
    in_short,
    percent,
    share,
    significant,
)
from ddp_ladder.ledger.entries import MADE_AGAIN, PREFLIGHT
from ddp_ladder.measuring.owners import STARTUP
from ddp_ladder.plan.plan import Hours, HourUnit, unit_of
from ddp_ladder.production.chain import clock
from ddp_ladder.production.final import (
    CERTAIN,
    CHECKPOINTS,
    PARTS,
    TRAINING,
    UNKEPT,
    Campaign,
    Held,
    LinkUse,
    best_interval_s,
)
from ddp_ladder.production.plan import PlannedTraining
from ddp_ladder.report.document import Block, Cell, Content, Document, Section, as_html, csv_text

OF_PARTS = {part: f"{part.replace('-', '_').replace(' ', '_')}_s" for part in PARTS}  # columns
COLUMNS = (
    "link", "job_id", "begun_at", "end", "cause", "gpu_hours", "node_hours", "gpu_energy_kwh", "carbon_kg",
    "queue_wait_s", "elapsed_s", *OF_PARTS.values(), "steps", "samples_kept",
    "samples_per_s", "samples_per_s_median", "saves", "saves_s", "saved_bytes",
    "training_share", "efficiency",
)  # fmt: skip
Row = Mapping[str, object]


@dataclass(frozen=True)
class Plan:
    """What was planned for this training; None: not known."""

    hours: Hours | None
    gpu_energy_kwh: float | None
    samples: float | None
    samples_per_s: float | None
    source: str  # in words


@dataclass(frozen=True)
class FinalReport:
    """A campaign in words, for the page, the text and the table."""

    campaign: Campaign
    written_on: date

    @property
    def title(self) -> str:
        script = self.campaign.job.runs[0].script.rsplit("/", 1)[-1]
        return f"Final report of {script} on {self.campaign.site}"

    @property
    def unit(self) -> str:
        return unit_of(self.campaign.job.runs)

    @cached_property
    def training(self) -> PlannedTraining | None:
        """Return the milestone of the application that this chain is of."""
        planned, chain = self.campaign.planned, self.campaign.chain
        return planned.training(chain.scale, self.campaign.job.runs[0].mode) if planned else None

    @cached_property
    def plan(self) -> Plan:
        """Return what was planned: of the application, or else of the start of production."""
        chain, training, nodes = self.campaign.chain, self.training, self.campaign.job.scale.nodes
        if training is not None and self.campaign.planned is not None:
            source = (
                f"planned: one training of the application of {self.campaign.planned.written_on} "
                f"({training.run_type}), with its reserve of {percent(training.reserve)}"
            )
            energy = training.gpu_energy_kwh
            if energy is not None:
                energy *= 1 + training.reserve
            return Plan(training.of_one, energy, training.samples, training.samples_per_s, source)
        hours = None if chain.training_hours is None else Hours.held(chain.training_hours, nodes, chain.gpus)
        why = (
            "no application was written for this scale before the first link (report.epochs, samples, tokens or steps)"
        )
        found = "planned: one training, as the ladder expects it, without a reserve" if hours else "no plan is known"
        source = f"{found}; {why}"
        return Plan(hours, None, chain.training_samples, chain.promised_samples_per_s, source)

    @property
    def hour_unit(self) -> HourUnit:
        return self.campaign.chain.hour_unit(self.campaign.job)

    @property
    def headline(self) -> str:
        """Return how far the training is, and what it used."""
        campaign, used = self.campaign, self.campaign.used
        doubt = campaign.links[-1].link.doubt
        ended = f"ended with a doubtful result ({doubt.verdict})" if doubt else "is complete"
        state = f"The training {ended}" if campaign.is_complete else f"So far, on {clock(campaign.now_s)}"
        links = f"{count(len(campaign.links), 'link')} used {self.hour_unit.in_words(used)}"
        of_plan = f", {percent(used.gpus / self.plan.hours.gpus)} of the plan" if self.plan.hours else ""
        return f"{state}: {links}{of_plan}. {self._efficiency}"

    @property
    def _efficiency(self) -> str:
        campaign, least = self.campaign, "at least " * bool(self.campaign.without_kept)
        if campaign.training_share is None:
            return "How much of it was training is not known."
        words = f"{capitalised(least)}{share(campaign.training_share)} of the held time was training that was kept"
        if campaign.efficiency is None:
            return f"{words}; the ladder's figure to compare its speed with is not known."
        return f"{words}; with its speed against the ladder's that is an efficiency of {share(campaign.efficiency)}."

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        return (
            Section("Planned and used", tuple(self._against_plan())),
            Section("Where the time went", tuple(self._time())),
            Section("Throughput", (Block(items=tuple(map(_sentence, self._throughput()))),)),
            Section("Checkpoints", (Block(items=tuple(map(_sentence, self._checkpoints()))),)),
            Section("Links", (self._links(),)),
            Section("For the report to the centre", (Block(" ".join(self._paragraph())),)),
        )

    def _against_plan(self) -> Iterator[Block]:
        plan, campaign, used = self.plan, self.campaign, self.campaign.used
        carbon_kg = campaign.units.carbon_kg
        rows = (
            (f"{self.unit} hours", plan.hours.gpus if plan.hours else None, used.gpus),
            ("node hours", plan.hours.nodes if plan.hours else None, used.nodes),
            *self._of_centre(),
            ("GPU energy, kWh", plan.gpu_energy_kwh, campaign.gpu_energy_kwh),
            ("CO2 of it, kg", carbon_kg(plan.gpu_energy_kwh), carbon_kg(campaign.gpu_energy_kwh)),
            ("samples", plan.samples, campaign.samples),
            ("samples/s", plan.samples_per_s, campaign.samples_per_s),
        )
        yield Block(
            name="Planned and used",
            headings=("", *map(_right, ("planned", "used", "used / planned"))),
            rows=tuple(
                (name, *map(_right, (significant(a), significant(b), _part(percent, b, a))))
                for name, a, b in rows
                if a is not None or b is not None
            ),
            figures=3,
        )
        yield Block(items=tuple(map(_sentence, self._notes())), style="notes")

    def _of_centre(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Yield the centre's own hours, planned and used, if it has some."""
        unit, planned = self.hour_unit, self.plan.hours
        if unit.centre is not None:
            yield (
                unit.centre.name,
                planned.of_centre(unit.centre) if planned else None,
                self.campaign.used.of_centre(unit.centre),
            )

    def _notes(self) -> Iterator[str]:
        campaign, training = self.campaign, self.training
        yield self.plan.source
        if training is not None and (training.runs or 1) > 1:
            asked = self.hour_unit.in_words(training.of_all)
            yield f"the application asks for {training.runs} trainings, {asked} in all; this chain is one"
        yield f"the limit was {significant(campaign.chain.up_to_hours)} {self.unit} h (production.up_to_hours)"
        yield "samples and samples/s are of the training that was kept, with its validations"
        if campaign.without_kept:
            yield f"what was kept of {_named(campaign.without_kept)} is not known, and counts as nothing"
        running = [each for each in campaign.links if not each.has_ended]
        if running:
            yield f"{_named(running)} goes on: it counts with its hours so far, and with nothing else"
        dark = [each for each in campaign.links if each.gpu_energy_j is None]
        if campaign.gpu_energy_kwh is not None and dark:
            yield f"the energy of {_named(dark)} is not known, and not in the sum"

    def _time(self) -> Iterator[Block]:
        campaign = self.campaign
        held_s, gpu_hours = campaign.held_s, campaign.gpu_hours
        yield Block(
            name="Where the time went",
            headings=("part", *map(_right, ("time", f"{self.unit} h", "share")), "what it is"),
            rows=tuple(
                (part, *map(_right, (span(s), significant(gpu_hours[part]), _part(share, s, held_s))), PARTS[part][1])
                for part, s in campaign.parts_s.items()
            ),
        )
        yield Block(items=tuple(map(_sentence, self._beside())), style="notes")

    def _beside(self) -> Iterator[str]:
        campaign = self.campaign
        first_s, last = campaign.links[0].link.begun_at_s, campaign.links[-1].link
        until_s = last.ended_at_s if last.ended_at_s is not None else campaign.now_s
        if until_s > first_s:  # by one clock
            yield f"from the begin of the first link it took {span(until_s - first_s)}, with all that was between links"
        known = [each for each in campaign.links if each.queue_wait_s is not None]
        if campaign.queue_wait_s is None:
            yield "the time in the queue is not known: Slurm's accounting has no times of these links"
        else:
            all_known = len(known) == len(campaign.links)
            of = "" if all_known else f" ({count(len(known), 'link')}; of the others it is not known)"
            yield f"the links waited {span(campaign.queue_wait_s)} in the queue{of}, which takes no node hours"

    def _throughput(self) -> Iterator[str]:
        held, promised = self.campaign.held, self.campaign.chain.promised_samples_per_s
        if promised and (doubt := self.campaign.chain.promise_doubt):
            yield f"the ladder's figure is in doubt: {doubt}"
        if held.median is None:
            yield f"the throughput of the steps is not known: {held.doubt or 'no link was measured for a minute'}"
            return
        against = f", {percent(held.median / promised)} of the ladder's {significant(promised)}" if promised else ""
        yield f"median of the time in steps: {significant(held.median)} samples/s{against}"
        if held.doubt:
            yield held.doubt

    def _checkpoints(self) -> Iterator[str]:
        saves, campaign = self.campaign.checkpoints, self.campaign
        if saves.count is None:
            yield "whether the script saved is not known of any link"
            return
        dark = [each for each in campaign.ended if each.saves is None]
        without = f", without those of {_named(dark)}, which are not known" * bool(dark)
        size = f", {gigabytes(saves.bytes)} GB" if saves.bytes is not None else ""
        of_held = self._share_of(CHECKPOINTS)
        took = f"the training waited {span(saves.seconds)} for them"
        yield f"{count(saves.count, 'save')}{size}; {took}, {of_held} of the held time{without}"
        if not saves.each_s or saves.taken_s is None:
            yield "no interval can be recommended: no save took time"
            return
        yield f"one save took {span(saves.each_s)}; the script saved every {span(saves.taken_s)} of training"
        between_s = saves.between_failures_s
        if between_s is not None:
            failures = f"{count(saves.failures, 'failure')} in {span(saves.held_s)}"
            yield f"mean time between failures: {span(between_s)} ({failures})"
            yield f"the interval that loses the least: {span(best_interval_s(saves.each_s, between_s))} by Daly"
            return
        least_s = saves.least_between_failures_s
        seen = f"none was seen in {span(saves.held_s)}, so it is at least {span(least_s)}"
        yield f"mean time between failures: unknown; {seen} ({percent(CERTAIN)} certain)"
        yield f"the interval that loses the least is at least {span(best_interval_s(saves.each_s, least_s))} by Daly"

    def _links(self) -> Block:
        shown = (TRAINING, CHECKPOINTS, STARTUP, PREFLIGHT, MADE_AGAIN)
        headings = ("link", "job", "begin", f"{self.unit} h", "queue", *shown, "end")
        return Block(
            name="Links",
            headings=tuple(headings[:3]) + tuple(map(_right, headings[3:-1])) + ("end",),
            rows=tuple(
                (
                    str(each.link.number),
                    each.link.job_id,
                    clock(each.link.begun_at_s),
                    *map(_right, (significant(each.hours.gpus), span(each.queue_wait_s))),
                    *(_right(span(each.parts_s.get(part))) for part in shown),
                    each.link.cause,
                )
                for each in self.campaign.links
            ),
        )

    def _paragraph(self) -> Iterator[str]:
        campaign, used, plan = self.campaign, self.campaign.used, self.plan
        run = campaign.job.runs[0]
        nodes = campaign.job.scale.nodes
        where = f"{count(nodes, 'node')} with {count(campaign.chain.gpus, self.unit)}"
        if self.unit == "process":
            where = f"{count(nodes, 'node')} with {campaign.chain.gpus} process{'es' * (campaign.chain.gpus > 1)}"
        done = "was completed" if campaign.is_complete else "has been running"
        yield f"The training {run.script.rsplit('/', 1)[-1]} {done} on {campaign.site} on {where}"
        yield f"in {count(len(campaign.links), 'job')} that each went on from the last saved state."
        energy = campaign.gpu_energy_kwh
        dark = any(each.gpu_energy_j is None for each in campaign.links)
        measured = f"; {'at least ' * dark}{significant(energy)} kWh of GPU energy were measured" if energy else ""
        carbon = f", or {of_it}" if energy and (of_it := campaign.units.carbon_in_words(energy)) else ""
        of_centre = "".join(f", {significant(hours)} {name}" for name, _, hours in self._of_centre())
        yield (
            f"It used {significant(used.gpus)} {self.unit} hours ({significant(used.nodes)} node hours{of_centre})"
            f"{measured}{carbon}."
        )
        if plan.hours:
            part = percent(used.gpus / plan.hours.gpus)
            yield f"That is {part} of the {significant(plan.hours.gpus)} {self.unit} hours that had been planned."
        if campaign.samples is not None:
            yield f"{significant(campaign.samples)} samples were trained{self._rates}."
        yield self._efficiency
        yield full_stop(", ".join(self._lost()))

    @property
    def _rates(self) -> str:
        held, promised = self.campaign.held, self.campaign.chain.promised_samples_per_s
        if held.median is None:
            return ""
        doubt = f" ({held.doubt})" * bool(held.doubt)
        against = f", where {significant(promised)} had been measured before" if promised else ""
        return f" at {significant(held.median)} samples per second (median){against}{doubt}"

    def _lost(self) -> Iterator[str]:
        ends = [each for each in self.campaign.ended if each.link.end in UNKEPT]
        yield f"Of the held time {self._share_of(STARTUP, PREFLIGHT)} went to start-up and tests of the nodes"
        yield f"{self._share_of(CHECKPOINTS)} to checkpoints"
        lost = f"{self._share_of(MADE_AGAIN)} to work that had to be repeated"
        yield f"and {lost} after {count(len(ends), 'job')} that ended without a final save" if ends else f"and {lost}"

    def _share_of(self, *parts: str) -> str:
        return _part(share, sum(self.campaign.parts_s[part] for part in parts), self.campaign.held_s)

    @property
    def document(self) -> Document:
        ending = f"Written by ddp-ladder {__version__} on {self.written_on.isoformat()}."
        return Document(self.title, (Section("", (Block(self.headline),)), *self.sections), ending)

    @property
    def html(self) -> str:
        """Return the page; every text is escaped."""
        return as_html("final_report.html.j2", view=self)

    @property
    def csv(self) -> str:
        """Return a row of the plan, one for each link, and one of all."""
        rows = [self._plan_row()]
        for each in self.campaign.links:
            of_link = {name: getattr(each.link, name) for name in ("job_id", "end", "cause", "steps")}
            begun_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each.link.begun_at_s))
            alone = replace(self.campaign, links=(each,), held=Held())
            rows.append({**of_link, "begun_at": begun_at, **self._row(each.link.number, alone)})
        rows.append(self._row("all", self.campaign))
        return csv_text([{**dict.fromkeys(COLUMNS), **row} for row in rows], COLUMNS)

    def _energy(self, energy_kwh: float | None) -> Row:
        return {"gpu_energy_kwh": energy_kwh, "carbon_kg": self.campaign.units.carbon_kg(energy_kwh)}

    def _plan_row(self) -> Row:
        plan = self.plan
        return {
            "link": "planned",
            "gpu_hours": plan.hours and plan.hours.gpus,
            "node_hours": plan.hours and plan.hours.nodes,
            **self._energy(plan.gpu_energy_kwh),
            "samples_kept": plan.samples,
            "samples_per_s": plan.samples_per_s,
        }

    def _row(self, name: int | str, campaign: Campaign) -> Row:
        saves, used = campaign.checkpoints, campaign.used
        return {
            "link": name,
            "gpu_hours": used.gpus,
            "node_hours": used.nodes,
            **self._energy(campaign.gpu_energy_kwh),
            "queue_wait_s": campaign.queue_wait_s,
            "elapsed_s": sum(each.elapsed_s for each in campaign.links),
            **{OF_PARTS[part]: seconds for part, seconds in campaign.parts_s.items() if campaign.ended},
            "samples_kept": campaign.samples,
            "samples_per_s": campaign.samples_per_s,
            "samples_per_s_median": campaign.held.median,
            "saves": saves.count,
            "saves_s": saves.seconds,
            "saved_bytes": saves.bytes,
            "training_share": campaign.training_share,
            "efficiency": campaign.efficiency,
        }


def _part(shown: Callable[[float], str], value: float | None, whole: float | None) -> str:
    return shown(value / whole) if value is not None and whole else UNKNOWN


def _right(text: str) -> Cell:
    return Cell(text, style="n")


def _sentence(text: str) -> Content:
    return full_stop(capitalised(text))


def span(seconds: float | None) -> str:
    """Return a time: of seconds with their fractions."""
    if seconds is None:
        return UNKNOWN
    return duration(seconds) if seconds >= 10 or not seconds else f"{significant(seconds)} s"


def _named(links: list[LinkUse] | tuple[LinkUse, ...]) -> str:
    return f"link{'s' * (len(links) > 1)} {in_short([each.link.number for each in links])}"
