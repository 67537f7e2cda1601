"""ddp-ladder: climb a PyTorch DDP training from one GPU to many nodes, one proven stage at a time."""

__version__ = "0.1.0"
