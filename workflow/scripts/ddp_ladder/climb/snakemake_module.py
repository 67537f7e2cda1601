"""Support for a workflow that uses this one as a module: its prefix, and the handlers that Snakemake does not call."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

HANDLERS = ("onstart", "onsuccess", "onerror")


def directory_in_module(modifier: Any) -> Callable[[str], str]:
    """Return a function that applies the module's ``prefix`` or ``replace_prefix`` to a directory of the settings."""
    return lambda directory: os.path.dirname(modifier.modify_path(f"{directory}/file"))


def add_handlers(workflow: Any, names: Mapping[str, Any], rules: Sequence[Collection[Any]]) -> None:
    """Make a start that has jobs of the module call its handlers before those of the workflow that uses it.

    names: the module's globals, where Snakemake puts handlers that it does not call. rules: those of each `use rule`.
    """
    execute = workflow.execute

    def execute_with_handlers(*args: Any, **settings: Any) -> Any:
        for name in HANDLERS:
            setattr(workflow, f"_{name}", both(names[name], getattr(workflow, f"_{name}")))
        return execute(*args, **settings)

    def both(ours: Callable[..., None], theirs: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(log: Any) -> None:
            if any(job.rule in used for job in workflow.dag.jobs for used in rules):
                ours(log=log)
            theirs(log)

        return call

    workflow.execute = execute_with_handlers
