"""The reader of plan.json: the inverse of ``Plan.to_json``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from pydantic import ValidationError

from ddp_ladder.common.files import read_json
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.common.model import first_error
from ddp_ladder.plan.plan import PLAN, Plan


def read_plan(path: Path) -> Plan:
    """Read plan.json. Raises UserError, with the next step, if it is missing or invalid."""
    what = "this is no plan of this version of ddp-ladder"
    try:
        return PLAN.validate_python(read_json(path))
    except FileNotFoundError:
        advice = "run `snakemake --cores all` first, or name the results with --results"
        raise UserError(Problem(str(path), "there is no plan here", next=advice)) from None
    except ValidationError as error:
        found = first_error(error)
    except (OSError, ValueError) as error:
        found = str(error)
    rewrite = f"run `snakemake --cores 1 {quote(str(path))}`: the plan is written again from config/"
    raise UserError(Problem(str(path), what, found, next=f"use the version that wrote it; or {rewrite}"))
