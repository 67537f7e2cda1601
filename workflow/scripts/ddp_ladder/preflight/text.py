"""A preflight's result for the terminal: one line, or a table with its findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.common.formats import DASH, duration, milliseconds, significant
from ddp_ladder.preflight.finding import PreflightFinding
from ddp_ladder.preflight.result import PreflightResult


def outcome(result: PreflightResult) -> str:
    """Return ``preflight passed in 9 s: at most 21.3 GB/s bus bandwidth, latency 31 us, NET/IB``."""
    words = {"ok": "passed", "warned": "passed with warnings", "failed": "FAILED"}[result.status]
    figures = ", ".join(_figures(result))
    return f"preflight {words} in {duration(result.took_s)}" + (f": {figures}" if figures else "")


def _figures(result: PreflightResult) -> Iterator[str]:
    if result.busbw_gb_per_s is not None:
        yield f"at most {bandwidth(result)} bus bandwidth"
    if result.alpha_s is not None:
        yield f"latency {latency(result)}"
    if result.transport:
        yield ", ".join(result.transport)


def bandwidth(result: PreflightResult) -> str:
    """Return the best bus bandwidth; a dash if none was measured."""
    return DASH if result.busbw_gb_per_s is None else f"{significant(result.busbw_gb_per_s)} GB/s"


def latency(result: PreflightResult) -> str:
    """Return the latency of an all-reduce; a dash if none was measured."""
    return DASH if result.alpha_s is None else f"{significant(result.alpha_s * 1e6)} us"


def finding_lines(findings: Sequence[PreflightFinding]) -> list[str]:
    """Return each finding in three lines."""
    lines = []
    for finding in findings:
        lines += [
            f"{finding.level.upper()}  {finding.in_words}",
            f"      wanted  {finding.wanted}",
            f"      next    {finding.next}",
        ]
    return lines


def finding_line(one: PreflightFinding) -> str:
    """Return a finding as one line."""
    return f"{one.level.upper()} {one.in_words}; wanted {one.wanted}; next: {one.next}"


def long_text(result: PreflightResult) -> str:
    """Return the line, the tables of nodes, sizes and pairs of nodes, and the findings."""
    lines = [f"{result.scale}: {outcome(result)}", "", *_table(_nodes(result))]
    if result.sizes:
        lines += ["", *_table(_sizes(result))]
    if result.pairs:
        lines += ["", *_table(_pairs(result))]
    if result.findings:
        lines += ["", *finding_lines(result.findings)]
    return "\n".join(lines)


Rows = list[tuple[str, ...]]


def _nodes(result: PreflightResult) -> Rows:
    rows: Rows = [("node", "GPUs", "interface", "address", "MTU", "CPUs")]
    for node in result.nodes:
        gpus = f"{len(node.gpus)} x {node.gpus[0]}" if node.gpus else "-"
        plain = (node.interface, node.address, node.mtu, node.cpus)
        rows.append((node.node, gpus, *("-" if value is None else str(value) for value in plain)))
    return rows


def _sizes(result: PreflightResult) -> Rows:
    rows: Rows = [("all-reduce", "time", "algbw GB/s", "busbw GB/s")]
    for row in result.sizes:
        figures = (f"{milliseconds(row.time_s)} ms", significant(row.algbw_gb_per_s), significant(row.busbw_gb_per_s))
        rows.append((size_text(row.bytes), *figures))
    return rows


def _pairs(result: PreflightResult) -> Rows:
    rows: Rows = [("nodes", "all-reduce", "busbw GB/s")]
    rows += [(" and ".join(row.nodes), size_text(row.bytes), significant(row.busbw_gb_per_s)) for row in result.pairs]
    return rows


def size_text(size: int) -> str:
    """Return ``4 KiB``, ``256 MiB``."""
    return f"{size // 1024**2} MiB" if size >= 1024**2 else f"{size // 1024} KiB"


def _table(rows: Rows) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
