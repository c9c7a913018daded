"""Hugging Face's Trainer with its own loader: batches that take 20 ms, steps that take 30 ms, long evaluations."""

import time

import torch
import transformers

from headrace.adapters.transformers import MeterCallback, Trainer


class Slow:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        time.sleep(0.005)
        return {"x": torch.full((4,), float(index)), "labels": torch.tensor(0.0)}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        time.sleep(0.03 if self.training else 3)
        out = self.linear(x)[:, 0]
        return {"loss": (out - labels).square().mean(), "logits": out}


def arguments(epochs):
    return transformers.TrainingArguments(
        "out", num_train_epochs=epochs, per_device_train_batch_size=4, per_device_eval_batch_size=20, use_cpu=True,
        eval_strategy="steps", eval_steps=3, save_strategy="no", report_to=[], disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip


options = {"train_dataset": Slow(), "eval_dataset": Slow()}
transformers.Trainer(Net(), arguments(2), callbacks=[MeterCallback("trainer")], **options).train()

# headrace's own loader is measured once, by itself
Trainer(Net(), arguments(1), callbacks=[MeterCallback("twice")], **options).train()
