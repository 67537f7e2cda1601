"""Hugging Face's Trainer on a custom model: accumulation and evaluation every few steps."""

import sys

import torch
from tally import Tally, think
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Data(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        return {"x": torch.full((4,), index / 160), "labels": torch.tensor([1.0])}


class Model(torch.nn.Module):
    def __init__(self, tally):
        super().__init__()
        self.layer, self._tally = torch.nn.Linear(4, 1), tally

    def forward(self, x, labels):
        think(0.005)
        if self.training:
            self._tally.seen(len(x))
        y = self.layer(x)
        return {"loss": (y - labels).square().mean(), "logits": y}


class Watch(TrainerCallback):
    """Callback that counts the Trainer's steps in the tally."""

    def __init__(self, tally):
        self._tally = tally

    def on_epoch_begin(self, *args, **kwargs):
        self._tally.start()

    def on_optimizer_step(self, *args, **kwargs):
        self._tally.step()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % args.eval_steps == 0:
            self._tally.stop()

    def on_evaluate(self, *args, **kwargs):
        self._tally.start()

    def on_epoch_end(self, *args, **kwargs):
        self._tally.leave_epoch()


def main(accumulate):
    tally = Tally()
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
    )
    trainer = Trainer(Model(tally), arguments, train_dataset=Data(), eval_dataset=Data(), callbacks=[Watch(tally)])
    trainer.train()
    tally.write()


if __name__ == "__main__":
    main(int(sys.argv[1]))
