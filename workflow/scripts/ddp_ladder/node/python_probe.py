"""Print what a Python is and has, as JSON on the last line. Runs under the site's Python (3.9 or newer) with ``-c``.

Argument: the name of the device to train on.
"""

import json
import sys

LONGEST_ERROR = 300  # characters; a message may begin with an empty line


def main(device: str) -> None:
    """Print version and path of this Python, and torch's versions or why it is missing."""
    report: dict[str, object] = {"python": list(sys.version_info[:3]), "executable": sys.executable}
    try:
        import torch

        rocm = torch.version.hip and f"ROCm {torch.version.hip}"
        report.update(torch=torch.__version__, built_for=getattr(torch.version, device, None) or rocm)
    except Exception as error:
        report["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_ERROR]
    print("\n" + json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
