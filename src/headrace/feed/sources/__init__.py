"""Counted sources: shards with an index, so that a plan position is a shard and a row, and nothing is read to skip.

source         what all of them are: rows by number, `.map`, `.batch`
byte_ranges    reads pieces of one file
shard_format   what is known of one kind of shard: how it is indexed and read
tar_shards, json_lines, arrow_rows, parquet_shards, arrow_shards     the kinds
shard_objects  the same of objects of a store, by ranged GETs
object_stores  the stores: S3, Google Cloud Storage, Azure, web servers; obstore reads them
shard_index    the file that an index is kept in
index_shards   makes an index, in several processes (index_program)
shard_files    a folder of shards as a source
hugging_face   a dataset of the library `datasets` as a source
open_source    `feed.tar`, `feed.jsonl`, `feed.parquet`, `feed.arrow`, `feed.hf`
"""
