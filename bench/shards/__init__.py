"""Shards through the feed and through its peers."""
