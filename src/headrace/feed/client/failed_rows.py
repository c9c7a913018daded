"""What becomes of a batch some rows of which cannot be made: it is asked for again without them, or it fails."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import WorkerError
from headrace.feed.client.assembly import Assembly
from headrace.feed.client.policy import BatchSkipped, Policy
from headrace.feed.client.scheduler import Schedule
from headrace.feed.client.work_units import Bundle, Slice
from headrace.feed.wire import messages
from headrace.feed.wire.remote_errors import in_short


class FailedRows:
    """See the module.

    Args:
        schedule: where a batch is asked for again.
        assembly: where its rows come together.
        policy: whether samples that fail are left out of their batch.
    """

    def __init__(self, schedule: Schedule, assembly: Assembly, policy: Policy) -> None:
        self._schedule = schedule
        self._assembly = assembly
        self._policy = policy

    def restart(self, bundle: Bundle) -> None:
        """Begins a bundle again in another slab."""
        self._schedule.start_over(bundle)
        self._assembly.forget(bundle)

    def skip(self, bundle: Bundle, failures: Sequence[messages.Failure]) -> None:
        """Leaves rows out of their batches, which are asked for again."""
        self.restart(bundle)
        singles = self._schedule.singles(bundle)
        for failure in failures:
            self._leave_out(singles[failure.batch], failure.row, in_short(failure.error))

    def died(self, worker: str, slice_: Slice, reason: str) -> None:
        """An executor of `worker` died over a slice: it is asked for again, unless `Schedule.died` gives it up."""
        bundle = slice_.bundle
        if self._schedule.died(slice_):
            if self._schedule.bundles.get((bundle.plan.epoch, bundle.plan.step)) is not bundle:
                self._assembly.forget(bundle)  # each of its batches stands alone now
            return
        ended = {2: "two", 4: "four"}.get(slice_.deaths, slice_.deaths)
        if self._policy.on_error == "skip":
            self.restart(bundle)
            rows = [-1] if slice_.whole or slice_.rows == bundle.rows else range(slice_.first, slice_.last)
            for row in rows:
                self._leave_out(bundle, row, f"{ended} workers ended over it; the last one, on {worker}: {reason}")
            return
        keys = list(bundle.plan.keys[slice_.first : slice_.last])
        shown = f"indices {keys[:16]}{'...' if len(keys) > 16 else ''}"
        if slice_.draw is not None:
            shown = f"outputs {keys[0]}..{keys[-1]} of lane {slice_.draw.cursor.lane}"
        bundle.failures[0] = WorkerError(
            f"{ended} workers ended while they made {shown}; the last one, on {worker}: {reason}",
            hint="load these samples in a plain Python process to see why; they may need too much memory or exit",
        )

    def _leave_out(self, single: Bundle, row: int, reason: str) -> None:
        plan = single.plan
        rows = [row] if 0 <= row < plan.rows else [row for row in range(plan.rows) if row not in single.left_out]
        single.left_out.update(dict.fromkeys(rows, reason))
        if len(single.left_out) == plan.rows:
            single.failures[0] = BatchSkipped()
        else:
            self._schedule.make_whole(single)
