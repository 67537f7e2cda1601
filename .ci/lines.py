"""Print the lines of code of each package of workflow/: without blank lines, comments and docstrings."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from pathlib import Path

WORKFLOW = Path(__file__).parents[1] / "workflow"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    """Return the number of a module's lines of code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    documented = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    words = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    return len(lines - {line for text in words for line in range(text.lineno, (text.end_lineno or 0) + 1)})


def main() -> None:
    """Print a line for each package, and their sum."""
    packages: dict[str, list[int]] = defaultdict(list)
    for file in sorted(WORKFLOW.rglob("*.py")):
        parts = file.relative_to(WORKFLOW).parts[:-1][:3]
        packages["/".join(parts)].append(code_lines(file.read_text()))
    packages["workflow"] = [lines for modules in packages.values() for lines in modules]
    for name, modules in packages.items():
        print(f"{name:32} {sum(modules):7,} lines of code in {len(modules):3} modules")


if __name__ == "__main__":
    main()
