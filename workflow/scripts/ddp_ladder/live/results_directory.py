"""The results directory of this checkout, as its experiment names it."""

from __future__ import annotations

from pathlib import Path

import yaml

from ddp_ladder.common.paths import located
from ddp_ladder.settings.sources import CONFIG

DEFAULT = Path("results")


def results_directory() -> Path:
    """Return ``results`` of config/config.yaml; ``results`` if that cannot be read now: it may be being edited."""
    try:
        found = yaml.safe_load(Path(located(CONFIG)).read_text())["results"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return DEFAULT
    return Path(found) if isinstance(found, str) and found else DEFAULT
