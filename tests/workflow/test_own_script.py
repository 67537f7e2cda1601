"""Bring your own script: what the README says, tried with a script from outside the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from project_copy import ANY_EFFICIENCY, LOOP, NO_TORCH, ROOT, Checkout

README = (ROOT / "README.md").read_text()


def readme_workload() -> str:
    """The three lines, as the README shows them."""
    block = re.search(r"^    workload:\n(?:      .*\n)+", README, re.MULTILINE)
    assert block is not None
    return block[0].replace("\n    ", "\n").strip()


def test_three_lines_bring_a_script_from_elsewhere(
    checkout: Checkout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = tmp_path_factory.mktemp("home of a user") / "train.py"
    options = (
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs', type=int)\n"
        "parser.add_argument('--batch-size', type=int)\n"
        "options = parser.parse_args()\n"
    )
    script.write_text(
        options + LOOP.replace("int(sys.argv[1])", "options.batch_size").replace("range(1)", "range(options.epochs)")
    )
    lines = readme_workload().replace("/home/me/train.py", str(script)).replace(": 64", ": 16")
    assert len(lines.splitlines()) == 1 + 3
    shipped = (ROOT / "config/config.yaml").read_text()
    begin, end = shipped.index("workload:\n"), shipped.index("measure:\n")
    config = checkout.path / "config/config.yaml"
    config.write_text(shipped[:begin] + lines + "\n\n" + shipped[end:])
    # A machine that is busy with tests scales as it may.
    stages = {
        name: {"gate": {"min_efficiency": 0.01, "max_efficiency": ANY_EFFICIENCY}} for name in ("stage2", "stage3")
    }
    climbed = checkout.snakemake(
        "stage2",
        "--cores",
        "all",
        "--config",
        "repeats=1",
        f"stages={yaml.safe_dump(stages, default_flow_style=True).strip()}",
        "measure={warmup_steps: 5, min_steps: 10, plain_baseline: false}",
        "preflight={enabled: false}",
    )
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage2: open" in climbed.stdout
    ranks = checkout.record("default/weak/1x2/r1")["ranks"]
    assert sum(rank["samples"] for rank in ranks) == 960


def test_the_commit_of_a_module_is_that_of_its_own_repository(checkout: Checkout, tmp_path: Path) -> None:
    """The checkout of the ladder is a repository itself, and is the directory that the training starts in."""
    package = tmp_path / "theirs/package"
    package.mkdir(parents=True)
    (package / "train.py").write_text(NO_TORCH)
    commits = [commit(checkout.path, "Snakefile"), commit(package.parent, ".")]
    checkout.configure(
        workload={
            "script": "-m package.train",
            "args": ["{batch_per_gpu}"],
            "batch_per_gpu": 16,
            "env": {"PYTHONPATH": str(package.parent)},
        }
    )
    checkout.site(launcher="srun")
    checkout.measure()
    fingerprint = checkout.record("default/weak/1x1/r1")["fingerprint"]
    assert (fingerprint["git_commit"], fingerprint["git_dirty"]) == (commits[1], False)


def commit(directory: Path, *names: str) -> str:
    """Make a repository of this directory, with one commit; its hash."""
    git = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(directory))
    for words in (["init", "-q"], ["add", *names], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?<![a-z])make (\w+)", README)) - {"python3"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_and_paths_of_the_readme_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    paths = re.findall(r"(?<![\w/])((?:config|profiles|workflow)/[\w/.-]+)", README)
    assert links
    assert paths
    for link in links + paths:
        path, _, anchor = link.partition("#")
        assert Path(ROOT, path).exists(), link
        assert not anchor or anchor in anchors(Path(ROOT, path or "README.md")), link


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
