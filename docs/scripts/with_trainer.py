"""Go on with the Hugging Face Trainer, which skips the batches of an epoch that it has trained on.

torchrun --nproc-per-node=2 with_trainer.py DIRECTORY EPOCHS
"""

import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments


class SaveAtSignal(TrainerCallback):
    def __init__(self):
        self.warned = self.saved = False
        signal.signal(signal.SIGUSR1, self.warn)

    def warn(self, *_):
        self.warned = True

    def on_step_end(self, args, state, control, **kwargs):
        flag = torch.tensor(int(self.warned), device=args.device)
        dist.all_reduce(flag)
        if flag.item():
            self.saved = control.should_save = control.should_training_stop = True


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, inputs, labels):
        outputs = self.layer(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


directory, epochs = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
data = [{"inputs": torch.randn(16), "labels": torch.randn(1)} for _ in range(1024)]
arguments = TrainingArguments(
    output_dir=str(directory),
    num_train_epochs=epochs,
    per_device_train_batch_size=8,
    save_strategy="epoch",
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
)
callback = SaveAtSignal()
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[callback])
# trainer_state.json is written last: a directory without it is of a save that was cut
whole = [file.parent for file in directory.glob("checkpoint-*/trainer_state.json")]
last = max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)
trainer.train(resume_from_checkpoint=str(last) if last else None)
sys.exit(75 if callback.saved else 0)
