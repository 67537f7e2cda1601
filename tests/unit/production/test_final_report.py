"""The final report of chains with a known truth: the figures are sums of what the links of a world were made of."""

from __future__ import annotations

import csv
import io
import math
import time
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.common.files import RunDirectory, read_json, write_json
from ddp_ladder.common.formats import UNKNOWN, significant
from ddp_ladder.common.messages import UserError
from ddp_ladder.ledger.jobs import update
from ddp_ladder.plan.plan import Units
from ddp_ladder.production.chain import keep_links, write_chain
from ddp_ladder.production.final import Campaign, best_interval_s, held_of, read_campaign, read_held
from ddp_ladder.production.plan import read_planned
from ddp_ladder.production.slower import COLUMNS
from ddp_ladder.records.record import Failure
from ddp_ladder.report.document import as_markdown
from ddp_ladder.report.final import FinalReport
from ddp_ladder.report.hours import milestones
from ddp_ladder.report.page import write_report
from ddp_ladder.report.view import ReportView
from ddp_ladder.settings.keys import CentreHours
from ddp_ladder.slurm.lock import Holder
from hypothesis import given, settings
from hypothesis import strategies as st
from make_jobs import LINK, make_chain, write_job
from make_records import make_plan_of, make_record, make_spec, make_specs, repeated
from make_results import make_results
from make_runs import (
    LOOP_AT_S,
    SAVED,
    STARTED_AT_S,
    STARTUP_S,
    edit,
    edit_agent,
    edit_part,
    edit_phases,
    edit_rank,
    end_run,
    write_loop,
    write_run,
)

SPEC = make_spec("1x2", stage="production")
PROMISED = 2000.0
BEFORE_S, AFTER_S = 3.0, 2.0  # a job, before its run and after it
ENDING_S = 0.3  # from the last step to the end of a rank


@dataclass(frozen=True)
class Made:
    """One link: its steps, the saves before some of them, and how it ends. Killed: its ranks leave no end."""

    step_s: float
    steps: int  # 0: it ended in its start-up
    saves: dict[int, float]  # before which step, how long
    end: str
    beside: bool = False  # it saved in the background
    begins_at: int = 0  # after so many steps of the training
    gpus: int = 2  # that Slurm gave to it, where ranks use 2
    clock_s: float = 0.0  # that of its host is wrong by
    late_steps: int = 0  # that the progress of killed ranks does not know
    states: str = ""  # what its ranks show of them: steps of the optimizer, values of the parameters, nothing

    @property
    def saved_steps(self) -> int:
        """What it has saved, and the next link goes on from."""
        return self.steps if self.end in ("saved", "complete") else max(self.saves, default=1) - 1

    @property
    def known_steps(self) -> int:
        return max(1, self.steps - self.late_steps)

    @property
    def known_s(self) -> float:
        """What its progress knows, from the end of the first step."""
        saves_s = sum(s for k, s in self.saves.items() if k <= self.known_steps)
        return (self.known_steps - 1) * self.step_s + saves_s * (not self.beside)

    def owners_s(self, kept: int | None) -> dict[str, float]:
        """Whose its seconds are from the end of the first step to the end of the ranks, if so many steps count."""
        saves = {} if self.beside else self.saves
        loop_s = (self.steps - 1) * self.step_s + sum(saves.values())
        if not self.steps or kept is None:
            return {"training": 0.0, "checkpoints": 0.0, "made again": 0.0}
        if self.end == "killed":  # nothing tells a save from a step
            part = min(1.0, max(0, kept - 1) / (self.known_steps - 1)) if self.known_steps > 1 else 0.0
            again_s = loop_s + ENDING_S + 0.5 + AFTER_S - part * self.known_s
            is_lost = kept < self.known_steps
            return {"training": part * self.known_s, "checkpoints": 0.0, "made again": again_s if is_lost else 0.0}
        training_s = (max(1, kept) - 1) * self.step_s
        saving_s = sum(seconds for k, seconds in saves.items() if k <= max(1, kept) + 1)
        again_s = (loop_s - training_s - saving_s + ENDING_S) * (kept < self.steps)
        return {"training": training_s, "checkpoints": saving_s, "made again": again_s}

    def state_at(self, steps: int) -> dict[str, Any] | None:
        """What a rank shows of its state after so many steps of this link."""
        at = self.begins_at + steps
        known = {"steps": (at, []), "values": (None, [1.0 + at, 2.0 + at])}.get(self.states)
        return {"optimizer_steps": known[0], "lr": [0.1], "values": known[1], "count": 2} if known else None


def kept_of(world: list[Made]) -> list[int | None]:
    """How many steps of each link count: up to the state that a later link went on from, or what it has saved."""
    kept: list[int | None] = []
    for number, made in enumerate(world):
        later = [each.begins_at - made.begins_at for each in world[number + 1 :] if each.steps]
        shown = bool(later) and (made.states == "steps" or (made.states == "values" and later[0] == 0))
        at = min([*later, made.steps]) if shown else made.saved_steps
        is_known = shown or made.end != "killed" or not made.steps
        kept.append(max(0, at) if is_known else None)
    return kept


@st.composite
def links(draw: st.DrawFn, end: str, states: str) -> Made:
    steps = draw(st.integers(6, 20)) if end in ("saved", "complete") else draw(st.sampled_from([0, 1, 6, 13]))
    at = draw(st.sets(st.integers(3, steps), max_size=3)) if steps > 2 else ()
    return Made(
        draw(st.floats(0.5, 3.0)),
        steps,
        {k: draw(st.floats(0.2, 5.0)) for k in sorted(at)},
        end,
        draw(st.booleans()),
        gpus=draw(st.sampled_from([2, 4])),
        clock_s=draw(st.sampled_from([0.0, 0.0, -2.6e6, 2.6e6])),
        late_steps=draw(st.integers(0, 3)),
        states=states,
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[Made]:
    """Chains whose links may go on from any state that was saved, where their states show it, else from the last."""
    states = draw(st.sampled_from(["steps", "values", ""]))
    ends = draw(st.lists(st.sampled_from(["saved", "failed", "killed"]), max_size=3))
    world, saved = [], [0]
    for end in [*ends, draw(st.sampled_from(["complete", "failed", "killed"]))]:
        begins_at = draw(st.sampled_from([*saved, *[saved[-1]] * 5])) if states == "steps" else saved[-1]
        made = replace(draw(links(end, states)), begins_at=begins_at)
        world.append(made)
        if made.steps:
            saved += [begins_at + k - 1 for k in made.saves]
            saved.append(begins_at + made.saved_steps)
    return world


def write_link(directory: Path, number: int, made: Made, begun_s: float, *, is_last: bool, **job: Any) -> float:
    """Write a link's run and its job; return when its job ended, by a clock that is right."""
    job = {"job_id": str(number), "number": number, **job}
    run = write_run(directory, SPEC)
    run.record.unlink()
    ended_s = LOOP_AT_S
    for rank in range(2):
        kind = "save" if rank == 0 and not made.beside else "nothing"
        paused = {} if made.beside else {k: (kind, s) for k, s in made.saves.items()}
        if made.steps:
            ended_s = write_loop(run, rank, steps_s=[made.step_s] * made.steps, pauses=paused)
            states = {"first_state": made.state_at(0), "last_state": made.state_at(made.steps)}
            edit_rank(run, rank, **states, exit_code={"saved": 75, "failed": 3, "killed": 3, "complete": 0}[made.end])
        if made.beside and rank == 0 and made.steps:
            begins_s = [(k - 2) * made.step_s for k in made.saves]
            last_s = (made.steps - 1) * made.step_s
            spans = [(s, min(s + took_s, last_s)) for s, took_s in zip(begins_s, made.saves.values(), strict=True)]
            edit_phases(run, 0, saves_s=spans)
            edit_part(
                run, 0, "phases", saves={"count": len(spans), "seconds": 0, "aside_s": 1, "bytes": len(spans) * SAVED}
            )
    end_run(run, ended_s)
    if made.end == "failed":
        failed = {"rank": 1, "local_rank": 1, "pid": 7, "exit_code": 3, "ended_at_s": ended_s, "signal": None}
        edit_agent(run, 0, exit_code=1, failed_ranks=[failed])
    moved_s = begun_s + made.clock_s + BEFORE_S - STARTED_AT_S
    ended_at_s = ended_s + 0.5 + moved_s + AFTER_S
    if made.end == "killed" or not made.steps:
        lose_ranks(run, made, moved_s)
    for path in (run.run, run.ended, *run.ranks.glob("*.json"), *run.nodes.glob("*.json")):
        if path.exists():
            edit(path, lambda file: file["job"].update(id=job["job_id"], attempt=number))
    edit(run.run, lambda file: file.update(link=number))
    if run.ended.exists():
        edit(run.ended, lambda end: end.update({key: end[key] + moved_s for key in ("started_at_s", "ended_at_s")}))
    times = {"begun_at_s": begun_s + made.clock_s, "ended_at_s": ended_at_s, "gpus_allocated": made.gpus}
    write_job(directory, str(number), **times, **LINK, **job)
    if not is_last:
        attempt = run.attempts / str(number)
        attempt.mkdir(parents=True)
        for name in ("run.json", "ended.json", "ranks", "nodes", "progress.json"):
            if (run.path / name).exists():
                (run.path / name).rename(attempt / name)
    return ended_at_s - made.clock_s


def lose_ranks(run: RunDirectory, made: Made, moved_s: float) -> None:
    """Leave what ranks leave that were killed with their job, or that ended in their start-up."""
    first = read_json(run.ranks / "rank0.json")
    common = {key: first[key] for key in ("spec_hash", "job")}
    for path in run.ranks.iterdir():
        path.unlink()
    if made.end == "killed":
        run.ended.unlink()
    if not made.steps:
        return
    if state := made.state_at(0):
        for rank in range(2):
            write_json(
                run.ranks / f"rank{rank}.first.json", {"schema_version": 1, **common, "rank": rank, "state": state}
            )
    progress = {"step": made.known_steps, "saves": len(made.saves), "samples_per_s": None, "elapsed_s": made.known_s}
    write_json(run.progress, {**progress, "updated_at_s": LOOP_AT_S + made.known_s + moved_s})


def begin_chain(results: Path) -> Path:
    directory = results / "production"
    write_json(directory / "plan.json", make_plan_of([SPEC]).to_json())
    write_chain(directory, make_chain(promised_samples_per_s=PROMISED, training_hours=0.5))
    return directory


def write_world(results: Path, world: list[Made], **job: Any) -> tuple[Campaign, list[float]]:
    """Write a chain; return it as it is read, and the seconds that its links held."""
    directory, begun_s, held_s = begin_chain(results), STARTED_AT_S, []
    for number, made in enumerate(world, start=1):
        ended_s = write_link(directory, number, made, begun_s, is_last=number == len(world), **job)
        held_s.append(ended_s - begun_s)
        begun_s = ended_s + 60
    update(directory)
    return read_campaign(results, time.time()), held_s


@settings(deadline=None, max_examples=25)
@given(worlds(), st.booleans())
def test_the_figures_are_those_of_the_world(world: list[Made], in_allocation: bool) -> None:
    """Kills at any moment, lost files, wrong clocks, several links in one allocation, nodes held whole."""
    job = {"in_allocation": True, "job_id": "9"} if in_allocation else {}
    with TemporaryDirectory() as directory:
        campaign, held_s = write_world(Path(directory), world, **job)
        report = FinalReport(campaign, date(2026, 11, 28))
        rows = {row["link"]: row for row in csv.DictReader(io.StringIO(report.csv))}
        text = as_markdown(report.document)
        keep_links(Path(directory) / "production", [each.link for each in campaign.links])
        assert read_campaign(Path(directory), time.time()).used == campaign.used
    near, kept = 3e-3, kept_of(world)  # ends of steps are kept in milliseconds
    samples = [None if steps is None else steps * SPEC.global_batch for steps in kept]
    for each, made, steps, wanted, took_s in zip(campaign.links, world, kept, samples, held_s, strict=True):
        assert each.samples == (None if wanted is None else pytest.approx(wanted)), made
        owners_s = made.owners_s(steps)
        assert {part: each.parts_s[part] for part in owners_s} == pytest.approx(owners_s, abs=near * 9), made
        assert sum(each.parts_s.values()) == pytest.approx(took_s)
        assert each.parts_s["start-up"] >= (STARTUP_S if made.steps else AFTER_S)
    known = sum(filter(None, samples))
    assert campaign.used.gpus == pytest.approx(sum(made.gpus * s for made, s in zip(world, held_s, strict=True)) / 3600)
    assert campaign.used.nodes == pytest.approx(sum(held_s) / 3600)
    assert (campaign.samples or 0) == pytest.approx(known)
    if campaign.samples is not None:
        assert campaign.efficiency == pytest.approx(known / sum(held_s) / PROMISED, rel=5e-3, abs=1e-9)
    saves = campaign.checkpoints
    seen = [made for made in world if made.end != "killed" and made.steps]
    assert (saves.count or 0, saves.bytes or 0) == (n := sum(len(made.saves) for made in seen), SAVED * n)
    failures = sum(made.end in ("failed", "killed") for made in world)
    if failures:
        assert saves.between_failures_s == pytest.approx(sum(held_s) / failures)
    else:
        assert saves.between_failures_s is None
        if saves.each_s:
            assert "Mean time between failures: unknown; none was seen" in text
    assert float(rows["all"]["gpu_hours"]) == pytest.approx(campaign.used.gpus, rel=1e-5)
    ends = [made.end.replace("killed", "failed") if made.steps else "failed" for made in world]
    assert [rows[str(k)]["end"] for k in range(1, len(world) + 1)] == ends
    for column in ("gpu_hours", "training_s", "checkpoints_s", "made_again_s", "samples_kept", "saves"):
        each_row = [float(row[column] or 0) for name, row in rows.items() if name.isdecimal()]
        assert sum(each_row) == pytest.approx(float(rows["all"][column] or 0), rel=1e-4, abs=1e-6)


@given(st.floats(1, 600), st.floats(600, 1e6))
def test_the_best_interval_loses_the_least(save_s: float, between_s: float) -> None:
    """Daly's model: the time per second of training, with failures that come by chance and no restart."""

    def cost(interval_s: float) -> float:
        return between_s * math.expm1((interval_s + save_s) / between_s) / interval_s

    best = min(cost(between_s * k / 1000) for k in range(1, 3000))
    assert cost(best_interval_s(save_s, between_s)) <= best * 1.01


@given(st.lists(st.tuples(st.floats(1, 1e4), st.integers(1, 120)), min_size=1, max_size=40))
def test_as_much_time_is_slower_than_the_median_as_is_faster(windows: list[tuple[float, int]]) -> None:
    held = held_of(np.array(windows))
    assert held.median is not None
    slower_s = sum(seconds for rate, seconds in windows if rate < held.median)
    faster_s = sum(seconds for rate, seconds in windows if rate > held.median)
    assert max(slower_s, faster_s) <= sum(seconds for _, seconds in windows) / 2 + 1e-6


def good_lines(rates: list[float]) -> list[str]:
    return [f"1,8,{60 * k}.0,{60 * k + 60}.0,60,{rate},1.0,0.1,," for k, rate in enumerate(rates)]


DAMAGED = ("\0" * 40, "", "1,8,0.0,60.0,6", good_lines([math.nan])[0], f"1,8,0.0,60.0,{10**400},2,1.0,0.1,,",
           "1,8,0.0,60.0,6,1e400,1.0,,,", "1,8,0.0,60.0,0,5.0,0.0,,,")  # fmt: skip
rates = st.lists(st.floats(1, 1e4), min_size=1, max_size=9)


@given(rates, st.lists(st.tuples(st.sampled_from(DAMAGED), st.integers(0, 9)), max_size=5))
def test_damaged_lines_of_the_table_cost_only_themselves_and_are_counted(
    given_rates: list[float], damage: list[tuple[str, int]]
) -> None:
    lines = good_lines(given_rates)
    windows = [[rate, 60.0] for rate in given_rates]
    for line, place in damage:
        lines.insert(place, line)
    with TemporaryDirectory() as directory:
        table = Path(directory) / "windows.csv"
        table.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
        held = read_held(table)
    assert held == replace(held_of(np.array(windows)), doubt=held.doubt)
    wanted = f"{len(damage)} of {len(lines)} line"
    assert held.doubt.startswith(wanted) if damage else held.doubt == ""


def test_doubts_of_the_promise_and_of_the_table_of_windows_stand_beside_their_figures(tmp_path: Path) -> None:
    campaign, _ = write_world(tmp_path, [Made(1.0, 6, {4: 2.0}, "complete")])
    promise_doubt = "at 1x2 the number of samples is doubtful"
    write_chain(tmp_path / "production", campaign.chain.replace(promise_doubt=promise_doubt))
    table = tmp_path / "production/windows.csv"

    def told(*rates: float) -> str:
        table.write_text("\n".join([",".join(COLUMNS), *good_lines([*rates]), DAMAGED[0]]) + "\n")
        return as_markdown(FinalReport(read_campaign(tmp_path, time.time()), date(2026, 11, 28)).document)

    cut = "cannot be read, and left out"
    text = told(1900.0)
    assert f"The ladder's figure is in doubt: {promise_doubt}" in text
    assert text.count(f"1 of 2 lines of windows.csv {cut}") == 2  # beside the throughput, and in the words to hand on
    assert f"The throughput of the steps is not known: 1 of 1 line of windows.csv {cut}" in told()


def planned_view(results: Path, runs: int) -> ReportView:
    specs = make_specs(["1x1", "1x2"])
    records = [make_record(spec, repeated(1000.0 * spec.world_size, spec), startup_s=36.0) for spec in specs]
    ladder = make_results(records, work=Work(samples=1.8e6, runs=runs), directory=results)
    return ReportView(ladder, date(2026, 11, 24))


def test_the_plan_is_the_one_before_the_first_link(tmp_path: Path) -> None:
    for runs, kept in ((2, 2), (3, 3)):
        view = planned_view(tmp_path, runs)
        write_report(view.results, view.written_on)
        plan = read_planned(tmp_path)
        assert plan
        assert [each.runs for each in plan.trainings] == [kept] * len(plan.trainings)
    write_world(tmp_path, [Made(1.0, 6, {4: 2.0}, "complete")])
    write_report(planned_view(tmp_path, 9).results)
    campaign = read_campaign(tmp_path, time.time())
    report = FinalReport(campaign, date(2026, 11, 28))
    training = report.training
    assert training
    assert training.runs == 3
    (milestone,) = [each for each in milestones(planned_view(tmp_path, 3)) if str(each.point.scale) == "1x2"]
    assert training.of_all.nodes == milestone.training.of_all.nodes
    assert report.plan.hours
    assert report.plan.hours.gpus == pytest.approx(milestone.training.of_all.gpus / 3)
    text = as_markdown(report.document)
    assert "the application asks for 3 trainings" in text.lower()
    assert "process hours" in text
    assert "GPU h" not in text


def test_without_an_application_the_plan_is_that_of_the_chain(tmp_path: Path) -> None:
    report = FinalReport(write_world(tmp_path, [Made(1.0, 6, {}, "complete")])[0], date(2026, 11, 28))
    assert report.plan.hours
    assert report.plan.hours.gpus == pytest.approx(1.0)
    assert "the training is complete" in report.headline.lower()
    hours = CentreHours(name="normalised h", per_gpu_hour=2)
    carbon = Units.from_json({"carbon": {"grams_co2_per_kwh": 250, "source": "grid, 2025"}})
    links = tuple(replace(each, gpu_energy_j=7.2e6) for each in report.campaign.links)
    chain = report.campaign.chain.replace(centre_hours=hours)
    campaign = replace(report.campaign, chain=chain, links=links, units=carbon)
    report = FinalReport(campaign, date(2026, 11, 28))
    text = as_markdown(report.document)
    used = significant(2 * campaign.used.gpus)
    assert f"| CO2 of it, kg | {UNKNOWN} | 0.500 | {UNKNOWN} |" in text
    assert "2.00 kWh of GPU energy were measured, or 0.500 kg of CO2 at 250 g per kWh (grid, 2025)." in text
    assert [row["carbon_kg"] for row in csv.DictReader(io.StringIO(report.csv))] == ["", "0.5", "0.5"]
    assert f"| normalised h | 2.00 | {used} |" in text
    assert f"node hours, {used} normalised h)" in text


def test_a_link_that_a_person_ended_is_no_failure(tmp_path: Path) -> None:
    ends, seen = ("SIGINT", "SIGKILL", None), []
    for ended_by in ends:
        results = tmp_path / str(ended_by)
        write_world(results, [Made(1.0, 6, {4: 2.0}, "failed"), Made(1.0, 6, {4: 2.0}, "complete")])
        edit(results / "production/jobs/1x2/1.json", lambda file, by=ended_by: file.update(ended_by=by))
        seen.append(read_campaign(results, STARTED_AT_S + 1e6).failures)
    assert seen == [0, 1, 1]


def test_a_link_that_runs_counts_with_its_hours_alone(tmp_path: Path) -> None:
    directory, now_s = begin_chain(tmp_path), time.time()
    write_job(directory, "here", job_id="here", begun_at_s=now_s - 1800, ended_at_s=None, **LINK)
    write_json(directory / "jobs/1x2.lock1", asdict(Holder.here("here")))
    campaign = read_campaign(tmp_path, now_s)
    assert campaign.used.gpus == pytest.approx(1.0)
    report = FinalReport(campaign, date(2026, 11, 28))
    text = as_markdown(report.document)
    assert report.headline.startswith("So far")
    assert "Link 1 goes on" in text
    assert campaign.efficiency is None
    assert "here" in report.csv
    assert "1 link used" in report.html


@pytest.mark.parametrize("begun", [False, True])
def test_without_a_link_one_message_says_so(tmp_path: Path, begun: bool) -> None:
    if begun:
        begin_chain(tmp_path)
    with pytest.raises(UserError, match="no link of production has begun" if begun else "there is no chain of jobs"):
        read_campaign(tmp_path, time.time())


def test_training_after_which_the_script_began_anew_is_not_kept_and_a_doubtful_result_is_named(tmp_path: Path) -> None:
    anew = [Made(1.0, 6, {4: 2.0}, "saved", states="values"), Made(1.0, 8, {4: 2.0}, "complete", states="values")]
    campaign, _ = write_world(tmp_path, anew)
    first, second = (each.link for each in campaign.links)
    assert second.is_anew
    doubt = Failure(verdict="different parameters", why="2 checksums", next="correct the script")
    keep_links(tmp_path / "production", [first, second.replace(doubt=doubt)])
    edit(tmp_path / "production/jobs/1x2/1.json", lambda file: file["row"].update(queue_wait_s=125.0))
    campaign = read_campaign(tmp_path, STARTED_AT_S + 1e6)
    assert campaign.samples == pytest.approx(8 * SPEC.global_batch)
    assert campaign.links[0].parts_s["made again"] == pytest.approx(5 + 2 + ENDING_S, abs=0.01)
    report = FinalReport(campaign, date(2026, 11, 28))
    assert "with a doubtful result (different parameters)" in report.headline
    text = as_markdown(report.document)
    assert "waited 2 min 05 s in the queue (1 link; of the others it is not known)" in text
