"""What holds for every test: it leaves nothing behind, and in CI it is not skipped."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

import leaks
from objectstore import s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that talk to the object store are marked as that."""
    for item in items:
        if {"s3", "s3_endpoint"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("s3")


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, a process, a descriptor or shared memory behind."""
    with leaks.check():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip into a failure where everything must run: CI=true."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI must run everything: {report.longrepr}"
    return report
