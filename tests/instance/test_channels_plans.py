"""What is decided about channels without touching anything: names, shares, orders, manifests, framing."""

from __future__ import annotations

import itertools
import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.instance.channels import pipes
from headrace.instance.channels.object_listing import Ref, check_names, name_of, parse_augmented, parse_manifest
from headrace.instance.channels.pipes import share, shuffled
from headrace.instance.channels.stage_orders import ChannelOrder, StageOrder, read_order, write_orders


@pytest.mark.parametrize(
    ("prefix", "key", "name"),
    [
        ("data/", "data/x/a.csv", "x/a.csv"),
        ("data", "data/x/a.csv", "x/a.csv"),
        ("data/x", "data/x1/a.csv", "x1/a.csv"),
        ("data/x", "data/xyz", "xyz"),
        ("da", "data/x/a.csv", "data/x/a.csv"),
        ("data/a.csv", "data/a.csv", "a.csv"),
        ("a.csv", "a.csv", "a.csv"),
        ("", "data/a.csv", "data/a.csv"),
        ("data/", "data/", ""),
        ("data", "data/x/", ""),
    ],
)
def test_a_file_lies_where_the_writer_of_the_prefix_expects_it(prefix, key, name) -> None:
    assert name_of(key, prefix) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a//b", "empty part"),
        ("../b", "'..'"),
        ("a/./b", "'.'"),
        ("/etc/passwd", "empty part"),
        ("a\0b", "zero byte"),
        ("x" * 256, "longer than 255"),
        ("\udcff", "UTF-8"),
    ],
)
def test_a_key_that_can_be_no_file_is_named(name, why) -> None:
    with pytest.raises(UsageError, match=why):
        check_names("train", [("fine", "fine"), (name, f"key {name}")])


@pytest.mark.parametrize(
    "named",
    [
        [("a.csv", "train/a.csv"), ("a.csv", "train.d/a.csv")],
        [("a", "train/a"), ("a/b", "train/a/b")],
        [("a/b/c", "1"), ("a/b", "2")],
    ],
)
def test_two_keys_for_one_place_are_named(named) -> None:
    with pytest.raises(UsageError) as error:
        check_names("train", named)
    assert all(repr(key) in error.value.message for _, key in named)


@pytest.mark.promise("channels", "shards of a channel are a fair partition")
@given(st.lists(st.text(), unique=True), st.integers(1, 9))
def test_shares_are_a_partition_that_is_fair(keys, hosts) -> None:
    shares = [share(keys, place, hosts) for place in range(hosts)]
    assert sorted(itertools.chain(*shares)) == sorted(keys)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [len(each) for each in shares] == sorted((len(each) for each in shares), reverse=True)


def test_an_epoch_has_an_order_of_its_own_that_is_always_the_same() -> None:
    items = [f"part-{number}" for number in range(20)]
    expected = list(items)
    random.Random(7 + 2).shuffle(expected)
    assert shuffled(items, 7, 2) == expected
    assert shuffled(items, 7, 3) != expected
    assert shuffled(items, None, 3) == items


def test_a_shuffled_sharded_channel_deals_again_every_epoch() -> None:
    items = list(range(40))
    epochs = [set(share(shuffled(items, 1, epoch), 0, 2)) for epoch in range(2)]
    assert epochs[0] != epochs[1]


def test_a_record_is_what_dmlc_says() -> None:
    for data in (b"", b"a", b"abcd", b"abcde"):
        record = pipes.record_header(len(data)) + data + pipes.record_padding(len(data))
        assert len(record) % 4 == 0
        magic, length = struct.unpack("<II", record[:8])
        assert (magic, length) == (0xCED7230A, len(data))
        assert record[8 + len(data) :] == b"\0" * (-len(data) % 4)
    with pytest.raises(ValueError, match="more than"):
        pipes.record_header(1 << 29)


def test_a_manifest_appends_its_entries_to_the_prefix() -> None:
    manifest = parse_manifest("c", b'[{"prefix": "s3://b/some/pre"}, "fix/a", "/b"]', "s3://b/m")
    assert (manifest.prefix, manifest.suffixes) == ("s3://b/some/pre", ("fix/a", "/b"))
    local = parse_manifest("c", b'[{"prefix": "images/"}, "a"]', "/data/m.json")
    assert local.prefix == "/data/images/"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[", "no JSON"),
        (b"{}", "list that begins"),
        (b"[]", "list that begins"),
        (b'["a"]', "list that begins"),
        (b'[{"prefix": 3}, "a"]', "list that begins"),
        (b'[{"prefix": "s3://b/"}]', "names no object"),
        (b'[{"prefix": "s3://b/"}, 3]', r"entry 1 must be a text \(got 3\)"),
        (b'[{"prefix": "s3://b/"}, "a", "a"]', "'a' twice"),
        (b'[{"prefix": "gs://b/"}, "a"]', "gs://b/"),
        (b'[{"prefix": "file:///etc/"}, "a"]', "no s3:// URI"),
    ],
)
def test_what_is_no_manifest_is_told(content, message) -> None:
    if b"file:" in content:
        assert parse_manifest("c", content, "/m").prefix == "/etc/"  # fine in a manifest of this machine
        return
    with pytest.raises(UsageError, match=message):
        parse_manifest("c", content, "s3://b/m")


def test_an_augmented_manifest_delivers_the_attributes_that_are_asked_for() -> None:
    lines = [
        {"source-ref": "s3://b/1.jpg", "label": 3, "text": "ü", "boxes": [{"a": 1}], "other": 0},
        {"source-ref": "s3://b/2.jpg", "label": None, "text": "", "boxes": []},
    ]
    data = "\n".join(json.dumps(line) for line in lines).encode() + b"\n\n"
    first, second = parse_augmented("c", data, "s3://b/m", ["label", "source-ref", "boxes", "text"])
    assert first.parts == (b"3", Ref("s3://b/1.jpg"), b'[{"a":1}]', "ü".encode())
    assert second.parts == (b"null", Ref("s3://b/2.jpg"), b"[]", b"")
    assert (first.number, second.number) == (1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{', "m:2: no JSON"),
        (b"[1]", "m:1: must be a JSON object"),
        (b'{"b": 1, "c": 2}', "m:1: no attribute 'a'; there is 'b', 'c'"),
        (b"\n", "no line"),
    ],
)
def test_a_bad_line_is_named(content, message) -> None:
    with pytest.raises(UsageError, match=message):
        parse_augmented("c", content, "m", ["a"])


def test_a_reference_must_be_one() -> None:
    with pytest.raises(UsageError, match="source-ref must be the URI"):
        parse_augmented("c", b'{"source-ref": 3}', "s3://b/m", ["source-ref"])


def test_orders_survive_their_files_and_only_served_channels_are_ordered_to_be_served(tmp_path) -> None:
    file = ChannelOrder("f", "s3://b/f", ("algo-1", "algo-10"), distribution="ShardedByS3Key")
    fast = ChannelOrder("g", "s3://b/g", ("algo-1",), input_mode="FastFile")
    local = ChannelOrder("h", "/h", ("algo-1",), input_mode="FastFile", distribution="ShardedByS3Key")
    pipe = ChannelOrder("p", "/p", ("algo-1",), input_mode="Pipe", seed=3)
    order = StageOrder("run", str(tmp_path), {"algo-1": "/1", "algo-10": "/10"}, (file, fast, local, pipe))
    write_orders(order, tmp_path)
    assert read_order(tmp_path, "stage") == order
    assert read_order(tmp_path, "serve_channels").channels == (fast, pipe)
    assert [file.place(host) for host in file.hosts] == [0, 1]
    assert (file.shares, fast.shares) == (2, 1)
    assert not any(each.is_link for each in order.channels)
    assert ChannelOrder("l", "/l", ("algo-1",), input_mode="FastFile").is_link
