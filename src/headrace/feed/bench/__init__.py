"""Measurements of the feed on one machine: a feed server on loopback, the contenders, and the windows that time them.

`headrace feed bench` shows them, `headrace doctor` measures a batch's way over TCP with the same server, and the
repository's `bench/feed` builds its rows on the same contenders.
"""
