"""Links from the page to the files beside it: relative, and only to files that exist."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ddp_ladder.records.record import Record

Link = tuple[str, str]  # address, words
OF_A_RUN = (("train.log", "log"), ("record.json", "record"), ("job.sh", "job"))


@dataclass(frozen=True)
class Links:
    """Links from results/report/index.html. written: the files of the report itself, below results/report."""

    results: Path
    written: Collection[str]

    def of_plot(self, name: str) -> list[str]:
        """Return the addresses of a plot's files."""
        return [file for file in self.written if file.rpartition(".")[0] == name]

    def of_run(self, run: Record) -> list[Link]:
        """Return the links to a run's log, record and job script."""
        return [*self._existing((f"runs/{run.spec.name}/{file}", words) for file, words in OF_A_RUN)]

    @property
    def groups(self) -> list[tuple[str, list[Link]]]:
        """Return the links of the section "Files", by what they are."""
        tables = [(file, file) for file in self.written if file.endswith((".csv", ".md", ".tex"))]
        pictures = [(file, file) for file in self.written if file.endswith((".svg", ".png", ".tikz"))]
        found = [
            ("Tables", [*tables, *self._existing([("accounting.csv", "accounting.csv")])]),
            ("Plots", [link for link in pictures if "/" not in link[0]]),
            ("Traces of rank 0, with those of other ranks beside them, for ui.perfetto.dev", [*self._traces()]),
            ("Plan and gates", [*self._existing([("plan.json", "plan.json")]), *self._gates()]),
        ]
        return [(words, links) for words, links in found if links]

    def _traces(self) -> Iterator[Link]:
        runs = self.results / "runs"
        for path in sorted(runs.glob("*/*/*/r*/ranks/rank0.trace.json.gz")):
            yield f"../{quote(str(path.relative_to(self.results)))}", str(path.parent.parent.relative_to(runs))

    def _gates(self) -> Iterator[Link]:
        gates = sorted(path.name for path in (self.results / "gates").glob("*.json"))
        return self._existing((f"gates/{name}", name) for name in gates)

    def _existing(self, files: Collection[Link] | Iterator[Link]) -> Iterator[Link]:
        for file, words in files:
            if (self.results / file).is_file():
                yield f"../{quote(file)}", words


def contents(details: str) -> list[Link]:
    """Return id and heading of each section of the page, in order."""
    return re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', details)
