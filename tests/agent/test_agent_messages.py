"""The seal on the control messages."""

import pytest

from headrace.agent.control.control_messages import (
    Direction,
    Exited,
    Heartbeat,
    Hello,
    Link,
    Orders,
    Refused,
    Report,
    StopOrder,
    clip_lines,
    decode_orders,
    decode_report,
    encode,
)
from headrace.instance.launch_plan import FeedHost
from headrace.runs import Status

SECRET = b"s" * 32


def ends(secret=SECRET, host="algo-1", incarnation=b"i" * 16):
    agent = Link(secret, Direction.TO_COORDINATOR, host, incarnation)
    coordinator = Link(SECRET, Direction.TO_AGENT, "algo-1", b"i" * 16)
    return agent, coordinator


def test_what_is_sealed_is_opened_in_both_directions():
    agent, coordinator = ends()
    report = Report(1, Exited("0", 12.5, exit_code=3, last_lines=("boom",)))
    assert decode_report(coordinator.open(agent.seal(encode(report)))) == report
    orders = Orders(
        ack=1,
        start=True,
        feed=(FeedHost("algo-2", "data", "tcp://127.0.1.2:7070", 2, "ready"),),
        stop=StopOrder("stopped", 3.0),
        verdict=Status.STOPPED,
    )
    assert decode_orders(agent.open(coordinator.seal(encode(orders)))) == orders


def test_a_frame_is_taken_once():
    agent, coordinator = ends()
    first, second = agent.seal(b"1"), agent.seal(b"2")
    assert coordinator.open(first) == b"1"
    assert coordinator.open(second) == b"2"
    for frame in (first, second):
        with pytest.raises(Refused, match="seen before"):
            coordinator.open(frame)


def test_a_frame_cannot_be_sent_back_to_its_author():
    agent, _ = ends()
    with pytest.raises(Refused, match="wrong seal"):
        agent.open(agent.seal(b"x"))


def test_a_frame_of_another_attempt_is_refused_by_both_ends():
    agent, coordinator = (Link(SECRET, way, "algo-1", b"i" * 16, 2) for way in list(Direction)[:2])
    assert coordinator.open(agent.seal(b"x")) == b"x"
    earlier, its_coordinator = ends()
    with pytest.raises(Refused, match="algo-1 is of attempt 1, and this is attempt 2"):
        coordinator.open(earlier.seal(b"x"))
    with pytest.raises(Refused, match="is of attempt 1"):
        agent.open(its_coordinator.seal(b"x"))


@pytest.mark.parametrize("change", [{"secret": b"t" * 32}, {"host": "algo-2"}, {"incarnation": b"j" * 16}])
def test_another_secret_host_or_incarnation_is_refused(change):
    stranger, coordinator = ends(**change)
    with pytest.raises(Refused):
        coordinator.open(stranger.seal(b"x"))


def test_no_changed_byte_gets_through():
    agent, coordinator = ends()
    frame = agent.seal(encode(Report(1, Hello("dnn"))))
    for index in range(len(frame)):
        changed = bytearray(frame)
        changed[index] ^= 1
        with pytest.raises(Refused):
            coordinator.open(bytes(changed))
    assert coordinator.open(frame)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", encode(Orders())])
def test_a_body_that_is_no_report_is_refused(body):
    with pytest.raises(Refused):
        decode_report(body)


def test_last_lines_fit_into_a_message():
    lines = clip_lines([b"\xff" * 10**6] * 100)
    assert [len(line) for line in lines] == [*[400] * 40, *[2000] * 20]
    assert len(encode(Report(1, Exited("0", 1.0, exit_code=1, last_lines=lines)))) < 1 << 18
    assert Heartbeat() == Heartbeat()
