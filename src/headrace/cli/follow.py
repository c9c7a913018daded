"""Following a run from its files to the screen, and Ctrl-C to the run.

The loop looks at events, metrics and logs every 80 ms. It ends when the run has finished and all is shown.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from headrace.job.run_handle import StopThread
from headrace.runs import EndOfRun, EventFollower, LogFollower, MetricFollower, Run, Selector
from headrace.runs.reader import POLL_SECONDS

if TYPE_CHECKING:
    from headrace.cli.views.run_screen import RunScreen
    from headrace.engines.handle import Handle


class Interrupts:
    """Counts Ctrl-C and SIGTERM, which then do not end the process.

    Attributes:
        count: how many there were.
        on_signal: called at each, in the signal handler.
    """

    def __init__(self) -> None:
        self.count = 0
        self.on_signal: Callable[[], None] = lambda: None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.on_signal()


def follow(start: Callable[[], Handle], screen: RunScreen) -> Handle:
    """Starts a run and shows it to its end. Ctrl-C stops it with time to save. A stop that fails is told, and the run
    is shown all the same, until the next Ctrl-C leaves it. An output that cannot be written ends the showing only.

    Args:
        start: starts the run.
        screen: where to show it.

    Returns:
        The run, which is over.

    Raises:
        RunLeft: Ctrl-C after a stop that failed; the run goes on, as far as is known.
    """
    with Interrupts() as interrupts:
        handle = start()
        with StopThread(handle.stop, handle.id) as stopping:
            interrupts.on_signal = stopping.leave_if_failed
            heard = watch(handle.run, screen, interrupts, stopping.ask)
            interrupts.on_signal = stopping.ask  # the end of its record may still be on its way
            screen.storing()
            if interrupts.count > heard:
                stopping.ask()
            handle.wait()
    return handle


def watch(
    run: Run,
    screen: RunScreen,
    interrupts: Interrupts,
    stop: Callable[[bool], None],
) -> int:
    """Shows a run until it has finished.

    Args:
        run: the run.
        screen: where to show it.
        interrupts: Ctrl-C: the first stops the run with time to save, the second kills it.
        stop: stops the run; its argument is whether at once.

    Returns:
        How many of the interrupts it has acted on.
    """
    events = EventFollower(run.paths, run.on_damage)
    logs = LogFollower(run.paths, Selector(), run.on_damage)
    metrics = MetricFollower(run.paths, run.on_damage)
    end = EndOfRun(run, events)
    asked = 0
    screen.begin(run)
    while True:
        for event in events.poll():
            screen.event(event)
        final = end.reached()
        if interrupts.count > asked and not final:
            asked = interrupts.count
            screen.stopping(now=asked > 1)
            stop(asked > 1)
        for stream, metric in metrics.poll():
            screen.metric(stream, metric)
        for line in logs.poll(final):
            end.noticed()
            screen.log(line)
        screen.tick(time.time())
        if final:
            return asked
        time.sleep(POLL_SECONDS)
