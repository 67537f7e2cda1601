"""Write the rules for secrets of the scanner gitleaks as data of the instrument (secret_rules.json).

    python benchmarks/secret_rules.py gitleaks    # its repository, as `git clone` makes it

Go's regular expressions are written as Python's. Left out are rules for whole files of one kind, and GENERIC.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

RULES = Path(__file__).parents[1] / "workflow/scripts/ddp_ladder_instrument/secret_rules.json"
ANY_BEFORE = r"[\w.-]{0,50}?"  # at the begin of a rule: it finds nothing more, and takes most of the time
END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""  # of a secret in source code; in a log a comma or a bracket may follow it
GENERIC = "generic-api-key"  # takes names of parameters for secrets: ``key: layer1.0.conv.weight``
TOKENS = re.compile(r"\\.|\[(?:\\.|\[:\w+:\]|[^\]\\])+\]|\(\?i\)|[()]|.", re.DOTALL)


def in_python(regex: str) -> str:
    """Return a regular expression of Go: ``(?i)`` inside one holds until the end of its group."""
    for begin in (f"(?i){ANY_BEFORE}", ANY_BEFORE):
        regex = begin.removesuffix(ANY_BEFORE) * regex.startswith(begin) + regex.removeprefix(begin)
    regex = regex.replace(END, r"(?![\w-])")
    text, opened = "", [0]  # how many groups each open one has begun for (?i)
    for token in TOKENS.findall(regex.replace("[:alnum:]", "A-Za-z0-9").replace(r"\z", r"\Z")):
        if token == "(?i)":
            text, opened[-1] = f"{text}(?i:", opened[-1] + 1
        elif token == ")":
            text += ")" * (opened.pop() + 1)
        else:
            text += token
            opened += [0] * (token == "(")
    text += ")" * opened[0]
    re.compile(text)
    return text


def rule_of(rule: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a rule."""
    return {
        "id": rule["id"],
        "regex": in_python(rule["regex"]),
        "keywords": rule["keywords"],
        "entropy": rule.get("entropy", 0),
    }


def main(repository: Path) -> None:
    """Write the file."""
    commit = subprocess.check_output(["git", "-C", repository, "rev-parse", "HEAD"], text=True).strip()

    def file(name: str) -> str:
        return subprocess.check_output(["git", "-C", repository, "show", f"{commit}:{name}"], text=True)

    rules = [
        rule
        for rule in tomllib.loads(file("config/gitleaks.toml"))["rules"]
        if "path" not in rule and rule["id"] != GENERIC
    ]
    about = {"source": f"https://github.com/gitleaks/gitleaks, config/gitleaks.toml at {commit}"}
    data = {**about, "licence": file("LICENSE").splitlines(), "rules": [rule_of(rule) for rule in rules]}
    text = json.dumps({**data, "rules": []}, indent=1).removesuffix("[]\n}")
    lines = ",\n".join(f"  {json.dumps(rule)}" for rule in data["rules"])
    RULES.write_text(f"{text}[\n{lines}\n ]\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
