"""Pipelines, functions and places by name."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import feed_data
import msgspec
import pytest
import torch
from feed_servers import free_port, write_secret

from headrace import feed
from headrace.errors import FeedError, PipelineError
from headrace.feed import DataLoader, Pipeline
from headrace.feed.pipelines.factory import encoded, function_name, load_factory, load_function
from headrace.feed.wire.endpoints import Endpoints, find
from headrace.instance.launch_plan import FeedHost, FeedHosts
from headrace.private_folders import write_atomically

HERE = Path(__file__).parent


@feed.pipeline
def several(a: int, b: Any = None, *, c: Any = 3, **rest: Any) -> Any:
    return (a, b, c, rest)


@feed.pipeline
class Made:
    def __init__(self, n: int = 2) -> None:
        self.n = n


@feed.pipeline
class Without:
    def __getitem__(self, index: int) -> int:
        return index


def test_a_marked_function_makes_a_pipeline_and_build_calls_the_function() -> None:
    named = several(1, c=[{"x": b"y"}], extra=2.5)
    assert named == Pipeline("test_feed_naming:several", {"a": 1, "c": [{"x": b"y"}], "extra": 2.5})
    assert named.build() == (1, None, [{"x": b"y"}], {"extra": 2.5})
    assert str(several(1, b="x")) == "test_feed_naming:several(a=1, b='x')"


def test_a_class_can_be_marked_too() -> None:
    assert Made(n=5).build().n == 5  # type: ignore[attr-defined]
    assert Made().factory == "test_feed_naming:Made"  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [object(), (1, 2), {1}, {1: 2}, [lambda: 0], {"x": Path()}, 1j])
def test_arguments_that_are_not_plain_data_are_refused_where_they_are_given(value: Any) -> None:
    with pytest.raises(PipelineError, match="argument 'b' must be plain data, got one of type") as error:
        several(1, b=value)
    assert "build the rest in the factory" in error.value.hint


def test_arguments_without_a_name_are_refused() -> None:
    @feed.pipeline
    def variable(*values: int) -> None: ...

    with pytest.raises(PipelineError, match="takes named arguments, 'values' is not"):
        variable(1)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        several()  # type: ignore[call-arg]


@pytest.mark.needs("torch")
def test_a_pipeline_says_what_it_is_where_torch_takes_it_for_a_dataset() -> None:
    import torch.utils.data as torch_data

    named = Pipeline("feed_data:flat")
    assert bool(named)
    assert not hasattr(named, "__len__")
    assert not hasattr(named, "__getitem__")
    assert pickle.loads(pickle.dumps(named)) == copy.copy(named) == named
    for use in (
        len,
        lambda data: data[0],
        list,
        lambda data: torch_data.DistributedSampler(data, 2, 0),
        torch_data.RandomSampler,
        lambda data: torch_data.DataLoader(data, shuffle=True),
        lambda data: next(iter(torch_data.DataLoader(data, sampler=range(3)))),
    ):
        with pytest.raises(TypeError, match=r"feed_data:flat.* is a name(.|\n)*global_batch_size=") as caught:
            use(named)
        assert isinstance(caught.value, PipelineError)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("feed_data:flat", "is not a pipeline"),
        ("os:system", "is not a pipeline"),
        ("feed_data:missing", "has no 'missing'"),
        ("feed_data:xyz", "has no 'xyz'(.|\\n)*define it in .*feed_data.py"),
        ("feed_data:flta", "has no 'flta'(.|\n)*did you mean 'flat'"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("feed_data", "is not of the form 'module:callable'"),
        (":f", "is not of the form"),
        ("feed_data:", "is not of the form"),
    ],
)
def test_a_worker_calls_marked_factories_only(reference: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        load_factory(reference)


def test_functions_are_taken_from_the_job_s_code_and_from_torch_only(tmp_path: Path) -> None:
    assert load_function("feed_data:collect", [HERE]) is feed_data.collect
    assert callable(load_function("torch.utils.data._utils.collate:default_collate", [tmp_path]))
    for reference in ("feed_data:collect", "os:system", "posix:system", "subprocess:run", "json:loads"):
        with pytest.raises(PipelineError, match="is not a function of the job's code"):
            load_function(reference, [tmp_path])
    for reference in (
        "feed_data:np.pi",
        "feed_data:os.system",
        "feed_data:HERE.__class__",
        "torch.utils.data:sys.exit",
    ):
        with pytest.raises(PipelineError, match=r"is not a function of the job's code|has no"):
            load_function(reference, [HERE])


@pytest.mark.parametrize(
    "name", ["torch.utils.database:f", "headrace.feedback:f"], ids=["like torch's name", "like our name"]
)
def test_a_module_whose_name_only_begins_like_a_trusted_one_is_not_trusted(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys
    import types

    module = types.ModuleType(name.partition(":")[0])
    module.f = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(PipelineError, match="is not a function of the job's code"):
        load_function(name, [tmp_path])


def in_main() -> None: ...


in_main.__module__ = "__main__"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda samples: samples, "has no importable name"),
        (partial(print), "has no importable name"),
        (in_main, "collate_fn=in_main is defined in the script"),
    ],
)
def test_functions_that_workers_cannot_import_are_refused_with_a_hint(function: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as error:
        function_name(function, "collate_fn")
    assert "module of source_dir" in error.value.hint
    assert function_name(feed_data.collect, "collate_fn") == "feed_data:collect"


def test_the_text_of_a_pipeline_does_not_depend_on_the_order_of_its_arguments() -> None:
    assert encoded(Pipeline("m:f", {"a": 1, "b": 2})) == encoded(Pipeline("m:f", {"b": 2, "a": 1}))
    assert encoded(Pipeline("m:f", {"a": 1})) != encoded(Pipeline("m:f", {"a": 2}))


def test_a_channel_is_found_by_variable_or_directory_and_its_absence_names_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("SM_CHANNEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("SM_CHANNEL_TRAINING", "/data/train")
    (tmp_path / "input" / "data" / "test").mkdir(parents=True)
    assert feed.channel("training") == Path("/data/train")
    assert feed.channel("test") == tmp_path / "input" / "data" / "test"
    with pytest.raises(PipelineError, match=r"no channel 'other' \(it has: training\)"):
        feed.channel("other")


# Places


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    write_secret(path, "ab" * 32)
    return path


def hosts(generation: int, secret: Path, *states: str) -> bytes:
    listed = tuple(FeedHost(f"algo-{k}", "g", f"tcp://127.0.1.{k}:7070", 2, state) for k, state in enumerate(states, 1))
    return msgspec.json.encode(FeedHosts(generation, str(secret), listed))


def test_a_list_of_addresses_is_read(secret: Path) -> None:
    endpoints = Endpoints("tcp://h1:7070, h2:7071,unix:@name", str(secret))
    assert [endpoint.address for endpoint in endpoints.current()] == ["tcp://h1:7070", "tcp://h2:7071", "unix:@name"]
    assert [endpoint.name for endpoint in endpoints.current()] == ["h1:7070", "h2:7071", "unix:@name"]
    assert endpoints.secret == b"\xab" * 32


def test_a_list_without_a_port_or_a_secret_is_refused(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FeedError, match="'tcp://h1' is not HOST:PORT"):
        Endpoints("tcp://h1", str(secret))
    with pytest.raises(FeedError, match="no secret for the feed servers") as error:
        Endpoints("tcp://h1:7070")
    assert "HEADRACE_FEED_SECRET_FILE" in error.value.hint
    monkeypatch.setenv("HEADRACE_FEED_SECRET_FILE", str(secret))
    assert Endpoints("tcp://h1:7070").secret == b"\xab" * 32


def test_the_job_s_file_is_read_again_whenever_it_is_replaced(tmp_path: Path, secret: Path) -> None:
    path = tmp_path / "feed.json"
    write_atomically(path, hosts(1, secret, "starting"))
    endpoints = Endpoints(str(path))
    assert [(endpoint.name, endpoint.state) for endpoint in endpoints.current()] == [("algo-1", "starting")]
    for generation, states in enumerate((("ready",), ("ready", "starting"), ("lost", "ready")), 2):
        write_atomically(path, hosts(generation, secret, *states))
        assert [endpoint.state for endpoint in endpoints.current()] == list(states)
    assert endpoints.current() is endpoints.current()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"generation": 1}', b'{"generation":1,"secret_file":"s","hosts":[{"host":"h"}]}']
)
def test_a_bad_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "feed.json"
    path.write_bytes(content)
    with pytest.raises(FeedError, match=r"cannot read .*feed\.json") as error:
        Endpoints(str(path))
    assert "unset HEADRACE_FEED" in error.value.hint
    with pytest.raises(FeedError, match=r"cannot read .*none\.json"):
        Endpoints(str(tmp_path / "none.json"))


@pytest.mark.parametrize("content", [None, "not hex"])
def test_a_secret_that_cannot_be_read_is_named(content: str | None, tmp_path: Path) -> None:
    secret = tmp_path / "bad-secret"
    if content is not None:
        secret.write_text(content)
    path = tmp_path / "feed.json"
    path.write_bytes(hosts(1, secret, "ready"))
    for source, given in ((str(path), None), ("tcp://h:1", str(secret))):
        with pytest.raises(FeedError, match=r"cannot read the feed's secret from .*bad-secret"):
            Endpoints(source, given)


def test_the_workers_come_from_the_argument_then_from_the_job_else_they_are_local(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(None) is None
    path = tmp_path / "feed.json"
    path.write_bytes(hosts(1, secret, "ready"))
    monkeypatch.setenv("HEADRACE_FEED", str(path))
    found = find(None)
    assert found is not None
    assert found.current()[0].name == "algo-1"
    assert find("local") is None
    path.write_bytes(json.dumps({"generation": 1, "secret_file": str(secret), "hosts": []}).encode())
    assert find(None) is None


def test_a_pipeline_of_the_script_itself_is_refused_for_remote_workers_with_what_to_do(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write_secret(secret)
    where = {"workers": "tcp://127.0.0.1:1", "secret_file": str(secret)}
    with pytest.raises(PipelineError, match="defined in the script itself") as error:
        DataLoader(Pipeline("__main__:train_set"), **where)
    assert "a module beside the script" in error.value.hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": "x"}, "seed must be a whole number"),
        ({"seed": 2**70}, "seed must lie in"),
        ({"memory": "512MB"}, "memory must be an integer of at least 1"),
        ({"memory": 0}, "memory must be an integer of at least 1"),
        ({"stall_timeout": -1}, "stall_timeout must be a number of at least 0"),
        ({"slice_timeout": "x"}, "slice_timeout must be a number"),
        ({"verify": "x"}, "verify must be a number of at least 0 and at most 1"),
        ({"workers": ["h:1"]}, "workers must be a text"),
        ({"workers": "h:1"}, 'write workers="tcp://h:1"'),
    ],
)
def test_what_is_headrace_s_own_is_checked_when_the_loader_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError, FeedError), match=re.escape(words)):
        DataLoader([1, 2], **options)


@pytest.mark.parametrize("order", ["batch_sampler", "generator"])
def test_a_loader_over_a_pipeline_is_made_without_its_hosts_and_its_length_asks_them_where_no_sampler_has_it(
    order: str, tmp_path: Path
) -> None:
    write_secret(tmp_path / "secret")
    options: dict[str, Any] = {"batch_sampler": [[0, 1], [2]]}
    if order == "generator":
        options = {"generator": torch.Generator(), "shuffle": True, "batch_size": 2}
    options |= {"workers": f"tcp://127.0.0.1:{free_port()}", "secret_file": str(tmp_path / "secret"), "timeout": 0.3}
    with DataLoader(feed_data.noise(), **options) as loader:
        if order == "batch_sampler":
            assert len(loader) == 2
        assert not list(loader._sessions), "nobody was asked"
        with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds waiting for the dataset's length"):
            len(loader.sampler if order == "batch_sampler" else loader)


def test_the_length_of_a_pipeline_starts_no_local_worker() -> None:
    with DataLoader(feed_data.noise(), batch_size=8, num_workers=2) as loader:
        assert (len(loader), len(loader.sampler)) == (12, 96)
        assert not list(loader._sessions)
        assert len(list(loader)) == 12


def test_a_pipeline_of_rows_without_a_length_needs_a_sampler() -> None:
    def loader(**options: Any) -> DataLoader:
        return DataLoader(Without(), batch_size=2, **options)  # type: ignore[operator]

    with pytest.raises(TypeError, match=r"test_feed_naming:Without makes has no len\(\): add __len__"):
        iter(loader())
    with loader(sampler=[1, 2, 3]) as sampled:
        assert [batch.tolist() for batch in sampled] == [[1, 2], [3]]
        assert sampled.state_dict()["epoch"] == 1
