"""Limits of this process, which those that it starts inherit."""

from __future__ import annotations

import resource
from contextlib import suppress

# Enough for many peers and loader workers. Not more: some programs close each descriptor up to the limit, and a hard
# limit may be a thousand million.
MOST_OPEN_FILES = 65536


def raise_open_files() -> None:
    """Raise the soft limit of open files (``ulimit -n``) to the hard one, at most to MOST_OPEN_FILES.

    The agent does it for its ranks: `ulimit` in software.setup has no effect, as only that shell's variables are kept.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system with a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
