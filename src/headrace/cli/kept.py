"""What a run has kept and where, in words: for the end of `headrace run` and for `headrace status`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.runs import ArtefactsStored

MOST_CLASHES = 5


def kept_lines(artefacts: Sequence[ArtefactsStored]) -> Iterator[str]:
    """Yields a line for each place with files, and one for each file that is not there as its host made it.

    >>> list(kept_lines([ArtefactsStored(t=1.0, name="model", uri="s3://b/model.tar.gz", files=2, bytes=10)]))
    ['model: s3://b/model.tar.gz (2 files)']
    """
    for stored in artefacts:
        if not stored.files:
            continue
        yield f"{stored.name}: {stored.uri} ({stored.files} file{'s' if stored.files > 1 else ''})"
        for clash in stored.clashes[:MOST_CLASHES]:
            others = ", ".join(clash.dropped)
            yield f"{stored.name}: {clash.path} of {others} has other content and was left out; {clash.kept}'s is kept"
        if stored.clash_count > MOST_CLASHES:
            yield f"{stored.name}: {stored.clash_count - MOST_CLASHES} more files were left out in the same way"
        for path in stored.left_out[:MOST_CLASHES]:
            yield f"{stored.name}: {path} is no file that can be stored"
