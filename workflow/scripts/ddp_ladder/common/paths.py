"""Directories of this checkout, and the search path for files that the user names."""

from __future__ import annotations

from pathlib import Path

WORKFLOW = Path(__file__).parents[3]
OWN = WORKFLOW.parent  # the checkout, or its copy if Snakemake reads the module from a repository
SCRIPTS = WORKFLOW / "scripts"
SCHEMAS = WORKFLOW / "schemas"
TEMPLATES = WORKFLOW / "templates"  # shell: job.sh and climb.sh, and what sets up a node
REPORT = WORKFLOW / "report"
CENTRES = WORKFLOW / "centres"  # the rules of computing centres for a scaling report


def located(file: str | Path) -> str:
    """Return the path of a file: in the working directory, or in ddp-ladder's own if it exists only there."""
    own = OWN / file
    return str(own) if own.is_file() and not Path(file).exists() else str(file)


def profile(name: str) -> str:
    """Return the directory of a shipped Snakemake profile, for --profile."""
    return str(Path(located(f"profiles/{name}/config.yaml")).parent)


def places() -> str:
    """Return, for messages, the directories that a relative path is searched in."""
    here = Path.cwd()
    return f"relative to {here}" if here.samefile(OWN) else f"relative to {here} or else to {OWN}"
