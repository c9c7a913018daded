"""Lightning with a loader of torch: batches that take 20 ms, steps that take 30 ms, a validation that takes long."""

import time

import lightning
import torch
from torch.utils.data import DataLoader

from headrace import feed
from headrace.adapters.lightning import MeterCallback


class Slow:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((4,), float(index))


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, step):
        time.sleep(0.03)
        return self.net(batch).mean()

    def validation_step(self, batch, step):
        time.sleep(3)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=2, val_check_interval=3, limit_val_batches=1, num_sanity_val_steps=0,
    callbacks=[MeterCallback("lightning")], **quiet,
)  # fmt: skip
trainer.fit(Module(), DataLoader(Slow(), batch_size=4), DataLoader(Slow(), batch_size=4))

# headrace's own loader is measured once, by itself
trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, callbacks=[MeterCallback("twice")], **quiet)
trainer.fit(Module(), feed.DataLoader(Slow(), batch_size=4, num_workers=1, name="own"))
