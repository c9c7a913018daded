"""Pages of logs: any place of any file, in order, nothing twice, nothing left out, never the whole in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.runs import LogWriter, RunPaths, Selector, Stream, log_pages
from headrace.runs.log_pages import LINE_BYTES, LogFile, LogPage, LogQuery, ReadBudget, clean, page_at, page_from

T = 1_795_201_200.0
RANK, FEED = Stream("dnn", "algo-2", "0"), Stream("data", "algo-1", "feed")


def write(paths: RunPaths, stream: Stream, lines: list[tuple[float, str]]) -> None:
    with LogWriter(paths.log(stream)) as log:
        for t, text in lines:
            log.write_line("o", text.encode(), t)


def texts(page: LogPage) -> list[str]:
    return [line.text for line in page.lines]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "run")
    write(made, RANK, [(T + index, f"step {index}") for index in range(100)])
    write(made, FEED, [(T + 0.5 + 10 * index, f"served {index}") for index in range(10)])
    return made


def test_the_last_lines_of_all_streams_come_in_the_order_of_time(paths: RunPaths) -> None:
    page = page_at(paths, LogQuery(limit=4), None)
    assert texts(page) == ["step 96", "step 97", "step 98", "step 99"]
    assert (page.first, page.last) == (False, True)
    assert page.streams == [FEED, RANK]
    earlier = page_from(paths, LogQuery(limit=8), page.before, forwards=False)
    assert texts(earlier) == [f"step {index}" for index in (89, 90)] + ["served 9"] + [
        f"step {index}" for index in range(91, 96)
    ]


def test_pages_forwards_and_backwards_show_every_line_once(paths: RunPaths) -> None:
    whole = texts(page_at(paths, LogQuery(limit=1000), T))
    assert len(whole) == 110
    page, found = page_at(paths, LogQuery(limit=7), 0.0), []
    while page.lines:
        found += texts(page)
        page = page_from(paths, LogQuery(limit=7), page.after, forwards=True)
    assert page.last
    assert found == whole
    page, found = page_at(paths, LogQuery(limit=7), None), []
    while page.lines:
        found = texts(page) + found
        page = page_from(paths, LogQuery(limit=7), page.before, forwards=False)
    assert page.first
    assert found == whole


def test_a_moment_is_found_and_what_precedes_it_may_come_too(paths: RunPaths) -> None:
    assert texts(page_at(paths, LogQuery(limit=3), T + 50.2)) == ["served 5", "step 51", "step 52"]
    assert texts(page_at(paths, LogQuery(limit=2), T + 50.2, back=2)) == ["step 49", "step 50", "served 5", "step 51"]
    assert texts(page_at(paths, LogQuery(limit=2), T + 1e6)) == []


def test_streams_and_words_are_chosen(paths: RunPaths) -> None:
    assert texts(page_at(paths, LogQuery(Selector(group="data"), limit=2), None)) == ["served 8", "served 9"]
    assert texts(page_at(paths, LogQuery(Selector(host="algo-2", name="0"), limit=1), None)) == ["step 99"]
    assert texts(page_at(paths, LogQuery(text="STEP 9", limit=50), 0.0)) == [
        "step 9",
        *(f"step 9{i}" for i in range(10)),
    ]
    assert texts(page_at(paths, LogQuery(Selector(group="none")), None)) == []


def test_lines_that_come_later_and_new_streams_follow(paths: RunPaths) -> None:
    page = page_at(paths, LogQuery(), None)
    assert page_from(paths, LogQuery(), page.after, forwards=True).last
    write(paths, RANK, [(T + 200, "more")])
    write(paths, Stream("dnn", "algo-3", "1"), [(T + 201, "hello")])
    assert texts(page_from(paths, LogQuery(), page.after, forwards=True)) == ["more", "hello"]


def test_a_torn_last_line_is_kept_back_and_a_damaged_one_is_shown_as_that(paths: RunPaths) -> None:
    with paths.log(FEED).open("ab") as file:
        file.write(b"\xff\xfe<b>no stamp</b>\n2026-11-20T19:05:00.000000Z o torn")
    page = page_at(paths, LogQuery(Selector(group="data"), limit=2), None)
    assert [(line.kind, line.t is None, line.text) for line in page.lines] == [
        ("stdout", False, "served 9"),
        ("damaged", True, "\ufffd\ufffd<b>no stamp</b>"),
    ]
    assert texts(page_at(paths, LogQuery(Selector(group="data"), limit=9), T + 90.2))[0] == "served 9"


def test_a_huge_line_is_cut_and_says_how_much_is_left_out(paths: RunPaths) -> None:
    write(paths, FEED, [(T + 300, "x" * 300_000), (T + 301, "after")])
    for page in (page_at(paths, LogQuery(limit=3), None), page_at(paths, LogQuery(limit=9), T + 299)):
        huge, after = page.lines[-2:]
        assert (huge.text, huge.cut, after.text) == ("x" * LINE_BYTES, 300_000 - LINE_BYTES, "after")


def test_a_search_reads_so_much_at_once_and_says_where_to_go_on(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pages, "SEARCH_BYTES", 1000)
    monkeypatch.setattr(log_pages, "CHUNK", 256)
    for forwards in (True, False):
        page = page_at(paths, LogQuery(text="step 50"), 0.0 if forwards else None)
        asked = 1
        while not page.lines:
            assert page.bytes_read < 2000
            assert not (page.last if forwards else page.first)
            page = page_from(
                paths, LogQuery(text="step 50"), page.after if forwards else page.before, forwards=forwards
            )
            asked += 1
        assert texts(page) == ["step 50"]
        assert asked > 1


def test_a_line_longer_than_all_that_is_read_at_once_does_not_stop_a_search(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pages, "SEARCH_BYTES", 1000)
    write(paths, FEED, [(T + 300, "x" * 300_000), (T + 301, "needle")])
    page, cursors = page_at(paths, LogQuery(text="needle"), 0.0), []
    while not page.lines:
        assert page.after not in cursors
        cursors.append(page.after)
        page = page_from(paths, LogQuery(text="needle"), page.after, forwards=True)
    assert texts(page) == ["needle"]


@settings(deadline=None)  # a busy machine takes longer
@given(st.data())
def test_any_place_of_any_file_in_any_pieces(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("any"))
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 30, 200, 5000]), min_size=1, max_size=30))
    write(paths, RANK, [(T + index, f"{index:04d}" + "." * length) for index, length in enumerate(lengths)])
    chunk = data.draw(st.sampled_from([64, 300, 4096, 1 << 16]))
    before = log_pages.CHUNK
    log_pages.CHUNK = chunk
    log = LogFile(paths.log(RANK), RANK)
    try:
        forwards = list(log.lines(0, ReadBudget(1 << 30), forwards=True))
        assert [line.text[:4] for line in forwards] == [f"{index:04d}" for index in range(len(lengths))]
        assert [line.at for line in forwards] == [
            line.at for line in reversed(list(log.lines(log.size, ReadBudget(1 << 30), forwards=False)))
        ]
        moment = data.draw(st.floats(-1, len(lengths)))
        first = next((line.at for line in forwards if line.t is not None and line.t >= T + moment), log.size)
        assert log.seek(T + moment) == first
    finally:
        log.close()
        log_pages.CHUNK = before


def test_control_sequences_are_taken_out() -> None:
    assert (
        clean("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x1b\\ \x9b2Jend\tx\r\x00\u202e!")
        == "red link 2Jend\tx!"
    )


def test_a_page_has_a_limit() -> None:
    with pytest.raises(UsageError, match="1 to 1000 lines"):
        LogQuery(limit=1001)
