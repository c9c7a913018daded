"""Which cluster, and as whom: read from the kubeconfig, as kubectl does, or from the pod in which headrace runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headrace.errors import EngineRefused
from headrace.install_hint import install_hint

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig

VARIABLE = "KUBECONFIG"
DEFAULT = "~/.kube/config"
PLUGINS = ("client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1")
PLUGIN_HINT = (
    "`kubectl config view --raw --flatten` shows the login; ask for a kubeconfig with a token or a client certificate, "
    "such as that of a service account"
)


def login(context: str) -> SingleConfig:
    """Returns the cluster and user of a context.

    Args:
        context: name in the kubeconfig; its current context if empty. Without any kubeconfig, and in a pod, the pod's
            service account.

    Raises:
        EngineRefused: there is no such context, or a login that headrace cannot do.
    """
    try:
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.config.models import User
        from lightkube.core.exceptions import ConfigError
    except ImportError as error:
        raise EngineRefused("lightkube is not installed", install_hint("kubernetes")) from error
    try:
        files = kubeconfig_files()
        if not files and not context and "KUBERNETES_SERVICE_HOST" in os.environ:
            found = KubeConfig.from_service_account().get()
        else:
            found = _of_files(files, context, KubeConfig)
    except ConfigError as error:
        raise EngineRefused(f"the kubeconfig cannot be used: {error}", "`kubectl config view` shows it") from error
    assert found is not None  # with no default it is found, or an error
    _check_login(found)
    return found if found.user is not None else found._replace(user=User())


def kubeconfig_files() -> tuple[Path, ...]:
    """Returns the files that make up the kubeconfig and are there: those of $KUBECONFIG, else ~/.kube/config.

    Raises:
        EngineRefused: whether one is there cannot be known.
    """
    named = [each for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each] or [DEFAULT]
    return tuple(path for path in (Path(os.path.expanduser(each)) for each in named) if _is_file(path))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # of a folder that is another user's
        raise EngineRefused(f"the kubeconfig {path} cannot be read: {error.strerror}", f"check {VARIABLE}") from error


def _of_files(files: tuple[Path, ...], context: str, reader: type[KubeConfig]) -> SingleConfig:
    if not files:
        looked = os.environ.get(VARIABLE) or DEFAULT
        hint = "set KUBECONFIG, or log in to the cluster as its documentation says, which writes that file"
        raise EngineRefused(f"there is no kubeconfig: {looked}", hint)
    known: list[str] = []
    for file in files:
        try:
            config = reader.from_file(file)
        except Exception as error:
            line, why = _fault(error)
            place = f"{file}, line {line}," if line else str(file)
            raise EngineRefused(f"{place} is no kubeconfig: {why}", "`kubectl config view` shows it") from error
        known += config.contexts
        name = context or config.current_context
        if name not in config.contexts:
            continue
        here = config.contexts[name]
        if here.cluster not in config.clusters or (here.user and here.user not in config.users):
            hint = "write all of it into one file: `kubectl config view --raw --flatten`"
            raise EngineRefused(f"{file} has the context {name}, but not its cluster or user", hint)
        return cast("SingleConfig", config.get(name))
    names = ", ".join(map(str, files))
    what = f"no context {context!r} in {names}" if context else f"no current context in {names}"
    raise EngineRefused(what, f"known are: {', '.join(dict.fromkeys(known)) or 'none'} (engines.kubernetes.context)")


def _fault(error: Exception) -> tuple[int, str]:
    """Returns the line of what made a kubeconfig unreadable, 0 when it is not known, and what it is."""
    import msgspec
    import yaml

    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return error.problem_mark.line + 1, f"it is not YAML: {error.problem or error.context}"
    if isinstance(error, (yaml.YAMLError, UnicodeDecodeError)):
        return 0, "it is not text in YAML"
    if isinstance(error, KeyError):
        return 0, f"the key {error.args[0]!r} is missing"
    if isinstance(error, msgspec.ValidationError):
        return 0, str(error)
    if isinstance(error, OSError):
        return 0, error.strerror or str(error)
    return 0, "it must be a mapping with clusters, contexts and users, each a list of mappings"


def _check_login(found: SingleConfig) -> None:
    """Refuses what lightkube cannot do, before a request fails with less to say about it."""
    user = found.user
    if user is None:
        return
    where = f"the login of the context {found.context_name}"
    if user.exec is not None and user.exec.apiVersion not in PLUGINS and not user.token:
        what = f"{where} is a plugin ({user.exec.command}) of version {user.exec.apiVersion}"
        raise EngineRefused(f"{what}; headrace knows {', '.join(PLUGINS)}", PLUGIN_HINT)
    if user.auth_provider and not (user.token or user.exec):
        raise EngineRefused(f"{where} is an auth-provider, which Kubernetes has removed", PLUGIN_HINT)
