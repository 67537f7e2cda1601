"""Checks of a workload's script, preparation, working directory and log pattern."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ddp_ladder.common import meant
from ddp_ladder.common.messages import Problem
from ddp_ladder.common.paths import places
from ddp_ladder.settings.checks.given import Given
from ddp_ladder.settings.strict_yaml import shown

_MODULE = re.compile(r"-m [A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_STARTERS = ("python", "torchrun", "srun", "mpirun", "accelerate")


def results_inside_data_dir(given: Given) -> Iterator[Problem]:
    """Refuse results inside the data directory."""
    if given.workload.data_dir is None:
        return
    results, data_dir = (
        PurePosixPath(given.experiment.results),
        PurePosixPath(given.workload.data_dir),
    )
    if results.is_relative_to(data_dir):
        yield Problem(
            where=given.config.where("results"),
            what="the results would lie in the data directory",
            found=f"results {results}, workload.data_dir {data_dir}",
            allowed="a directory outside workload.data_dir",
            next="choose another directory for results, such as results: results",
        )


def script_that_cannot_start(given: Given) -> Iterator[Problem]:
    """Refuse a script that is neither a file here nor a module."""
    script = given.workload.script
    where = given.config.where("workload", "script")
    if not script.startswith("-"):
        yield from _file_problems(script, where, "workload.args")
    elif not _MODULE.fullmatch(script):
        yield Problem(
            where=where,
            what="neither a file nor a module",
            found=shown(script),
            allowed='a file, or "-m package.module"',
            next="write -m, one space and the module's name; arguments go into workload.args",
        )


def preparation_that_cannot_start(given: Given) -> Iterator[Problem]:
    """Refuse a prepare script that is not a file, or prepare without data_dir."""
    if given.workload.prepare is None:
        return
    script = given.workload.prepare[0]
    where = given.config.where("workload", "prepare", 0)
    yield from _file_problems(script, where, "further items of workload.prepare")
    if given.workload.data_dir is None:
        yield Problem(
            where=given.config.where("workload", "prepare"),
            what="there is no directory for the prepared data",
            found="workload.data_dir: null",
            allowed="workload.prepare together with workload.data_dir",
            next="set workload.data_dir, such as data_dir: data/digits, or set prepare: null",
        )


def unusable_directory(given: Given) -> Iterator[Problem]:
    """Refuse a directory outside {run_dir}, or at the path of a file. Only the nodes show whether it can be made."""
    directory = given.workload.directory
    if directory is None:
        return
    where, parts = given.config.where("workload", "directory"), PurePosixPath(directory).parts
    if "{run_dir}" in directory and (parts[0] != "{run_dir}" or ".." in parts):
        yield Problem(
            where=where,
            what="a directory outside of the run's own",
            found=directory,
            allowed='"{run_dir}", or a directory below it: "{run_dir}/scratch"',
            next='set directory: "{run_dir}"',
        )
        return
    fixed = PurePosixPath(*itertools.takewhile(lambda part: "{" not in part, parts))
    files = [path for path in (Path(fixed), *Path(fixed).parents) if path.is_file()]
    if files:
        yield Problem(
            where=where,
            what="there is a file at the path of the directory",
            found=str(files[0]),
            allowed="a directory, which is made when it is missing, or null for where Snakemake was started",
            next='set directory: "{run_dir}" to give each run a directory of its own',
        )


def regex_without_one_group(given: Given) -> Iterator[Problem]:
    """Refuse a throughput_regex that does not compile, or has other than one group."""
    text = given.workload.throughput_regex
    if text is None:
        return
    try:
        groups: int | str = re.compile(text).groups
    except re.error as error:
        groups = str(error)
    if groups != 1:
        yield Problem(
            where=given.config.where("workload", "throughput_regex"),
            what="not a regular expression with one group",
            found=f"{shown(text)}: {groups if isinstance(groups, str) else f'{groups} groups'}",
            allowed="a Python regular expression whose one group is a number",
            next='put the number in parentheses, and others in (?:...): "throughput: ([0-9.]+) samples/s"',
        )


def _file_problems(file: str, where: str, arguments: str) -> Iterator[Problem]:
    if "{" in file or "}" in file:
        yield Problem(
            where=where,
            what="a brace in a script's name: Snakemake takes it for a wildcard",
            found=shown(file),
            allowed="a file name without braces",
            next="rename the file; placeholders are for the arguments",
        )
    elif not Path(file).is_file():
        head = file.split()[0] if file.split() else file
        has_arguments = head != file and Path(head).is_file()
        yield Problem(
            where=where,
            what="there is no such script" if not Path(file).exists() else "not a file",
            found=shown(file),
            allowed=f"a file, {places()}",
            next=f"keep {head} here; its arguments go into {arguments}"
            if has_arguments
            else f"leave out {head}: software.python and launcher in cluster.yaml say what starts the script"
            if Path(head).name.startswith(_STARTERS)
            else f"shell variables are not expanded here: {meant.path(file)}"
            if meant.has_variables(file)
            else "check the spelling and the directory; an absolute path works too",
        )
