"""The feed measured against its peers, on the same work, in one session.

    python -m bench.feed                       every row; raw CSV and machine description go to bench/results/
    python -m bench.feed --rows shm19,tcp19    some rows
    python -m bench.feed sweep                 the peers over their settings; the next runs take the best
    python -m bench.feed table FILE.csv        the table of a run again, from its raw data
    python -m bench.feed plot FILE.csv speed.svg
    python -m bench.feed publish FILE.csv      writes the table, where we lose, and the picture into docs/

A *row* is one line of the table: a piece of work, the contenders that do it, and the figures that follow. Each row runs
in a process of its own, so that nothing is left over from another. A *contender* is one way to do the work: headrace,
a peer, or a limit (memcpy, a raw socket). `bench.feed.measure` describes how they are timed.
"""
