"""Libraries that check whether torch is installed, imported before torch because imports are sorted."""

import sys


def probe():
    """Check for torch as datasets and evaluate do on import."""
    import importlib.metadata
    import importlib.util

    found = importlib.util.find_spec("torch") is not None
    return found and importlib.metadata.version("torch")


def main(first):
    version = probe()
    if first == "libraries":
        import accelerate  # noqa: F401
        import transformers

        assert transformers.is_torch_available()
    import torch
    from loop import train
    from torch.utils.data import DataLoader

    assert version.partition("+")[0] == torch.__version__.partition("+")[0]
    train([DataLoader(torch.randn(64, 4), batch_size=4)])


if __name__ == "__main__":
    main(sys.argv[1])
