"""Whether the ranks of a job that share a feed server have the same plan."""

from __future__ import annotations

from headrace.feed.wire import messages
from headrace.feed.worker.client_connection import ClientConnection


class Plans:
    """The plans of the clients, by loader."""

    def __init__(self) -> None:
        self._plans: dict[tuple[ClientConnection, str], str] = {}

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
        return ""

    def forget(self, client: ClientConnection) -> None:
        """A client is gone."""
        self._plans = {key: plan for key, plan in self._plans.items() if key[0] is not client}
