"""Whether the ranks of a job that share a feed server have the same plan."""

from __future__ import annotations

from headrace.feed.identifiers import PipelineNumber
from headrace.feed.wire import messages
from headrace.feed.worker.client_connection import ClientConnection

_KEPT = 64  # values of a rank, the latest
_Step = tuple[int, int]  # epoch and number of a step


class Plans:
    """The plans of the clients, by loader."""

    def __init__(self) -> None:
        self._plans: dict[tuple[ClientConnection, str], str] = {}
        self._loaders: dict[tuple[ClientConnection, PipelineNumber], str] = {}
        self._openers: dict[tuple[str, str, int], str] = {}  # by job, loader and rank
        self._asked: dict[tuple[str, str, int, int], dict[str, list[_Step]]] = {}  # and generation: first, last step

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
                    "drop_last, global batch and world size must be equal on all ranks; ranks of different jobs that "
                    "share a server are told apart by HEADRACE_FEED_JOB"
                )
        self._plans[client, message.loader] = message.plan
        if client.hello is not None:
            place = client.job, message.loader, client.hello.rank
            if self._openers.setdefault(place, message.opener) != message.opener:
                self._begin_again(client.job, message.loader)
                self._openers[place] = message.opener
        self._loaders.setdefault((client, message.pipeline), message.loader)
        return ""

    def disagreement(self, client: ClientConnection, message: messages.SliceRequest) -> str:
        """Takes a step that a client asks for. Returns what another rank has agreed in less; empty if nothing.

        Whatever must be equal on all ranks is the same from some step on to some other: of every rank and value the
        first and the last step are kept, and a step of another rank and value must not lie between. They are kept as
        long as a rank of the job is there that has not begun again, also of a rank that has ended: it may be far ahead.
        """
        loader = self._loaders.get((client, message.pipeline))
        if message.agreed is None or loader is None or client.hello is None:
            return ""
        generation, agreed = message.agreed
        step = (message.epoch, message.batches[0].step)
        rank = client.hello.rank
        for (job, its, other, number), asked in self._asked.items():
            if (job, its, number) != (client.job, loader, generation) or other == rank:
                continue
            if any(value != agreed and first <= step <= last for value, (first, last) in asked.items()):
                return (
                    f"rank {rank} and rank {other} have different weights at step {step[1]} of "
                    f"epoch {step[0]} of the loader {loader!r}: set_weights must be called alike on all ranks, with "
                    "the same weights and at_step"
                )
        own = self._asked.setdefault((client.job, loader, rank, generation), {})
        first, last = own.setdefault(agreed, [step, step])
        own[agreed] = [min(first, step), max(last, step)]
        if len(own) > _KEPT:
            del own[next(iter(own))]
        return ""

    def forget(self, client: ClientConnection) -> None:
        """A client is gone."""
        loaders = {loader for owner, loader in self._plans if owner is client}
        self._plans = {key: plan for key, plan in self._plans.items() if key[0] is not client}
        self._loaders = {key: loader for key, loader in self._loaders.items() if key[0] is not client}
        for loader in loaders - {loader for owner, loader in self._plans if owner.job == client.job}:
            self._begin_again(client.job, loader)

    def _begin_again(self, job: str, loader: str) -> None:
        self._openers = {key: opener for key, opener in self._openers.items() if key[:2] != (job, loader)}
        self._asked = {key: asked for key, asked in self._asked.items() if key[:2] != (job, loader)}
