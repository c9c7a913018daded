"""What was stored where, as people see it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Cli

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


WRITES = """
    import os, pathlib, tempfile
    def write(path, size):
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    for number in range(12):
        write(f"/tmp/outp/{number}", 100_000)
    write("/tmp/kept/inside/k", 7)
    write("runs/a/metrics.csv", 4)
    write("data/once", 5)
    for name in ("torchinductor_me/x", "matplotlib-ab/x", "pip-install-x/y", ".cache/z", "tmpab12cd_9/q", "empty"):
        write(f"/tmp/{name}", 0 if name == "empty" else 10)
    write("pkg/__pycache__/x.pyc", 10)
    write(tempfile.gettempdir() + "/small", 10)
    pathlib.Path("/tmp/outp/link").symlink_to("/etc")
"""


@pytest.mark.promise("artefacts", "files that would be lost are listed at the end; `keep` puts them into the output")
@pytest.mark.needs("namespaces")
def test_what_is_written_and_not_kept_is_told_and_what_is_below_the_working_directory_is_listed_and_copied(
    cli: Cli, job_file: Callable[..., str], tmp_path: Path
) -> None:
    job = job_file(WRITES, extra="    isolation: shared_network\nkeep: [/tmp/kept, data, /tmp/nothing]\n")
    result = cli("run", job, "--quiet")
    assert result.returncode == 0, result.stderr
    told = [line.strip() for line in result.stdout.splitlines() if "algo-1" in line]
    assert [line.partition(":")[0] for line in told] == [
        "12 files, 1.2 MB, in /tmp/outp on algo-1 were not kept",
        f"1 file, 4 bytes, in /opt/ml/code/runs on algo-1, below the working directory, are in {_tree(cli)}/code only",
    ]
    with tarfile.open(_tree(cli).parents[1] / "output" / "output.tar.gz") as archive:
        files = sorted(member.name for member in archive if member.isfile())
    assert files == ["algo-1/data/once", "algo-1/tmp/kept/inside/k"]
    copy, hint = tmp_path / "out/algo-1/code/runs/a/metrics.csv", "no file is written over: copy to another DIR"
    copied = cli("files", "small", "*/runs/*", "--to", str(tmp_path / "out"), "--output", "json")
    assert [file["path"] for file in json.loads(copied.stdout)["files"]] == [str(copy)]
    assert copy.read_bytes() == b"xxxx"
    again = cli("files", "small", "--to", str(tmp_path / "out"))
    assert (again.returncode, again.stderr) == (2, f"error: {copy} is there already\nhint: {hint}\n")
    assert not (tmp_path / "out" / "algo-1" / "code" / "data").exists(), "all or nothing"
    listed = cli("files", "small").stdout
    assert "algo-1/code/data/once" in listed
    assert "train.py" not in listed  # as it was sent


@pytest.mark.promise("artefacts", "the model of an earlier run of the name is replaced only after a confirmation")
def test_the_model_of_an_earlier_run_is_replaced_only_after_a_word_and_not_where_the_job_refuses(
    cli: Cli, job_file: Callable[..., str], tmp_path: Path
) -> None:
    save = """
        import os, pathlib, sys
        pathlib.Path(os.environ["SM_MODEL_DIR"], "m").write_text(str(sys.argv))
    """
    job = job_file(save, extra="    isolation: none\noutput_path: out\n")
    first = cli("run", job, "--quiet")
    assert (first.returncode, "earlier run" in first.stderr) == (0, False)
    model = tmp_path / "out" / "small" / "output" / "model.tar.gz"
    content = model.read_bytes()
    told = f"{model.parent} holds model.tar.gz of an earlier run of this name"
    refused = cli("run", job, "--quiet", "--set", "earlier_output=refuse")
    assert refused.returncode == 2
    assert f"error: output_path: {told}" in refused.stderr
    assert model.read_bytes() == content
    again = cli("run", job, "--quiet", "--set", "hyperparameters.epochs=3")
    assert (again.returncode, told in again.stderr) == (0, True)
    assert model.read_bytes() != content


def _tree(cli: Cli) -> Path:
    (run,) = cli.runs.glob("small-*")
    return run / "hosts" / "algo-1"
