"""Fixtures: a separate checkout for each test that runs Snakemake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from one_run import here  # noqa: F401 - a fixture
from project_copy import Checkout, copy_project


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return the project with the small experiment."""
    project = copy_project(tmp_path)
    project.configure()
    return project


@pytest.fixture(scope="module")
def module_checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Checkout]:
    """Make a checkout that the tests of a module share."""
    return lambda: copy_project(tmp_path_factory.mktemp("project"))
