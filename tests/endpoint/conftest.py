"""An endpoint for the tests of a module, whose clients are closed after each; and a service, and a loop with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sagemaker_loop import Loop, open_loop, open_service

from serve_process import ServeProcess, serving


@pytest.fixture(scope="module")
def module_endpoint(request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    """An endpoint with the `SERVE_OPTIONS` of the module."""
    with serving(*getattr(request.module, "SERVE_OPTIONS", ())) as process:
        yield process


@pytest.fixture
def endpoint(module_endpoint: ServeProcess) -> Iterator[ServeProcess]:
    yield module_endpoint
    module_endpoint.close_clients()


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    """A service with the `SERVE_OPTIONS` of the module."""
    yield from open_service(*getattr(request.module, "SERVE_OPTIONS", ()))


@pytest.fixture
def loop(service: ServeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    yield open_loop(service, tmp_path, monkeypatch)
    service.close_clients()
