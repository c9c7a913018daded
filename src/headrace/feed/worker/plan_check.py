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
        self._asked: dict[tuple[ClientConnection, str, int], dict[str, list[_Step]]] = {}

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
        self._loaders.setdefault((client, message.pipeline), message.loader)
        return ""

    def disagreement(self, client: ClientConnection, message: messages.SliceRequest) -> str:
        """Takes a step that a client asks for. Returns what another rank has agreed in less; empty if nothing.

        Whatever must be equal on all ranks is the same from some step on to some other: of every rank and value the
        first and the last step are kept, and a step of another rank and value must not lie between.
        """
        loader = self._loaders.get((client, message.pipeline))
        if message.agreed is None or loader is None or client.hello is None:
            return ""
        generation, agreed = message.agreed
        step = (message.epoch, message.batches[0].step)
        for (other, its, number), asked in self._asked.items():
            if (other.job, its, number) != (client.job, loader, generation) or other.hello is None:
                continue
            if other.hello.rank == client.hello.rank:
                continue
            if any(value != agreed and first <= step <= last for value, (first, last) in asked.items()):
                return (
                    f"rank {client.hello.rank} and rank {other.hello.rank} have different weights at step {step[1]} of "
                    f"epoch {step[0]} of the loader {loader!r}: set_weights must be called alike on all ranks, with "
                    "the same weights and at_step"
                )
        own = self._asked.setdefault((client, loader, generation), {})
        first, last = own.setdefault(agreed, [step, step])
        own[agreed] = [min(first, step), max(last, step)]
        if len(own) > _KEPT:
            del own[next(iter(own))]
        return ""

    def forget(self, client: ClientConnection) -> None:
        """A client is gone."""
        self._plans = {key: plan for key, plan in self._plans.items() if key[0] is not client}
        self._loaders = {key: loader for key, loader in self._loaders.items() if key[0] is not client}
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] is not client}
