"""Print whether this Python finds a module, on the last line. Runs under the site's Python (3.9 or newer) with ``-c``.

Arguments: the module, as for ``python -m``; the working directory of the training.
"""

import importlib.util
import sys


def is_missing(module: str) -> bool:
    """Return True if there is no such module; False if there is, or if a package around it cannot be imported here."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:  # also of another module, which a package around this one imports
        return error.name is not None and (module + ".").startswith(error.name + ".")
    except Exception:
        return False
    is_package = found is not None and found.submodule_search_locations is not None
    return found is None or (is_package and is_missing(f"{module}.__main__"))


if __name__ == "__main__":
    if sys.path[0] == "":  # else PYTHONSAFEPATH keeps the working directory out
        sys.path[0] = sys.argv[2]
    print("\nmissing" if is_missing(sys.argv[1]) else "\nfound")
