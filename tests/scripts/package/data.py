import torch

SAMPLES = torch.randn(120, 4)
