"""The page over records in which something else lies in the place of a file: it answers, and shows the others."""

from __future__ import annotations

from pathlib import Path

from page_server import Ui, start_ui

from hostile_records import KINDS, hostile_runs, written


def test_the_page_answers_over_records_of_anything(home: Path) -> None:
    whole = written(home / "runs", "whole")
    runs = [paths for kind in KINDS for paths in hostile_runs(home / "runs", kind)]
    ui: Ui = start_ui(home)
    try:
        listed = ui.client.get(ui.url("/api/runs"))
        assert listed.status_code == 200, listed.text
        assert whole.id in listed.text
        assert ui.client.get(ui.url("/api/unreadable")).status_code == 200
        asked = ("status", "report", "timeline", "metrics", "logs")
        for number, paths in enumerate([whole, *runs]):
            answer = ui.client.get(ui.url(f"/api/runs/{paths.id}/{asked[number % len(asked)]}"))
            assert answer.status_code in (200, 404, 422), (paths.id, answer.status_code, answer.text)
        assert (answer := ui.client.get(ui.url(f"/api/runs/{whole.id}/status"))).status_code == 200, answer.text
    finally:
        assert ui.stop() == 0
