"""Bring your own script: what the README says, tried with a script from outside the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project_copy import LOOP, ROOT, Checkout

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
    checkout.site(launcher="srun")
    climbed = checkout.snakemake(
        "stage1",
        "--cores",
        "all",
        "--config",
        "repeats=1",
        "measure={warmup_steps: 5, min_steps: 10, plain_baseline: false}",
        "preflight={enabled: false}",
    )
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage1: open" in climbed.stdout
    (rank,) = checkout.record("default/weak/1x1/r1")["ranks"]
    assert rank["samples"] == 960


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
