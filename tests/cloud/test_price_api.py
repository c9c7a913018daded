"""Prices from AWS's Pricing API: what is asked, page by page, over HTTP; and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace.catalog.prices import own_prices
from headrace.cli.main import invoke

sys.path.insert(0, str(Path(__file__).parents[1] / "catalog"))
from price_lists import products


class PricingApi(ThreadingHTTPServer):
    """Answers GetProducts with two products a page, as far as the filters let them; `refuse` refuses all."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[dict[str, Any]] = []
        self.refuse = False

    def answer(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(asked)
        if self.refuse:
            return 400, {"__type": "AccessDeniedException", "message": "not allowed to perform pricing:GetProducts"}
        found = [each for each in products().values() if all(_fits(each, one) for one in asked.get("Filters", ()))]
        start = int(asked.get("NextToken", 0))
        page: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": list(map(json.dumps, found[start : start + 2]))}
        return 200, {**page, "NextToken": str(start + 2)} if start + 2 < len(found) else page


def _fits(product: dict[str, Any], wanted: dict[str, str]) -> bool:
    value = str(product["product"]["attributes"][wanted["Field"]])
    return wanted["Value"] in value if wanted["Type"] == "CONTAINS" else wanted["Value"] == value


class _Answers(BaseHTTPRequestHandler):
    server: PricingApi

    def do_POST(self) -> None:
        assert self.headers["X-Amz-Target"] == "AWSPriceListService.GetProducts"
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code, answer = self.server.answer(asked)
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PricingApi]:
    with PricingApi() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", f"http://127.0.0.1:{server.server_port}")
        for name, value in {"ACCESS_KEY_ID": "AKIATEST", "SECRET_ACCESS_KEY": "test"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield server
        server.shutdown()
        thread.join()


def test_all_pages_of_training_are_asked_for_region_by_region(
    api: PricingApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(("prices", "update", "--output", "json")) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["prices"] == 4
    assert [each.get("NextToken") for each in api.asked] == [None, "2"]
    assert api.asked[0]["Filters"] == [{"Type": "CONTAINS", "Field": "usagetype", "Value": "Train:ml."}]
    assert {(price.instance_type, price.region) for price in own_prices()} == {
        (kind, region) for kind in ("ml.c5.xlarge", "ml.p4d.24xlarge") for region in ("us-east-1", "eu-north-1")
    }
    api.asked.clear()
    assert invoke(("prices", "update", "--region", "eu-north-1", "--region", "us-east-1", "--dry-run")) == 0
    assert [each["Filters"][1]["Value"] for each in api.asked] == ["eu-north-1", "us-east-1"]


def test_a_refusal_names_the_right_that_is_missing_and_leaves_the_list(
    api: PricingApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    api.refuse = True
    assert invoke(("prices", "update")) == 1
    said = capsys.readouterr().err
    assert "pricing:GetProducts was refused (AccessDeniedException)" in said
    assert "hint: these credentials lack the right pricing:GetProducts" in said
    assert not (tmp_path / "home").exists()
