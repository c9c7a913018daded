"""The value of a line of JSON is what Python's json reads; what that refuses is named with file and row."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from headrace import feed
from headrace.errors import ShardError

READ = [
    b'{"loss": NaN}', b"[NaN, Infinity, -Infinity]", b'{"x": 1e400, "y": -1e400, "z": 1e-400}', b'{"a": 1, "a": 2}',
    b'"\xe2\x80\xa8 \xc2\x85 \x7f"', b"123456789012345678901234567890", b"-0.0", b" \t[1] \r", b'{"": null}',
    b'{"a\\u0000b": "\\u0000"}', b'"\\ud83d\\ude00"', b'{"text": "cut \\ud83d"}', b'"\\ude00\\ud83d"',
    b'{"\\ud83d": ["\\ud83d", 1]}', b"[" * 100 + b"]" * 100,
]  # fmt: skip
REFUSED = [
    b'{"text": "caf\xe9"}', b'"\xed\xa0\xbd"', b'{"caf\xe9": 1}', b"{'a': 1}", b'{"a": 1,}', b"[1] [2]", b'{"a": ',
    b"nan", b'"\t"', b"01", b"\xef\xbb\xbf1", b"\xff\xfe1\x00", b"1" * 5_000, b"[" * 100_000, b"a,b,c", b"\x0b",
    b"\xc2\xa0", b"1\r2",
]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 1])
def test_a_line_is_what_python_s_json_reads(workers: int, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(READ))
    with feed.DataLoader(feed.jsonl(tmp_path), None, num_workers=workers) as loader:
        assert [repr(value) for value in loader] == [repr(json.loads(line)) for line in READ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_line_that_python_s_json_refuses_is_named_with_file_and_row(workers: int, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n\n".join([b'"whole"', *REFUSED, b'"whole"']))
    source = feed.jsonl(tmp_path)
    assert len(source) == len(REFUSED) + 2
    with feed.DataLoader(source, None, num_workers=workers, on_error="skip", seed=1) as loader:
        assert list(loader) == ["whole", "whole"]
        skipped = loader.skipped
    assert [left_out.key for left_out in skipped] == list(range(1, len(REFUSED) + 1))
    for row, line in enumerate(REFUSED, 1):
        with pytest.raises(ShardError, match=rf"a\.jsonl at offset \d+, row {row}: "):
            source[row]
        with pytest.raises((ValueError, RecursionError)):
            json.loads(line.decode())


@pytest.mark.promise(
    "feed-formats", "a line of JSON is what Python's `json` reads; a wrong one is named by file and row"
)
def test_any_line_is_what_python_s_json_reads_or_refused(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    leaves = [None, True, 0, -1, 2**70, 0.5, 1e300, math.nan, -math.inf, "", "ä\u2028", "\ud83d", "\U0001f600", '"\\\n']

    def value(depth: int) -> Any:
        kind = chance.randrange(4) if depth else 0
        if kind < 2:
            return chance.choice(leaves)
        values = [value(depth - 1) for _ in range(chance.randrange(3))]
        return values if kind == 2 else {str(chance.choice(leaves)): item for item in values}

    lines = []
    for _ in range(3_000):
        text = bytearray(json.dumps(value(3), ensure_ascii=chance.random() < 0.7).encode("utf-8", "surrogatepass"))
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            at = chance.randrange(len(text) + 1)
            text[at : at + chance.randrange(2)] = chance.choice([b"", b"\xff", b"\\", b'"', b"1", b"e9", b" ", b"\xc3"])
        lines.append(bytes(text).replace(b"\n", b" ") if text.strip() else b"0")
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    source = feed.jsonl(tmp_path)
    assert len(source) == len(lines)
    refused = 0
    for row, line in enumerate(lines):
        expected = error = None
        try:
            expected = json.loads(line.decode())
        except ValueError as problem:
            error = problem
        if error is not None:
            refused += 1
            with pytest.raises(ShardError, match=rf"a\.jsonl at offset \d+, row {row}: "):
                source[row]
        else:
            assert repr(source[row]) == repr(expected), line
    assert 100 < refused < 2_900
