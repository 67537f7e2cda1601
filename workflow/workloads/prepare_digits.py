"""Write scikit-learn's bundled handwritten digits as tensors, once, for mnist.py.

    python workflow/workloads/prepare_digits.py data/digits

1,797 real scans of 8 x 8 pixels (UCI optical recognition of handwritten digits), one fifth of each class held out.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from common.files import save


def main() -> None:
    """Write <directory>/digits.pt: images (n x 1 x 8 x 8, 0..1) and labels (n) of both splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory for digits.pt")
    directory = parser.parse_args().directory

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    splits = {
        "train_images": images[train],
        "train_labels": labels[train],
        "test_images": images[test],
        "test_labels": labels[test],
    }
    save(splits, directory / "digits.pt")
    print(f"wrote {directory / 'digits.pt'}: {len(train)} images to train on, {len(test)} held out")


if __name__ == "__main__":
    main()
