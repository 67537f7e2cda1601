"""The computing centres whose rules for a scaling report are known: a file for each in workflow/centres."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.paths import CENTRES

CENTRE = "centre"  # key of ``snakemake --config``


def centre_file(name: str) -> Path:
    """Return the file of a centre's rules. Raises UserError for an unknown name."""
    files = {file.stem: file for file in sorted(CENTRES.glob("*.toml"))}
    if name not in files:
        raise UserError(
            Problem(
                f"--config {CENTRE}",
                "no rules of such a centre",
                found=name,
                allowed=", ".join(files),
                next="name one of these, or add a file with the rules of yours to workflow/centres (docs/proposal.md)",
            )
        )
    return files[name]
