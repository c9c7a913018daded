"""What the example does not show of Lightning: a plain loader that is told, and one that is not."""

import warnings

import lightning
import pytest
import torch
from data import Net, Numbers
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DistributedSampler

from headrace import feed
from headrace.adapters.lightning import DataLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, step):
        return self.net(**batch)["loss"]

    def train_dataloader(self):
        return feed.DataLoader(Numbers(), global_batch_size=16, shuffle=True, seed=3, num_workers=1)

    def test_step(self, batch, step):
        self.net(**batch)

    def test_dataloader(self):
        return feed.DataLoader(Numbers(), batch_size=8)

    def predict_step(self, batch, step):
        return self.net(**batch)["logits"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, **quiet)
trainer.fit(Module())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    trainer.test(Module(), verbose=False)
told = [str(warning.message) for warning in caught if "loads the whole dataset" in str(warning.message)]
assert told, [str(warning.message) for warning in caught]
assert "headrace.adapters.lightning.DataLoader" in told[0]

for sampler in (DistributedSampler(range(101)), [1, 2]):
    with pytest.raises(ValueError, match="a sampler decides by itself"):
        DataLoader(Numbers(), sampler=sampler)

predicted = trainer.predict(Module(), DataLoader(Numbers(), batch_size=8))
found = [None, None]
torch.distributed.all_gather_object(found, sum(len(part) for part in predicted))
assert sum(found) == 101
print(f"rank {trainer.global_rank} is content", flush=True)


def combined(kind, mode):
    return CombinedLoader({"a": kind(range(7), batch_size=2), "b": kind(range(4), batch_size=2)}, mode)


def listed(batches):
    return [repr(batch) for batch, _, _ in batches]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that each rank loads all of the data
    for mode in ("max_size_cycle", "max_size", "min_size", "sequential"):
        whole = listed(combined(feed.DataLoader, mode))
        assert whole == listed(combined(torch.utils.data.DataLoader, mode)), mode
        loader = combined(feed.DataLoader, mode)
        iter(loader)
        head = listed([next(loader) for _ in range(2)])
        resumed = combined(feed.DataLoader, mode)
        resumed._load_state_dicts(loader._state_dicts())
        assert head + listed(resumed) == whole, mode
print(f"rank {trainer.global_rank} has combined", flush=True)
