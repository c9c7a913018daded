"""What a process reports to the one that started it."""

import os

import msgspec
import pytest

from headrace.child_python import ChildReport, read_report


@pytest.mark.parametrize("report", [ChildReport(ready=True, pid=7), ChildReport(error="a\nb: 'ü'", of_service=True)])
def test_a_report_is_one_line_and_reads_back(report):
    assert "\n" not in report.line()
    assert read_report(report.line().encode()) == report


@pytest.mark.parametrize(
    "line",
    [b"", b"ready", b"error: x", b"5", b"null", b"[]", b'{"error": "x"}', b'{"child_report": {"other": 1}}', b"\xff"],
)
def test_any_other_line_is_no_report(line):
    assert read_report(line) is None


def test_an_error_that_names_a_file_of_any_bytes_can_be_recorded():
    report = read_report(ChildReport(error="no place for " + os.fsdecode(b"model-\xff")).line())
    assert report is not None
    assert msgspec.json.decode(msgspec.json.encode(report.error)) == "no place for model-\\udcff"
