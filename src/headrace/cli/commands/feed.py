"""`headrace feed`: the feed without a job. Servers by hand, their secret, how they are, indexes, a measurement."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import output_option
from headrace.errors import FeedError, UsageError
from headrace.feed.identifiers import CA_VARIABLE, FEED_VARIABLE, SECRET_VARIABLE
from headrace.feed.sources import KINDS

if TYPE_CHECKING:
    from headrace.feed.wire.endpoints import Endpoints


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str) -> int:
    """Reads a number of bytes as people write it; units are powers of 1024.

    >>> size("1.5 GiB"), size("512M")
    (1610612736, 536870912)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{text!r} is not a size, e.g. 512M or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2]])


_secret_option = click.option(
    "--secret-file",
    envvar=SECRET_VARIABLE,
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="File with the secret that servers and trainers share.",
)


@click.group("feed", short_help="Data workers by hand: serve, status, bench, index, secret.")
def feed() -> None:
    """Data workers on your own hosts, without a job.

    \b
    Examples:
      headrace feed secret feed.secret                       once; the same file on every host
      headrace feed serve --secret-file feed.secret          on every host with data workers
      headrace feed status 127.0.0.1:7070 --secret-file feed.secret
      headrace feed index /data/train                        count the rows of shards before a job
      headrace feed bench                                    how fast is it here?
    """


@feed.command("secret", short_help="Make the secret that servers and trainers share.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def secret(file: Path | None) -> None:
    """Write a new random secret to FILE, which only you may read (mode 0600), or print it.

    \b
    Examples:
      headrace feed secret feed.secret
      headrace feed secret | kubectl create secret generic headrace-feed --from-file=secret=/dev/stdin
    """
    import secrets

    text = secrets.token_hex(32) + "\n"
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(
            f"{file} exists already", hint="use it, or remove it first; servers that run keep the secret they read"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as out:
        out.write(text)


@feed.command("index", short_help="Make the index of shards before a job needs it.")
@click.argument("source")
@click.option("--pattern", help="Pattern of the shards' names, as the code gives it. Default: *.KIND.")
@click.option("--kind", type=click.Choice(list(KINDS)), help="Default: the ending of --pattern, or tar.")
def index(source: str, pattern: str | None, kind: str | None) -> None:
    """Count the rows of the shards in SOURCE, a folder or a prefix of an object store (s3://bucket/prefix/).

    The index is kept where the data's users look for it: beside the shards, or in $XDG_CACHE_HOME/headrace. Shards
    that are in it already are not counted again. Kind and pattern must be those of the code (feed.tar, feed.jsonl).

    \b
    Examples:
      headrace feed index /data/train
      headrace feed index s3://bucket/train/ --pattern '**/*.parquet'
    """
    from headrace import feed

    ending = pattern.rpartition(".")[2] if pattern is not None else "tar"
    if kind is None and ending not in KINDS:
        raise UsageError(f"of what kind are shards {pattern!r}?", hint=f"--kind {', '.join(KINDS)}")
    kind = kind or ending
    rows = getattr(feed, kind)(source, f"*.{kind}" if pattern is None else pattern)
    click.echo(f"{len(rows)} rows in {source}")


@feed.command("serve", short_help="Serve data workers on this host.")
@click.option("--bind", default="127.0.0.1:7070", show_default=True, metavar="IP:PORT", help="Where to listen.")
@click.option(
    "--executors",
    type=click.IntRange(1),
    help="Worker processes. Default: one for each core that this process may use.",
)
@_secret_option
@click.option(
    "--code",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the pipelines' code; may be repeated. Default: the current directory.",
)
@click.option("--nice", type=click.IntRange(0, 19), default=0, help="Niceness of the worker processes.")
@click.option(
    "--memory",
    type=size,
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="Memory limit for results that wait to be sent.",
)
@click.option("--host-name", "host", help="Name of this host in messages. Default: its own.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate, PEM: connections are TLS 1.3.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its private key, PEM.")
@click.option(
    "--advertise",
    "advertised",
    multiple=True,
    metavar="IP:PORT",
    help="Address that trainers dial to get here, where it is another one: a forwarded port. May be repeated.",
)
@click.option("--metrics-port", "metrics", default="", metavar="[IP:]PORT", help="Serve metrics for Prometheus there.")
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: when it is ready, one document on one line of standard output and nothing else.",
)
def serve(
    secret_file: Path | None,
    executors: int | None,
    code: tuple[Path, ...],
    host: str | None,
    output: str,
    **options_of_server: Any,
) -> None:
    """Serve data workers on this host until Ctrl-C or SIGTERM.

    One line says when it is ready, and what the trainer's DataLoader needs as `workers=`. With --output json the
    line is a document with `workers` (that address), `executors`, `host`, `pid` and `tls`.

    \b
    Examples:
      headrace feed serve --secret-file feed.secret
      headrace feed serve --secret-file feed.secret --bind 127.0.0.1:0 --output json > ready.json &
      headrace feed serve --bind 0.0.0.0:7070 --executors 8 --secret-file feed.secret --code ~/project
    """
    from headrace.control_group import usable_cores
    from headrace.feed.serve import serve as run
    from headrace.feed.worker.feed_server import ServeOptions

    if secret_file is None:
        raise UsageError(
            "a feed server needs a secret",
            hint=f"headrace feed secret FILE, then --secret-file FILE or {SECRET_VARIABLE}=FILE; the same file on all "
            "hosts",
        )
    name = host or socket.gethostname()
    options = ServeOptions(
        executors=executors or usable_cores(),
        secret_file=secret_file,
        code=tuple(directory.absolute() for directory in code or (Path.cwd(),)),
        host=name,
        **options_of_server,
    )

    serving = False

    def ready(ip: str, port: int) -> None:
        nonlocal serving
        serving = True
        if options.tls_cert is None:
            _warn_of_plain_text(ip)
        workers = f"tcp://{_reachable(ip, name)}:{port}"
        if output == "json":
            document = {"workers": workers, "executors": options.executors, "host": name, "pid": os.getpid()}
            click.echo(json.dumps(document | {"tls": options.tls_cert is not None}))
        else:
            click.echo(f'ready, executors: {options.executors}; in the trainer: workers="{workers}"')

    try:
        run(options, ready)
    except FeedError as error:
        if serving:
            raise
        raise UsageError(error.message, error.hint) from error


def _warn_of_plain_text(ip: str) -> None:
    import ipaddress

    if not ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
        click.echo(
            f"warning: it listens on {ip} without TLS: clients are authenticated, but data is not encrypted; "
            "see --tls-cert",
            err=True,
        )


def _reachable(ip: str, host: str) -> str:
    """Returns how others reach this host: its name when it listens on every address."""
    if ip in ("0.0.0.0", "::"):
        return host
    return f"[{ip}]" if ":" in ip else ip


@feed.command("status", short_help="Ask feed servers what they are doing.")
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@_secret_option
@click.option("--tls-ca", envvar=CA_VARIABLE, show_envvar=True, help="CA that signed the servers' certificates.")
@click.option("--timeout", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds for each server.")
@output_option
def status(
    addresses: tuple[str, ...], secret_file: Path | None, tls_ca: str | None, timeout: float, output: str
) -> int:
    """Show executors, clients, queue and rates of the feed servers at ADDRESS (host:port), or those of HEADRACE_FEED.

    Exit code 1 if one of them cannot be reached or refuses.

    \b
    Examples:
      headrace feed status h1:7070 h2:7070 --secret-file feed.secret
      HEADRACE_FEED=tcp://h1:7070,h2:7070 headrace feed status --output json
    """
    from headrace.cli.options import answer
    from headrace.cli.views.feed_tables import status_document
    from headrace.feed.client.remote_pool import inquire

    answers = inquire(_endpoints(addresses, secret_file, tls_ca), timeout)
    values = [
        {"address": each.endpoint.address, "error": each.reason or None, "status": _plain(each.status)}
        for each in answers
    ]
    answer(values, output, lambda: status_document(answers))
    return int(any(each.status is None for each in answers))


def _endpoints(addresses: tuple[str, ...], secret_file: Path | None, tls_ca: str | None) -> Endpoints:
    from headrace.feed.wire.endpoints import Endpoints

    source = ",".join(addresses) or os.environ.get(FEED_VARIABLE, "")
    if source in ("", "local"):
        raise UsageError("which feed servers?", hint=f"headrace feed status h1:7070 h2:7070, or set {FEED_VARIABLE}")
    if addresses and not source.startswith(("tcp://", "unix:")):
        source = f"tcp://{source}"
    try:
        return Endpoints(source, str(secret_file) if secret_file is not None else None, tls_ca)
    except FeedError as error:
        raise UsageError(error.message, error.hint) from error


def _plain(value: object) -> object:
    """Returns a message as dict and list, with the names of its fields."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@feed.command("bench", short_help="Measure the feed here, beside torch's DataLoader and the machine's limits.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Windows for each contender.")
@click.option("--seconds", type=click.FloatRange(0.05), default=1.0, show_default=True, help="Length of a window.")
@click.option("--shape", "chosen", multiple=True, help="Only batches of this shape, e.g. '19 MB'; may be repeated.")
@click.option(
    "--output", type=click.Choice(["text", "json", "csv"]), default="text", help="csv: the windows, one a line."
)
def bench(rounds: int, seconds: float, chosen: tuple[str, ...], output: str) -> None:
    """Measure how fast batches arrive: over shared memory, over TCP on loopback, from torch's DataLoader.

    It takes about a minute and needs only torch. The rows "limit" show what the machine can do, without a loader.
    Look at the ratios: other load on the machine slows all rows.

    \b
    Examples:
      headrace feed bench
      headrace feed bench --rounds 10 --shape '19 MB' --output csv > windows.csv
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the feed's loader needs torch, which is not installed", hint="pip install torch")
    from headrace.cli.options import answer
    from headrace.cli.views.feed_tables import bench_document
    from headrace.cli.views.terminal import Terminal
    from headrace.measuring.windows import SHAPES, machine, measure, summarise

    unknown = sorted(set(chosen) - {shape.name for shape in SHAPES})
    if unknown:
        raise UsageError(f"no shape {unknown[0]!r}", hint=f"one of {', '.join(repr(shape.name) for shape in SHAPES)}")
    facts = machine()
    terminal = Terminal.standard(err=True)
    try:
        windows = measure(
            [shape for shape in SHAPES if not chosen or shape.name in chosen], rounds, seconds, terminal.below
        )
    finally:
        terminal.below("")
        terminal.flush()
    if output == "csv":
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(field.name for field in dataclasses.fields(windows[0]))
        lines.writerows(map(dataclasses.astuple, windows))
        return
    summaries = summarise(windows)
    values = {"machine": facts, "summary": list(map(dataclasses.asdict, summaries))}
    answer(
        values | {"windows": list(map(dataclasses.asdict, windows))}, output, lambda: bench_document(summaries, facts)
    )
