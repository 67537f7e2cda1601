"""Write the report of a ladder from the records so far, and print a summary; with --summary, only print it.

Example, after a ladder or while one is climbing:

    python workflow/scripts/report.py --results results

It reads plan.json and, below runs/, the records and the raw files that they are of, all in the results
directory, and judges again the gates that have been judged. It writes report/ there: index.html (open it
in a browser), scaling.md, scaling.csv, runs.csv, proposal.md (the scalability section of an application), and the
plots as SVG and PNG; and accounting.csv beside report/.
"""

from __future__ import annotations

import gc
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ddp_ladder.common.requirements  # noqa: F401
from ddp_ladder.analysis.decisions import Work
from ddp_ladder.assembly.run_records import FullyCheckedRecords, RunRecords, write_tables
from ddp_ladder.common.command import command, option
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import for_terminal
from ddp_ladder.ledger.jobs import read_rows, update_or_warn
from ddp_ladder.plan.plan import Plan, Units, read_plan
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.report.terminal import summary_text
from ddp_ladder.report.view import LadderResults, read_results


def show_archive(file: Path, centre: str | None) -> int:
    """Write the report of an archive beside it, with nothing of this place."""
    from ddp_ladder.archive.archive import read_archive, shown_directory

    _, ladder = read_archive(file, shown_directory(file))
    more = write(ladder, centre)
    print("\n".join([summary_text(ladder), *more]))
    return 0


def tell(line: str) -> None:
    """Print what is done next: a large ladder takes a minute."""
    print(line, flush=True)


def checked_line(ladder: LadderResults) -> str:
    """Return how many records were compared with their raw files."""
    made = sum(record.job is not None for record in ladder.records.values())
    return f"checked  {count(made, 'run')}: the raw files were read, and the records are of them"


def tables_line(results: Path, plan: Plan, name: str) -> str:
    """Write the tables of the runs of a scale, or with this part in their names; return the line on them."""
    named = [spec.name for spec in plan.runs if f"/{name}/" in f"/{spec.name}/"]
    made = [directory for run in named if (directory := RunDirectory(results / "runs" / run)).ended.exists()]
    if not made:
        scales = ", ".join(dict.fromkeys(str(spec.scale) for spec in plan.runs))
        wanted = f"a scale ({scales}), or parts of a run's name, such as {plan.runs[0].name}"
        return f"tables   none: no run of {name} has ended; report.tables takes {wanted}"
    for directory in made:
        with suppress(ValueError):  # damaged, or of another version: the page says so
            write_tables(read_raw_run(directory))
    return f"tables   {count(len(made), 'run')}: ranks/rank<k>.csv and nodes/node<k>.csv, as in {made[0].path}"


def write(ladder: LadderResults, name: str | None) -> list[str]:
    """Write the report; return the line on the rules of a centre, if one is named."""
    # Imported here: a summary draws nothing.
    from ddp_ladder.report.centre import read_centre, summary
    from ddp_ladder.report.page import write_report

    centre = read_centre(name) if name else None
    written = write_report(ladder, centre=centre, say=tell)
    if centre is None:
        return []
    made = [file for file in written.files if file.stem == "proposal"]
    line = for_terminal(f"centre   {summary(centre.name, written.rules)}: see the page", sys.stdout)
    return [line, *(f"written  {file}" for file in made)]


def add_length(parser: ArgumentParser) -> None:
    """Add the options that say how long a training is."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=float, help="show what a training of so many epochs costs")
    length.add_argument("--samples", type=float, help="the same of so many samples")
    length.add_argument("--steps", type=int, help="the same of so many steps")
    length.add_argument("--tokens", type=float, help="the same of so many tokens")


UNITS = "tokens of a sample, hours and carbon of the centre as in plan.json, which they replace"


@command(
    "",
    option("--results", type=Path, help="the ladder's directory (default: that of the plan, or results)"),
    option("--plan", type=Path, help="default: plan.json in the results"),
    option("--archive", type=Path, metavar="FILE", help="show this file of `snakemake archive` instead"),
    option("--summary", action="store_true", help="write no report"),
    option("--warning", default="", help="a warning for the top of the report"),
    option("--log", default="", help="Snakemake's log, to be named"),
    add_length,
    option("--runs", type=int, help="trainings that the project needs"),
    option("--reserve", type=float, default=Work.reserve, help="on their hours, a fraction (default 0.1)"),
    option("--tables", metavar="NAME", help="write CSV files of the ranks and nodes of a scale, or of a run"),
    option("--units", type=Units.model_validate_json, metavar="JSON", help=UNITS),
    option("--centre", metavar="NAME", help="the form and the rules of a centre (workflow/centres)"),
)
def main(arguments: Namespace) -> int:
    """Write the report and print the summary."""
    if arguments.archive:
        return show_archive(arguments.archive, arguments.centre)
    results: Path = arguments.results or (arguments.plan.parent if arguments.plan else Path("results"))
    plan = read_plan(arguments.plan or results / "plan.json")
    plan = plan if arguments.units is None else replace(plan, units=arguments.units)
    rows, warnings = (read_rows(results), ()) if arguments.summary else update_or_warn(results)
    runs = RunRecords(results) if arguments.summary else FullyCheckedRecords(results)
    if not arguments.summary:
        tell(f"reading  {count(len(plan.runs), 'run')}: records and raw files")
    ladder = read_results(results, plan, arguments.warning, runs)
    asked = {name: getattr(arguments, name) for name in ("epochs", "samples", "steps", "tokens", "runs", "reserve")}
    work = replace(ladder.work, **asked)
    ladder = replace(ladder, warnings=(*ladder.warnings, *warnings), jobs=rows, work=work)
    more = [] if arguments.summary else [checked_line(ladder), *write(ladder, arguments.centre)]
    if arguments.tables and not arguments.summary:
        more.append(tables_line(results, ladder.plan, arguments.tables))
    print("\n".join([summary_text(ladder, arguments.log), *more]))
    return 0


if __name__ == "__main__":
    # The collector would look at millions of objects that stay, again and again and at the end, for few cycles.
    gc.disable()
    status = main(None)
    gc.freeze()
    sys.exit(status)
