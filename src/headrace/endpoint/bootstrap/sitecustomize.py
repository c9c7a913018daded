"""Python loads this at its start: clients for fixed addresses of AWS are clients of the endpoint in `AWS_ENDPOINT_URL`.

SDKs make some clients with an address (`https://sts.REGION.amazonaws.com`), which counts more than every configuration.
Nothing is imported here that the program does not import; a `sitecustomize` of the program's own is loaded after this.
It stands alone: the program's Python may be another one, without headrace.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_SESSIONS = {"botocore.session": "Session", "aiobotocore.session": "AioSession"}
_DOMAINS = ("amazonaws.com", "amazonaws.com.cn", "api.aws")
_ADDRESS = 5  # its place among the arguments of `create_client`


class SessionFinder:
    """Finds the modules of sessions as the other finders do, and changes how their sessions make clients."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        if name not in _SESSIONS:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                session = getattr(module, _SESSIONS[name])
                session.create_client = _redirected(session.create_client)

            loader.exec_module = exec_module
        return spec


def _redirected(create_client: Callable[..., Any]) -> Callable[..., Any]:
    from functools import wraps

    @wraps(create_client)
    def create(self: Any, *arguments: Any, **named: Any) -> Any:
        if arguments[_ADDRESS:]:
            arguments = (*arguments[:_ADDRESS], _local(arguments[_ADDRESS]), *arguments[_ADDRESS + 1 :])
        elif "endpoint_url" in named:
            named["endpoint_url"] = _local(named["endpoint_url"])
        return create_client(self, *arguments, **named)

    return create


def _local(address: str | None) -> str | None:
    from urllib.parse import urlsplit

    host = (urlsplit(address).hostname or "").rstrip(".") if address else ""
    aws = any(host == domain or host.endswith("." + domain) for domain in _DOMAINS)
    return os.environ.get("AWS_ENDPOINT_URL", address) if aws else address


def _load_own() -> None:
    """Loads the `sitecustomize` that there is without this one, which it does not find again."""
    here = __file__.rpartition(os.sep)[0]
    sys.path[:] = [entry for entry in sys.path if entry != here]
    spec: ModuleSpec | None = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.meta_path.insert(0, SessionFinder())
_load_own()
