"""What a test needs of the machine."""

from __future__ import annotations

import os

import pytest


def need(is_here: object, missing: str) -> None:
    """Skip the test if what it needs is not here; in CI, where everything has to be, it fails."""
    if not is_here:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
