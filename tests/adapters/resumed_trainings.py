"""Trains in a framework, from its own checkpoints: a program that prints what every training of a table has seen.

    python resumed_trainings.py FOLDER FRAMEWORK [FRAMEWORK ...]

A case stops a training at some moments. At each a checkpoint is written as the framework writes it, and the process's
training ends there, by an exception; another one goes on from the file. What all of them have seen, one after the
other, must be what an undisturbed training sees: rows, order and random numbers.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import pickle
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from effort import SOAK
from resume_data import BATCH, EPOCHS, KINDS, ROWS, dataset_of, seen_in

STEPS = ROWS // BATCH
FRAMEWORKS = ("plain", "plain, set_epoch", "lightning", "accelerate", "trainer", "keras")


class Moment(NamedTuple):
    """When a checkpoint is written.

    Attributes:
        hook: "start" of the training, "step" behind one, "epoch" behind its end; in Lightning also "during" a step, or
            behind the "validation" that follows the last one.
        epoch, step: where; step is the number of batches trained on.
    """

    hook: str
    epoch: int = 0
    step: int = 0


MOMENTS = {
    "before the first batch": Moment("start"),
    "mid-epoch 0": Moment("step", 0, 3),
    "mid-epoch 1": Moment("step", 1, 4),
    "last step": Moment("step", 0, STEPS),
    "end of epoch": Moment("epoch", 0, STEPS),
}
LATER = {"mid": Moment("step", 1, 7), "last": Moment("step", 1, STEPS), "end": Moment("epoch", 1, STEPS)}


class Case(NamedTuple):
    """A training that is interrupted.

    Attributes:
        kind: of the data.
        moments: of the interruptions.
        workers: of the loader.
        limit: batches of an epoch that the framework trains on; 0 for all.
        steps: of the whole training, as `max_steps`; 0 for as many as there are.
    """

    kind: str
    moments: tuple[Moment, ...]
    workers: int = 0
    limit: int = 0
    steps: int = 0


def cases(framework: str) -> dict[str, Case]:
    """Returns the table of a framework by names: each value, in a loop of one's own each pair; in a long run all."""
    table = {}
    limits = {"": (0, 0)}
    if framework not in ("keras", "trainer"):
        limits["limit"] = (6, 0)
    if framework in ("lightning", "trainer"):
        limits["max_steps"] = (0, 2 * STEPS + 5)
    again = itertools.cycle(LATER.items())
    for kind, (limited, (limit, steps)), moment in itertools.product(KINDS, limits.items(), MOMENTS.values()):
        last = limit or STEPS
        first = moment._replace(step=min(moment.step, last))
        when, later = next(again)
        while (later.epoch, min(later.step, last)) <= (first.epoch, first.step) or (limit and when == "mid"):
            when, later = next(again)
        moments = first, later._replace(step=min(later.step, last))
        only_twice = bool(limited) or framework in ("plain, set_epoch", "trainer", "keras")
        for number in (1, 2)[only_twice:]:
            parts = (kind, named(moment), f"then {when}" if number == 2 else "", limited)
            table[" / ".join(filter(None, parts))] = Case(kind, moments[:number], 0, limit, steps)
    if framework == "trainer":
        table = {name: case for name, case in table.items() if case.kind != "lanes" or case.steps}
    if framework == "lightning":
        table |= {f"{kind} / during a step": Case(kind, (Moment("during", 1, 4),)) for kind in KINDS}
        soon = (MOMENTS["last step"], Moment("step", 1, 2))
        table |= {f"{kind} / last step / then soon in the next epoch": Case(kind, soon) for kind in KINDS}
    chosen = covering(table, framework)
    return chosen if not SOAK else table | chosen


def covering(table: dict[str, Case], framework: str) -> dict[str, Case]:
    """Returns cases, with and without workers, in which every value stands: kind, moments, limit, workers.

    Every pair of them stands in those of a loop of one's own, which is cheap, and of all in a long run.
    """
    every = table | {f"{name} / 2 workers": case._replace(workers=2) for name, case in table.items()}
    pairs = {}
    for name, case in every.items():
        parts = [*case._replace(moments=case.moments[:1])._asdict().items(), ("again", case.moments[1:])]
        pairs[name] = set(itertools.combinations(parts, 2 if SOAK or framework == "plain" else 1))
    order = list(every)
    random.Random(f"pairs {framework}").shuffle(order)
    order.sort(key=lambda name: every[name].workers)
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(order, key=lambda name: len(pairs[name] & missing))
        missing -= pairs[best]
        chosen.add(best)
    return {name: case for name, case in every.items() if name in chosen}


def named(moment: Moment) -> str:
    return next(name for name, each in MOMENTS.items() if each == moment)


class Preempted(BaseException):
    """The process of the training is gone."""


class Leg(NamedTuple):
    """What trains until a moment.

    Attributes:
        case: its case.
        folder: for data and checkpoints.
        resume: the checkpoint to begin at; None for the beginning.
        stop: the moment to write one; None to train to the end.
        save: where.
        seen: the batches that were trained on.
    """

    case: Case
    folder: Path
    resume: Path | None
    stop: Moment | None
    save: Path
    seen: list[Any]

    def loader(self, kind: Callable[..., Any], **options: Any) -> Any:
        dataset, own = dataset_of(self.case.kind, self.folder / "data")
        options = {"seed": 5, "num_workers": self.case.workers, "verify": 0} | options
        return kind(dataset, BATCH, **own | options)


def plain(leg: Leg, *, sets: bool = False) -> None:
    from headrace import feed

    loader, limit = leg.loader(feed.DataLoader), leg.case.limit
    first = 0
    if leg.resume is not None:
        loader.load_state_dict(json.loads(leg.resume.read_text()))
        first = loader.state_dict()["epoch"]

    def save() -> None:
        leg.save.write_text(json.dumps(loader.state_dict()))
        raise Preempted

    with loader:
        if leg.stop == Moment("start"):
            save()
        for epoch in range(first, EPOCHS):
            state = loader.state_dict()
            step = state["step"] if state["epoch"] == epoch else 0
            batches = iter(loader)
            if sets or limit:
                loader.set_epoch(epoch)
            for batch in itertools.islice(batches, limit - step if limit else None):
                step += 1
                leg.seen.append(seen_in(batch))
                if leg.stop == Moment("step", epoch, step):
                    save()
            if leg.stop is not None and (leg.stop.hook, leg.stop.epoch) == ("epoch", epoch):
                save()


def lightning(leg: Leg, kind: Callable[..., Any] | None = None, **options: Any) -> None:
    import lightning
    import torch
    from lightning.pytorch.plugins.environments import LightningEnvironment

    from headrace.adapters.lightning import DataLoader

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.batches: list[Any] = []

        def training_step(self, batch: Any, step: int) -> Any:
            stop = leg.stop
            if stop and stop.hook == "during" and (self.current_epoch, step) == stop[1:]:
                self.trainer.save_checkpoint(leg.save)
                raise Preempted
            leg.seen.append(seen_in(batch))
            return (self.weight * batch["x"].mean()).sum()

        def validation_step(self, batch: Any, step: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.0)

    class Saver(lightning.Callback):
        def at(self, trainer: Any, moment: Moment) -> None:
            if leg.stop == moment:
                trainer.save_checkpoint(leg.save)
                raise Preempted

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.at(trainer, Moment("start"))

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            trained = trainer.fit_loop.epoch_loop.batch_progress.total.processed  # index may count another epoch's too
            step = trained - trainer.current_epoch * (leg.case.limit or STEPS)
            self.at(trainer, Moment("step", trainer.current_epoch, step))

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            if leg.stop is not None and leg.stop.hook == "epoch":
                self.at(trainer, leg.stop._replace(epoch=trainer.current_epoch))

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if leg.stop is not None and leg.stop.hook == "validation":
                self.at(trainer, leg.stop._replace(epoch=trainer.current_epoch))

    trainer = lightning.Trainer(
        plugins=[LightningEnvironment()], accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False,
        max_steps=leg.case.steps or -1, limit_train_batches=leg.case.limit or 1.0, callbacks=[Saver()],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    validation = [[{"x": torch.zeros(1)}]] if leg.stop is not None and leg.stop.hook == "validation" else []
    with leg.loader(kind or DataLoader, **options) as loader:
        trainer.fit(Net(), loader, validation or None, ckpt_path=leg.resume)


def accelerate(leg: Leg) -> None:
    import torch
    from accelerate import Accelerator

    from headrace.adapters.accelerate import DataLoader

    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with leg.loader(DataLoader) as loader:
        net, optimizer, prepared = accelerator.prepare(net, optimizer, loader)
        assert prepared is loader
        if leg.resume is not None:
            accelerator.load_state(leg.resume)
        limit = leg.case.limit

        def save() -> None:
            accelerator.save_state(leg.save)
            raise Preempted

        if leg.stop == Moment("start"):
            save()
        for epoch in range(loader.state_dict()["epoch"], EPOCHS):
            state = loader.state_dict()
            step = state["step"] if state["epoch"] == epoch else 0
            if limit:
                loader.set_epoch(epoch)
            last = False
            for batch in itertools.islice(loader, limit - step if limit else None):
                step += 1
                leg.seen.append(seen_in(batch))
                accelerator.backward(net(batch["x"]).mean())
                optimizer.step()
                assert not last, "a batch behind the last one"
                last = loader.end_of_dataloader
                if leg.stop == Moment("step", epoch, step):
                    save()
            assert last or limit or step == STEPS, "nobody was told which batch is the last"
            if leg.stop is not None and (leg.stop.hook, leg.stop.epoch) == ("epoch", epoch):
                save()


def trainer(leg: Leg) -> None:
    import torch
    import transformers

    from headrace.adapters.transformers import Trainer

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any, draws: Any) -> Any:
            leg.seen.append(seen_in({"x": x, "draws": draws}))
            return {"loss": (self.weight * x.mean()).sum()}

    class Saver(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if leg.stop == Moment("start"):
                training._save_checkpoint(training.model, None)
                raise Preempted

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            epoch, step = divmod(state.global_step - 1, STEPS)
            control.should_save = leg.stop == Moment("step", epoch, step + 1)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            stop = leg.stop
            control.should_save = stop is not None and stop.hook == "epoch" and stop.epoch == state.epoch - 1

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            raise Preempted

    arguments = transformers.TrainingArguments(
        str(leg.save), per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, max_steps=leg.case.steps or -1,
        dataloader_num_workers=leg.case.workers, dataloader_pin_memory=False, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True, logging_strategy="no", learning_rate=0.0, seed=5,
    )  # fmt: skip
    dataset, _ = dataset_of(leg.case.kind, leg.folder / "data")
    training = Trainer(model=Net(), args=arguments, train_dataset=dataset, callbacks=[Saver()])
    checkpoints = sorted(leg.resume.glob("checkpoint-*")) if leg.resume is not None else []
    training.train(resume_from_checkpoint=str(checkpoints[0]) if checkpoints else None)


def keras(leg: Leg) -> None:
    import keras
    import numpy as np

    import headrace.tensorflow

    place = json.loads(leg.resume.with_suffix(".json").read_text()) if leg.resume is not None else None
    images = leg.loader(headrace.tensorflow.feed, state=place)
    begun = images.state_dict()
    weights, state = leg.save.with_suffix(".weights.h5"), leg.save.with_suffix(".json")

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs["x"])

        def train_step(self, data: Any) -> Any:
            leg.seen.append(seen_in({name: part.numpy() for name, part in data.items()}))
            return {"loss": 0.0}

    class Saver(keras.callbacks.Callback):
        def at(self, moment: Moment, batches: int | None) -> None:
            if leg.stop == moment:
                self.model.save_weights(weights)
                state.write_text(json.dumps(images.state_dict(batches)))
                raise Preempted

        def on_train_begin(self, logs: Any = None) -> None:
            self.at(Moment("start"), None)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            first = begun["step"] if begun["epoch"] == self.epoch else 0
            self.batches = batch + 1
            self.at(Moment("step", self.epoch, first + batch + 1), self.batches)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.at(Moment("epoch", epoch, STEPS), self.batches)

    net = Net()
    net.compile(run_eagerly=True)
    net({"x": np.zeros((1, 1), np.float32)})
    if leg.resume is not None:
        net.load_weights(leg.resume.with_suffix(".weights.h5"))
    try:
        if begun["step"]:  # the rest of that epoch
            net.fit(images, epochs=begun["epoch"] + 1, initial_epoch=begun["epoch"], verbose=0, callbacks=[Saver()])
        whole = begun["epoch"] + bool(begun["step"])
        net.fit(images, epochs=EPOCHS, initial_epoch=whole, verbose=0, callbacks=[Saver()])
    finally:
        images.close()


def without_a_place(folder: Path) -> None:
    """Accelerate's checkpoint does not hold the place: that is said, when it is written and when it is read."""
    from accelerate import Accelerator
    from resume_data import Rows

    from headrace.adapters.accelerate import DataLoader
    from headrace.errors import PositionError

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(Rows(), BATCH, shuffle=True, seed=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(loader))
    assert any("was not passed to accelerator.prepare" in str(warning.message) for warning in caught)
    accelerator.save_state(folder)
    loader = accelerator.prepare(DataLoader(Rows(), BATCH, shuffle=True, seed=5))
    for begin in (None, lambda: loader.set_epoch(1), lambda: loader.load_state_dict({})):
        accelerator.load_state(folder)
        if begin is not None:
            begin()
        try:
            next(iter(loader))
        except PositionError as error:
            assert begin is None, "it was said where it begins"
            assert "load_state found no state of the loader 'train'" in str(error)  # noqa: PT017 - pytest is not here
        else:
            assert begin is not None, "it would begin at the beginning"
    assert type(pickle.loads(pickle.dumps(loader))) is DataLoader


def without_the_adapter(folder: Path) -> None:
    """A plain loader is refused where Lightning does not count the epoch that has ended; the adapter goes on there."""
    import torch

    from headrace import feed
    from headrace.errors import PositionError

    def trained(case: Case, resume: Path | None, stop: Moment | None, save: Path, *loader: Any, **options: Any) -> Any:
        leg = Leg(case, folder, resume, stop, folder / save, [])
        torch.manual_seed(7)
        try:
            lightning(leg, *loader, **options)
        except Preempted:
            assert stop is not None
        return leg.seen

    last, whole, limited = MOMENTS["last step"], Case("map", ()), Case("map", (), limit=6)
    stopped = Case("map", (), steps=2 * STEPS + 5)
    for case, moment, seed in (
        (whole, last, None), (whole, last, 5), (limited, last._replace(step=6), 5),
        (stopped, MOMENTS["end of epoch"], 5),
    ):  # fmt: skip
        seen = trained(case, None, moment, Path("ended"), feed.DataLoader, seed=seed)
        try:
            trained(case, folder / "ended", None, Path(), feed.DataLoader, seed=seed)
        except PositionError as error:
            assert re.search("(?s)does not count.*headrace.adapters.lightning.DataLoader", str(error))  # noqa: PT017 - pytest is not here
        else:
            raise AssertionError(f"{moment} of {case} was taken")
        if seed is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "set_epoch")
                seen += trained(case, folder / "ended", Moment("step", 1, 2), Path("later"))
            seen += trained(case, folder / "later", None, Path())
            assert seen == trained(case, None, None, Path(), feed.DataLoader), f"{moment} of {case}"
    undisturbed = trained(whole, None, None, Path(), feed.DataLoader)
    for moment in (MOMENTS["mid-epoch 1"], MOMENTS["end of epoch"], Moment("validation", 0, STEPS)):
        seen = trained(whole, None, moment, Path("plain"), feed.DataLoader)
        assert seen + trained(whole, folder / "plain", None, Path(), feed.DataLoader) == undisturbed, moment


def overfit(folder: Path) -> None:
    """Lightning trains on the same first rows every epoch."""
    import lightning
    import torch
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from resume_data import Rows

    from headrace import feed
    from headrace.adapters.lightning import DataLoader

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, step: int) -> Any:
            seen.append(batch["x"][:, 0].tolist())
            return (self.weight * batch["x"].mean()).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.0)

    loader = DataLoader(Rows(), BATCH, shuffle=True, seed=5)
    for given in (loader, DataLoader(Rows(), BATCH), feed.DataLoader(Rows(), BATCH, seed=1)):
        seen: list[Any] = []
        trainer = lightning.Trainer(
            plugins=[LightningEnvironment()], accelerator="cpu", devices=1, max_epochs=2, overfit_batches=2,
            logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(Net(), given)
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2, seen
    loader.set_epoch(0)
    assert next(iter(loader))["x"][:, 0].tolist() != [0, 1, 2, 3], "elsewhere it shuffles"


MORE: dict[str, dict[str, Callable[[Path], None]]] = {
    "accelerate": {"a checkpoint without the place": without_a_place},
    "lightning": {"overfit_batches": overfit, "a plain loader": without_the_adapter},
}
TRAIN: dict[str, Callable[[Leg], None]] = {
    "plain": plain,
    "plain, set_epoch": lambda leg: plain(leg, sets=True),
    "lightning": lightning,
    "accelerate": accelerate,
    "trainer": trainer,
    "keras": keras,
}


def seen_by(framework: str, case: Case, folder: Path, scratch: Path) -> list[Any]:
    """Returns the batches that the trainings of a case have seen, one after the other."""
    seen: list[Any] = []
    resume: Path | None = None
    for number, stop in enumerate((*case.moments, None)):
        leg = Leg(case, folder, resume, stop, scratch / f"{number}.ckpt", seen)
        try:
            TRAIN[framework](leg)
        except Preempted:
            resume = leg.save
        else:
            if stop is not None:
                raise AssertionError(f"the training never came to {stop}")
    return seen


def main(folder: Path, frameworks: list[str]) -> None:
    warnings.simplefilter("ignore")
    if "keras" not in frameworks:  # rows draw from torch where it is
        importlib.import_module("torch.utils.data")
    told, sys.stdout = sys.stdout, sys.stderr  # frameworks print, too
    logging.disable(logging.WARNING)
    for framework in frameworks:
        for name, problem in results_of(framework, folder / framework):
            print(json.dumps([framework, name, problem]), file=told, flush=True)


def results_of(framework: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Tells of each case of a framework what is wrong; nothing if the text is empty."""
    whole: dict[Any, list[Any]] = {}
    for number, name in enumerate([*cases(framework), *MORE.get(framework, ())]):
        scratch = folder / str(number)
        scratch.mkdir(parents=True)
        try:
            if name in MORE.get(framework, ()):
                problem = MORE[framework][name](scratch) or ""
            else:
                problem = compared(framework, cases(framework)[name], folder, scratch, whole)
        except Exception as error:  # noqa: BLE001 - told as the result
            problem = f"{type(error).__name__}: {error}"
        yield name, problem


def compared(framework: str, case: Case, folder: Path, scratch: Path, whole: dict[Any, list[Any]]) -> str:
    """Returns what is wrong with what the trainings of a case have seen; empty if nothing is.

    Args:
        framework, case, folder, scratch: as above.
        whole: what undisturbed trainings have seen, kept here.
    """
    undisturbed = case._replace(moments=(), workers=0)
    if undisturbed not in whole:
        whole[undisturbed] = seen_by(framework, undisturbed, folder, scratch)
    seen, expected = seen_by(framework, case, folder, scratch), whole[undisturbed]
    assert len(expected) == (case.steps or EPOCHS * (case.limit or STEPS)), "the undisturbed one is not whole"
    if seen == expected:
        return ""
    same = next((at for at in range(len(seen)) if seen[at : at + 1] != expected[at : at + 1]), len(seen))
    rows = [[int(row[0]) for row in batch] for batch in seen[same : same + 2]]
    return f"{len(seen)} batches of {len(expected)}, the first {same} right; then rows {rows}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
