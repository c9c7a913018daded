"""Counted sources: shards with an index, so that a plan position is a shard and a row, and nothing is read to skip.

source         what all of them are: rows by number, `.map`, `.batch`
byte_ranges    what a shard and a kind of shard are; reads pieces of one file
tar_shards, json_lines, parquet_shards, arrow_shards     the kinds, see `KINDS`
shard_objects  the same of objects of a store (S3, Google Cloud Storage, Azure, web servers), which obstore reads
shard_index    the file that an index is kept in
index_shards   makes an index, in several processes
open_source    a folder of shards as a source; `feed.hf`
"""

KINDS = {
    "tar": "headrace.feed.sources.tar_shards",
    "jsonl": "headrace.feed.sources.json_lines",
    "parquet": "headrace.feed.sources.parquet_shards",
    "arrow": "headrace.feed.sources.arrow_shards",
}
"""The kinds of shards by name: `feed.NAME`, the kind in `headrace feed index`, and the usual ending of its files. Each
has a module with the functions `NAME(folder, pattern)` and `index(path)`, and a `Format` (`byte_ranges`)."""
