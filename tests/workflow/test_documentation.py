"""The pages: their groups and size, their first and last words, and that every command in them is one that works.

`snakemake` lines are run as they are, with --dry-run; of other commands, targets, variables, options and files exist.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from project_copy import ROOT, Checkout, environment

OWN = {file.name: file.read_text() for file in sorted((ROOT / "docs").glob("*.md"))}
MADE: dict[str, str] = runpy.run_path(str(ROOT / ".ci/pages.py"))["pages"]()
README = (ROOT / "README.md").read_text()
TEXTS = (README, *OWN.values(), *MADE.values(), (ROOT / "config/README.md").read_text())
GROUPS = ["Start", "Climb", "Train", "Reference"]
# What a newcomer looks for: one hop from the README.
HOPS = ["my-script.md", "my-site.md", "closed-gate.md", "proposal.md", "production.md"]
PROGRAMS = "snakemake|make|python|git|cp|sbatch|salloc|srun|enroot|sudo|source"
# A line of a block of code, or code inside a sentence.
COMMAND = re.compile(rf"(?m)^    ((?:{PROGRAMS}) .*)$|`((?:snakemake|make|python) [^`]*)`")
# What only other programs can judge: the test that runs it, and a word of it there.
ELSEWHERE = {
    "git clone": ("tests/workflow/test_snakemake_citizen.py", "github"),
    "sbatch results/production/production.sh": ("tests/slurm/test_production.py", "sbatch .*production"),
    "sbatch results/climb.sh": ("tests/slurm/test_eject_on_slurm.py", "sbatch"),
    "salloc": ("tests/slurm/test_inside_allocation.py", "salloc"),
    "snakemake --report": ("tests/workflow/test_snakemake_citizen.py", '"--report"'),
    "snakemake production": ("tests/workflow/test_resuming_scripts.py", '"production", "--profile"'),
    "snakemake ladder_": ("tests/workflow/test_snakemake_citizen.py", "ladder_*"),
}
OF_OTHERS = ("enroot import",)  # not installed here
# In one process, as most of the time goes into imports: each line is a directory and the arguments.
DRY_RUNS = """
import os, sys
from snakemake.cli import main
sys.path.insert(0, "workflow/scripts")
import ddp_ladder.climb.ladder, ddp_ladder.climb.start, ddp_ladder.plan.text, ddp_ladder.settings.load
for line in sys.stdin.read().splitlines():
    directory, *arguments = line.split("\\0")
    if os.fork() == 0:
        os.chdir(directory)
        sys.argv = ["snakemake", *arguments]
        output = os.open("output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        main([*arguments, "--dry-run"])
    if os.wait()[1]:
        print(*arguments, open(f"{directory}/output").read())
"""


def commands() -> set[str]:
    """Return every command of the pages, without its comment."""
    found = [block or inline for text in TEXTS for block, inline in COMMAND.findall(text)]
    parts = {part.strip() for line in found for part in line.partition("  #")[0].split(" && ")}
    return parts - {"cd ddp-ladder", "source .venv/bin/activate"}


def of(program: str) -> list[str]:
    """Return the commands of a program."""
    others = tuple(ELSEWHERE)
    lines = sorted(line for line in commands() if line.startswith(f"{program} ") and not line.startswith(others))
    assert lines
    return lines


def test_the_groups_hold_each_page_once_and_the_readme_leads_to_each_task() -> None:
    groups = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert [title for group in groups for title in group] == GROUPS
    files = [file for group in groups for pages in group.values() for page in pages for file in page.values()]
    assert sorted(files) == sorted({*OWN, *MADE})
    assert [name for name in HOPS if f"](docs/{name}" not in README] == []


def test_each_page_is_short_begins_with_its_task_and_ends_with_what_comes_next() -> None:
    words = {name: len(text.split()) for name, text in OWN.items()}
    assert {name: count for name, count in words.items() if not 300 <= count <= 900} == {}
    assert len(README.split()) <= 900
    assert sum(words.values()) + len(README.split()) <= 18_000
    versions = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert [text for text in versions if len(text.split()) > 500] == []
    for name, text in OWN.items():
        first = text.split("\n\n")[1]
        assert re.match(r"# .+\n\n", text), name
        assert re.search(r"\b[Yy]ou(r|rs)?\b", first), name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE)[-1] == "What comes next", name
        assert {len(line) for line in re.findall(r"(?m)^    ([+|].*[+|])$", text)} <= {78}, name  # boxes


def test_code_and_settings_name_only_pages_that_exist() -> None:
    kinds = {".py", ".smk", ".yaml", ".toml", ".j2", ".txt", ".sh", ".md"}
    files = [file for place in ("workflow", "config", "profiles", ".ci") for file in (ROOT / place).rglob("*")]
    files += [*ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.py"), ROOT / "Makefile", ROOT / "mkdocs.yml"]
    named = [
        (path, file.name)
        for file in files
        if file.suffix in kinds or file.name == "Makefile"
        for path in re.findall(r"(?<![\w/.-])((?:docs|config|benchmarks)/[\w/-]+\.md)", file.read_text())
    ]
    assert len(named) > 20
    assert [each for each in named if not (ROOT / each[0]).exists()] == []


def test_pages_name_only_keys_that_exist() -> None:
    """A key with a dot, such as `measure.max_steps`, is one of a settings file."""
    keys = "".join(MADE[name] for name in ("keys-config.md", "keys-cluster.md"))
    sections = {section.partition(".")[0] for section in re.findall(r"^## (\S+)$", keys, re.MULTILINE)}
    known = {key.replace("&lt;", "<") for key in re.findall(r"^(?:\| `|## )([\w.<>&;]+)", keys, re.MULTILINE)}
    for text in TEXTS:
        for key in re.findall(r"`([a-z]+(?:\.[a-z0-9_<>]+)+)`", text):
            if key.partition(".")[0] in sections:
                general = re.sub(r"^variants\.\w+", "variants.<name>", key.replace("<stage>", "stage2"))
                assert general in known, key


def test_snakemake_takes_every_line(module_checkout: Callable[[], Checkout]) -> None:
    laptop, cluster = module_checkout().path, module_checkout().path
    shutil.copy(cluster / "config/sites/vega.yaml", cluster / "config/cluster.yaml")
    config = (cluster / "config/config.yaml").read_text()
    (cluster / "config/config.yaml").write_text(config.replace("batch_per_gpu: 64", "batch_per_gpu: auto"))
    (laptop / "mine.yaml").write_text(config)
    lines = [
        [str(cluster if "profiles/slurm" in line else laptop), *shlex.split(line)[1:]]
        for line in (line.replace("/path/to/ddp-ladder", str(laptop)) for line in of("snakemake"))
    ]
    assert len(lines) > 20
    argv, text = [sys.executable, "-c", DRY_RUNS], "\n".join("\0".join(words) for words in lines)
    done = subprocess.run(argv, cwd=ROOT, input=text, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_make_has_every_target_and_variable() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z]+):", makefile, re.MULTILINE)
    variables = re.findall(r"^([A-Z_]+) [?:]=", makefile, re.MULTILINE)
    for line in of("make"):
        for word in line.split()[1:]:
            name, is_variable, _ = word.partition("=")
            assert name in (variables if is_variable else targets), line


@pytest.mark.parametrize("line", of("python"))
def test_every_program_exists_with_its_options(line: str) -> None:
    _, program, *arguments = shlex.split(line)
    assert Path(ROOT, program).exists()
    if program.startswith("workflow/scripts/"):
        done = subprocess.run([sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert {word for word in arguments if word.startswith("--")} <= {*re.findall(r"--[\w-]+", done.stdout)}


def test_other_commands_name_files_that_exist_or_are_run_by_another_test() -> None:
    for line in commands():
        known = [ELSEWHERE[start] for start in ELSEWHERE if line.startswith(start)]
        if not known and line.startswith(("snakemake ", "make ", "python ", *OF_OTHERS)):
            continue
        paths = re.findall(r"(?:config|workflow|benchmarks)/[\w/.-]+", line)
        assert paths or known or "make setup" in line or " ... " in line, line
        for path in paths:
            assert Path(ROOT, path).exists() or path == "config/cluster.yaml", line
        for file, word in known:
            assert word in (ROOT / file).read_text(), line
