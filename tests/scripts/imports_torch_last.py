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
        import transformers
        from accelerate import Accelerator

        assert transformers.is_torch_available()
    import torch
    from tally import Tally, think
    from torch.utils.data import DataLoader

    assert version.partition("+")[0] == torch.__version__.partition("+")[0]
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(64, 4), batch_size=4)
    backward = torch.Tensor.backward
    if first == "libraries":
        accelerator = Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        backward = accelerator.backward
    tally = Tally()
    tally.start()
    for x in loader:
        backward(model(x).mean())
        think()
        tally.seen(len(x))
        optimizer.step()
        optimizer.zero_grad()
        tally.step()
    tally.write()


if __name__ == "__main__":
    main(sys.argv[1])
