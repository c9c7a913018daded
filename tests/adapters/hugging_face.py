"""What the examples do not show of Accelerate and the Trainer; every rank asserts, and says so at the end."""

import shutil
import sys
import warnings

import accelerate
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from data import Net, Numbers
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from headrace import feed
from headrace.adapters.accelerate import DataLoader
from headrace.adapters.transformers import FeedMixin, Trainer
from headrace.errors import FeedError

ALL = list(range(101))
warnings.filterwarnings("ignore")


def rows(batch):
    return [int(row) for row in batch["x"][:, 0]]


def everyone(value):
    """Returns the values of all ranks."""
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


def union(loader):
    """Returns the sorted indices of a pass over all ranks."""
    mine = [row for batch in loader for row in rows(batch)]
    return sorted(row for rank in everyone(mine) for row in rank)


accelerator = Accelerator(gradient_accumulation_steps=4)
rank = accelerator.process_index

# prepare leaves it as it is, accumulation ends with the epoch, batches are on the device
train = DataLoader(Numbers(), batch_size=8, shuffle=True, seed=7)
assert accelerator.prepare(train) is train
net, optimizer = accelerator.prepare(Net(), torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
for _ in range(2):
    synced = []
    for batch in train:
        assert batch["x"].device.type == accelerator.device.type
        with accelerator.accumulate(net):
            synced.append(accelerator.sync_gradients)
    assert synced == [False, False, False, True, False, False, True], synced
    assert not accelerator.gradient_state.in_dataloader

# a pass that is broken off leaves nothing in Accelerate's state
for _ in train:
    assert accelerator.gradient_state.in_dataloader
    break
assert not accelerator.gradient_state.in_dataloader

# going on in the middle of an epoch: ours does, Accelerate's own is refused
train.set_epoch(0)
whole = [rows(batch) for batch in train]
train.set_epoch(0)
train.skip_first_batches(3)
assert [rows(batch) for batch in train] == whole[3:]
assert sorted(row for part in everyone(whole) for batch in part for row in batch) == ALL
with pytest.raises(FeedError, match="keeps it headrace's"):
    next(iter(accelerate.skip_first_batches(train, 3)))
assert list(train.sampler)

# so does a position that was saved, which knows where the epoch ends
train.set_epoch(0)
begun = iter(train)
for _ in range(3):
    next(begun)
state = train.state_dict()
del begun
again = DataLoader(Numbers(), batch_size=8, shuffle=True, seed=7, num_workers=1)
again.load_state_dict(state)
ends = []
for step, batch in enumerate(again):
    assert rows(batch) == whole[3 + step]
    ends.append(again.end_of_dataloader)
assert ends == [False, False, False, True]

# samplers are divided once, also when the ranks' generators differ
torch.manual_seed(rank)
for given in (
    {"sampler": RandomSampler(ALL), "batch_size": 8},
    {"batch_sampler": BatchSampler(RandomSampler(ALL), 8, False)},
    {"sampler": SequentialSampler(ALL), "batch_size": 8},
    {"sampler": DistributedSampler(ALL, shuffle=True), "batch_size": 8},
):
    loader = DataLoader(Numbers(), **given)
    first = union(loader)
    assert sorted(set(first)) == ALL, given
    assert len(first) < 101 + 16
    gathered = [accelerator.gather_for_metrics(batch["x"]) for batch in DataLoader(Numbers(), **given)]
    expected = 101 if "sampler" in given and not isinstance(given["sampler"], DistributedSampler) else len(first)
    assert len(torch.cat(gathered)) == expected, (given, len(torch.cat(gathered)))

# how the end is filled up
assert union(DataLoader(Numbers(), batch_size=8, even_batches=False)) == ALL
assert len(union(DataLoader(Numbers(), batch_size=8))) == 102
assert len(union(DataLoader(Numbers(), batch_size=8, even_batches="full"))) == 112
assert len(union(DataLoader(Numbers(), batch_size=8, drop_last=True))) == 96

# a plain loader divides nothing, and says so once it matters
for options, expected in (({}, 1), ({"rank": 0, "world_size": 1}, 0), ({"global_batch_size": 16}, 0)):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(feed.DataLoader(Numbers(), **options)))
    told = [str(warning.message) for warning in caught if "loads the whole dataset" in str(warning.message)]
    assert len(told) == expected, (options, told)
    assert all("headrace.adapters.accelerate.DataLoader" in text for text in told)


def arguments(**more):
    return transformers.TrainingArguments(
        "out", per_device_train_batch_size=8, per_device_eval_batch_size=8, dataloader_pin_memory=False, use_cpu=True,
        report_to="none", disable_tqdm=True, **more,
    )  # fmt: skip


def shown(trainer):
    """Lets the indices of every training batch be noted."""
    seen = []
    plain = trainer.training_step
    trainer.training_step = lambda model, inputs, *rest: (seen.append(rows(inputs)), plain(model, inputs, *rest))[1]
    return seen


# the Trainer's numbers are those of the original, whose last batch weighs what it weighs
torch.manual_seed(0)
net = Net()
ours = Trainer(model=net, args=arguments(), train_dataset=Numbers(), eval_dataset=Numbers())
theirs = transformers.Trainer(model=net, args=arguments(), train_dataset=Numbers(), eval_dataset=Numbers())
assert isinstance(ours.get_eval_dataloader(), DataLoader)
assert isinstance(theirs.get_eval_dataloader(), DataLoaderShard)
assert ours.evaluate()["eval_loss"] == theirs.evaluate()["eval_loss"]
assert (ours.predict(Numbers()).label_ids == theirs.predict(Numbers()).label_ids).all()

# a checkpoint in the middle of an epoch: what comes after it is what would have come
through = Trainer(model=Net(), args=arguments(num_train_epochs=1, save_strategy="no"), train_dataset=Numbers())
uninterrupted = shown(through)
through.train()
first = Trainer(model=Net(), args=arguments(max_steps=3, save_steps=3), train_dataset=Numbers())
begun = shown(first)
first.train()
second = Trainer(model=Net(), args=arguments(num_train_epochs=1, save_strategy="no"), train_dataset=Numbers())
ended = shown(second)
second.train(resume_from_checkpoint=True)
assert begun + ended == uninterrupted, (begun, ended, uninterrupted)
assert sorted(row for part in everyone(begun + ended) for batch in part for row in batch) == ALL
assert transformers.trainer.skip_first_batches is accelerate.skip_first_batches


# a sampling strategy of the Trainer's own, another Trainer class, and workers that stay
class Own(FeedMixin, transformers.Trainer):
    feed_options = {"memory": 64 << 20}  # noqa: RUF012

    def _get_train_sampler(self, train_dataset=None):
        return RandomSampler(self.train_dataset, replacement=True, num_samples=64)


own = Own(
    model=Net(),
    args=arguments(
        num_train_epochs=2, save_strategy="no", dataloader_num_workers=1, dataloader_persistent_workers=True
    ),
    train_dataset=Numbers(),
    eval_dataset=Numbers(),
)
drawn = shown(own)
own.train()
assert [len(batch) for batch in drawn] == [8] * 8
assert own.get_eval_dataloader() is own.get_eval_dataloader()
assert own.evaluate()["eval_loss"] > 0
own.get_eval_dataloader().close()

accelerator.wait_for_everyone()
if rank == 0:
    shutil.rmtree("out")
print(f"rank {rank} is content", flush=True)
accelerator.end_training()
sys.exit(0)
