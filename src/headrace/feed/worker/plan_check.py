"""Whether the ranks of a job that share a feed server have the same plan."""

from __future__ import annotations

from typing import NamedTuple

from headrace.feed.identifiers import PipelineNumber
from headrace.feed.wire import messages
from headrace.feed.worker.client_connection import ClientConnection

_KEPT = 64  # values of a rank, the latest
_LOADERS = 8  # of one name and rank, the latest
_Step = tuple[int, int]  # epoch and number of a step


class _Asker(NamedTuple):
    """A loader of a rank. `turn`: it is that rank's first, second, ... of this name; ranks build them in one order."""

    job: str
    loader: str
    turn: int
    rank: int


class Plans:
    """The plans of the clients, by loader."""

    def __init__(self) -> None:
        self._plans: dict[tuple[ClientConnection, str], str] = {}
        self._askers: dict[tuple[ClientConnection, PipelineNumber], _Asker] = {}
        self._turns: dict[tuple[str, str, int], dict[str, int]] = {}  # of openers, by job, loader and rank
        self._asked: dict[tuple[_Asker, int], dict[str, list[_Step]]] = {}  # and generation: first and last step

    def conflict(self, client: ClientConnection, message: messages.Open) -> str:
        """Takes a client's plan. Returns what is wrong with it beside those of other ranks, empty if nothing is."""
        if not message.plan:
            return ""
        for (other, loader), plan in self._plans.items():
            if (other.job, loader) != (client.job, message.loader) or plan == message.plan:
                continue
            if other.hello is None or client.hello is None:
                continue
            if other.hello.rank != client.hello.rank:  # the same rank may have made another loader of this name
                ranks = f"rank {client.hello.rank} and rank {other.hello.rank}"
                return (
                    f"{ranks} have different plans for the loader {loader!r}: pipeline, length, seed, shuffle, "
                    "drop_last, global batch, world size, and where they begin (a state that was loaded) must be equal "
                    "on all ranks; ranks of different jobs that share a server are told apart by HEADRACE_FEED_JOB"
                )
        self._plans[client, message.loader] = message.plan
        if client.hello is not None and (client, message.pipeline) not in self._askers:
            rank = client.hello.rank
            turns = self._turns.setdefault((client.job, message.loader, rank), {})
            turn = turns.setdefault(message.opener, 1 + max(turns.values(), default=0))
            self._askers[client, message.pipeline] = _Asker(client.job, message.loader, turn, rank)
            if len(turns) > _LOADERS:
                self._forget_asked(client.job, message.loader, turns.pop(next(iter(turns))))
        return ""

    def disagreement(self, client: ClientConnection, message: messages.SliceRequest) -> str:
        """Takes a step that a client asks for. Returns what another rank has agreed in less; empty if nothing.

        Whatever must be equal on all ranks is the same from some step on to some other: of every rank and value the
        first and the last step are kept, and a step of another rank and value must not lie between. They are kept as
        long as a rank of the job has a loader of the name: one that has ended was far ahead. A rank that builds its
        loader anew is compared with those that have done so, too.
        """
        asker = self._askers.get((client, message.pipeline))
        if message.agreed is None or asker is None:
            return ""
        generation, agreed = message.agreed
        step = (message.epoch, message.batches[0].step)
        for (other, number), asked in self._asked.items():
            if number != generation or other[:3] != asker[:3] or other.rank == asker.rank:
                continue
            if any(value != agreed and first <= step <= last for value, (first, last) in asked.items()):
                return (
                    f"rank {asker.rank} and rank {other.rank} have different weights at step {step[1]} of "
                    f"epoch {step[0]} of the loader {asker.loader!r}: set_weights must be called alike on all ranks, "
                    "with the same weights and at_step"
                )
        own = self._asked.setdefault((asker, generation), {})
        first, last = own.setdefault(agreed, [step, step])
        own[agreed] = [min(first, step), max(last, step)]
        if len(own) > _KEPT:
            del own[next(iter(own))]
        return ""

    def forget(self, client: ClientConnection) -> None:
        """A client is gone."""
        loaders = {loader for owner, loader in self._plans if owner is client}
        self._plans = {key: plan for key, plan in self._plans.items() if key[0] is not client}
        self._askers = {key: asker for key, asker in self._askers.items() if key[0] is not client}
        for loader in loaders - {loader for owner, loader in self._plans if owner.job == client.job}:
            self._turns = {key: turns for key, turns in self._turns.items() if key[:2] != (client.job, loader)}
            self._forget_asked(client.job, loader)

    def _forget_asked(self, *of: object) -> None:
        """Forgets what loaders asked for whose first attributes these are."""
        self._asked = {key: asked for key, asked in self._asked.items() if key[0][: len(of)] != of}
