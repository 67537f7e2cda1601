"""One node's part of the preflight before any process group: what it has, and what it sees of the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddp_ladder.node.launch import Places
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.mesh import Meeting, meet
from ddp_ladder.preflight.node_facts import Marker, begin
from ddp_ladder.preflight.node_models import MeshFacts, NodeFacts


def examine(
    spec: RunSpec,
    places: Places,
    meeting: Meeting,
    timeout_s: float,
    marker: Marker | None = None,
    clock: Callable[[], float] = time.time,
) -> tuple[NodeFacts, MeshFacts | None]:
    """Return both within timeout_s and a second: the meeting goes on while the slow questions (torch) are open."""
    facts = begin(spec, places, meeting.node_rank, meeting.head, timeout_s, marker)
    mesh = meet(meeting, timeout_s, clock)
    return facts(), mesh
