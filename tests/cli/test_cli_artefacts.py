"""What was stored where, as people see it."""

from __future__ import annotations

from headrace.cli.views.run_screen import CLASHES, artefact_lines
from headrace.runs import ArtefactsStored, Clash


def test_places_clashes_and_what_was_left_out_are_shown() -> None:
    clashes = tuple(Clash(f"f{number}", "algo-1", ("algo-2", "algo-3")) for number in range(CLASHES + 2))
    model = ArtefactsStored(
        t=0, name="model", uri="s3://b/model.tar.gz", files=1, bytes=3 << 20, clashes=clashes, clash_count=12,
        left_out=("algo-2:socket",),
    )  # fmt: skip
    lines = list(artefact_lines([model, ArtefactsStored(t=0, name="output", uri="/o", files=2, bytes=0)]))
    assert lines[0] == "model: s3://b/model.tar.gz (1 file, 3.0 MiB)"
    assert lines[1] == "warning: model: f0 differs: that of algo-1 was kept, not that of algo-2, algo-3"
    assert len(lines) == 1 + CLASHES + 3
    assert lines[-3:] == [
        "warning: model: 2 more files differ between hosts",
        "warning: model: left out, no files: algo-2:socket",
        "output: /o (2 files, 0.0 MiB)",
    ]
