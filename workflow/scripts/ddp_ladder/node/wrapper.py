"""A wrapper (workload.wrapper) is tried on a Python that only says a word: it has to start it, and to pass on its
output and exit code, by which a failed rank is known."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from tempfile import TemporaryDirectory

from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT

from ddp_ladder.common.messages import Finding
from ddp_ladder.common.model import Model, Name, Several
from ddp_ladder.common.process import run_bounded
from ddp_ladder.node.launch import Places, python_command, training_environment, wrapper_argv
from ddp_ladder.node.software import container_binds
from ddp_ladder.plan.plan import RunSpec

WORD, CODE = "said-by-the-training's-Python", 41
PROGRAM = f"import sys; print({WORD!r}); sys.exit({CODE})"
CORRECT = (
    "correct workload.wrapper in config.yaml, or the variant's; if a module brings it, name that in software.modules"
)


class WrapperTrial(Model):
    """What a wrapper did on a node. Null: it did not start, or did not end in time."""

    program: Name
    error: str | None = None  # why it did not start, or how long it was awaited
    exit_code: int | None = None
    has_said: bool | None = None  # the word came through
    last_line: str = ""


def wrappers_of(runs: Iterable[RunSpec]) -> tuple[tuple[str, ...], ...]:
    """Return each wrapper of these runs once, with placeholders."""
    return tuple(dict.fromkeys(run.wrapper_template for run in runs if run.wrapper_template))


def try_wrapper(
    template: Several[str], spec: RunSpec, places: Places, env: Mapping[str, str], within_s: float
) -> WrapperTrial:
    """Try a wrapper as it would start a rank of this run. env: of the node's software; places.run has to be there."""
    spec = spec.replace(wrapper=template, wrapper_template=template)
    own = {name: value for name, value in training_environment(spec, places).items() if value != FROM_ENVIRONMENT}
    env = {**env, **own}
    *container, python = python_command(spec, places, container_binds(spec, places))
    with TemporaryDirectory(dir=places.run, ignore_cleanup_errors=True) as directory:
        program, *words = wrapper_argv(spec, places, directory)
        if not container:
            found = [shutil.which(name, path=env.get("PATH")) for name in (program, python)]
            if found[0] is None:
                return WrapperTrial(program=program, error="it is not in the PATH of the training")
            program, python = found[0], found[1] or python
        argv = [*container, program, *words, python, "-c", PROGRAM]
        try:
            code, said = run_bounded(argv, within_s, env)
        except OSError as error:
            return WrapperTrial(program=program, error=f"it does not start: {error.strerror}")
        except subprocess.TimeoutExpired:
            why = f"it did not end within {within_s:.0f} s around a Python that ends at once"
            return WrapperTrial(program=program, error=why)
    lines = [line.strip() for line in said.splitlines() if line.strip() and WORD not in line]
    return WrapperTrial(program=program, exit_code=code, has_said=WORD in said, last_line=" ".join(lines[-1:])[:300])


def findings(trial: WrapperTrial, place: str = "") -> Iterator[Finding]:
    """Yield what is wrong with a wrapper: an error if it cannot start the training."""
    is_error = trial.error is not None or (trial.exit_code != CODE and not trial.has_said)
    if is_error:
        said = f"; it said: {trial.last_line}" if trial.last_line else ""
        measured = trial.error or f"it does not start the training's Python: exit code {trial.exit_code}{said}"
        advice = CORRECT
    elif trial.exit_code != CODE:
        measured = f"it ends with {trial.exit_code} where its program ends with {CODE}"
        advice = (
            "look for its option that passes the exit code on: without, only a rank's own record shows that it failed"
        )
    elif not trial.has_said:
        measured = "it does not pass on what its program prints"
        advice = "look for its option that does: without, train.log lacks what the script prints, also why it failed"
    else:
        return
    yield Finding(
        severity="error" if is_error else "warning",
        place=place,
        measured=f"wrapper {trial.program}: {measured}",
        wanted="a program that starts its last words, and passes on their output and exit code, as env does",
        next=advice,
    )
