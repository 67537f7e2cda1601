"""The files of the proposal."""

from __future__ import annotations

from ddp_ladder.report.document import as_markdown, as_tex
from ddp_ladder.report.prediction_section import PredictionSection
from ddp_ladder.report.proposal import Rules, proposal
from ddp_ladder.report.view import ReportView


def proposal_files(view: ReportView, prediction: PredictionSection, rules: Rules | None = None) -> dict[str, str]:
    """Return the texts of the proposal by file name."""
    document = proposal(view, prediction, rules)
    return {"proposal.md": as_markdown(document), "proposal.tex": as_tex(document)}
