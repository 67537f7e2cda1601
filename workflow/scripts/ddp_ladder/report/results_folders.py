"""Folders of results that the user names, to be compared with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_ladder.analysis.comparison import Folder
from ddp_ladder.common.formats import full_stop
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.plan.file import read_plan
from ddp_ladder.records.run_records import RunRecords, as_made
from ddp_ladder.report.missing import believed_records, unplanned_records

WHERE = "--config compare"
EXAMPLE = "snakemake compare --config 'compare=[old/results, results]'"


def read_folders(names: Sequence[str]) -> tuple[Folder, Folder]:
    """Read the plan and the records of two folders. Raises UserError with everything that is wrong with the names."""
    if problems := list(_problems(names)):
        raise UserError(problems)
    before, after = map(read_folder, names)
    return before, after


def read_folder(name: str) -> Folder:
    """Read the plan of a folder, and every record that belongs to it. Raises UserError without a plan."""
    results = Path(name)
    runs = RunRecords(results)
    plan = as_made(read_plan(results / "plan.json"), runs)
    found = believed_records(runs, plan.runs)
    return Folder(name, plan, found.records, (*found.warnings, *unplanned_records(results / "runs", plan.runs)))


def _problems(names: Sequence[str]) -> Iterator[Problem]:
    if len(names) != 2:
        found = ", ".join(names)
        yield Problem(WHERE, "two folders are compared", found=found, allowed="two", next=EXAMPLE)
        return
    paths = [Path(name).resolve() for name in names]
    twice = dict.fromkeys(name for name, path in zip(names, paths, strict=True) if paths.count(path) > 1)
    if twice:
        yield Problem(WHERE, "the same folder twice", found=", ".join(twice), next="name each folder once")
    for name in names:
        if not Path(name).is_dir():
            yield Problem(
                f"{WHERE}: {name}",
                "there is no such folder",
                found=f"relative to {Path.cwd()}" if not Path(name).is_absolute() else None,
                next="name a folder of results: one with plan.json and runs/ in it",
            )
        elif not (Path(name) / "plan.json").is_file():
            inside = sorted(path.parent.name for path in Path(name).glob("*/plan.json"))
            hint = f"; perhaps {Path(name) / inside[0]}" if inside else ""
            yield Problem(
                f"{WHERE}: {name}",
                "this is no folder of results: there is no plan.json in it",
                next=full_stop(f"name the folder with plan.json and runs/ in it{hint}"),
            )
