"""Counted sources: shards with an index, so that a plan position is a shard and a row, and nothing is read to skip.

source         what all of them are: rows by number, `.map`, `.batch`
byte_ranges    what a shard and a kind of shard are; reads pieces of one file
tar_shards, json_lines, parquet_shards, arrow_shards     the kinds
shard_objects  the same of objects of a store (S3, Google Cloud Storage, Azure, web servers), which obstore reads
shard_index    the file that an index is kept in
index_shards   makes an index, in several processes
open_source    `feed.tar`, `feed.jsonl`, `feed.parquet`, `feed.arrow`, `feed.hf`
"""
