"""The control messages."""

import pytest

from headrace.agent.control.control_messages import (
    Exited,
    Heartbeat,
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


def test_what_is_encoded_is_decoded_in_both_directions():
    report = Report(1, Exited("0", 12.5, exit_code=3, last_lines=("boom",)))
    assert decode_report(encode(report)) == report
    orders = Orders(
        ack=1,
        start=True,
        feed=(FeedHost("algo-2", "data", "tcp://127.0.1.2:7070", 2, "ready"),),
        stop=StopOrder("stopped", 3.0),
        verdict=Status.STOPPED,
    )
    assert decode_orders(encode(orders)) == orders


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", encode(Orders())])
def test_a_body_that_is_no_report_is_refused(body):
    with pytest.raises(Refused):
        decode_report(body)


def test_last_lines_fit_into_a_message():
    lines = clip_lines([b"\xff" * 10**6] * 100)
    assert [len(line) for line in lines] == [*[400] * 40, *[2000] * 20]
    assert len(encode(Report(1, Exited("0", 1.0, exit_code=1, last_lines=lines)))) < 1 << 18
    assert Heartbeat() == Heartbeat()
