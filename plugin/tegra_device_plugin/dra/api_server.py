# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server for this node, its claims and its slices, by lightkube.

Kubelets renew the service account's token. lightkube reads it again when the API server rejects it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from tegra_device_plugin.system.kubernetes import DRIVER
from tegra_device_plugin.system.log import describe_error

Object = Mapping[str, Any]

FIELD_MANAGER = "tegra-dra-driver"
REQUEST_SECONDS = 10.0
# The API server ends a watch after so many seconds.
WATCH_SECONDS = 300
_WATCH_PAUSE_SECONDS = 1.0

# By default, httpx2 logs every request.
logging.getLogger("httpx2").setLevel(logging.WARNING)

# Without the typed models of every API group, which take memory.
_Node = create_global_resource("", "v1", "Node", "nodes")
_Slice = create_global_resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
_Claim = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")


class ServerError(OSError):
    """A request has failed. `code` is the HTTP status, None without an answer.

    `object_name` is the object of the answer, empty if the answer names no object.
    """

    def __init__(self, text: str, code: int | None = None, object_name: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.object_name = object_name

    @property
    def gone(self) -> bool:
        """The object or the path does not exist (404)."""
        return self.code == HTTPStatus.NOT_FOUND

    @property
    def outdated(self) -> bool:
        """Another client has changed the object (409), or the watched version is too old (410)."""
        return self.code in (HTTPStatus.CONFLICT, HTTPStatus.GONE)


class _Transport(httpx2.AsyncHTTPTransport):
    """Limits watches to one per second: lightkube opens the next one as soon as the server ends one."""

    _not_before = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if "watch" in request.url.params:
            now = asyncio.get_running_loop().time()
            start = max(now, self._not_before)
            self._not_before = start + _WATCH_PAUSE_SECONDS
            await asyncio.sleep(start - now)
        return await super().handle_async_request(request)


class Server:
    def __init__(self, node: str) -> None:
        """Raise ServerError if there are no credentials."""
        self.node = node
        with _server_errors():
            config = KubeConfig.from_env().get()
            if config is None or config.user is None:
                raise ConfigError("the kubeconfig's current context names no user")
            verify = verify_cluster(config.cluster, config.user, config.abs_file)
            self._client = AsyncClient(
                config,
                timeout=httpx2.Timeout(REQUEST_SECONDS),
                field_manager=FIELD_MANAGER,
                transport=_Transport(verify=verify),
            )
        self._selector: dict[str, Any] = {"spec.nodeName": node, "spec.driver": DRIVER}

    async def node_uid(self) -> str:
        """Give the uid of this node's Node. Raises ServerError."""
        with _server_errors():
            found = await self._client.get(_Node, self.node)
        return str(found["metadata"]["uid"])

    async def claim(self, namespace: str, name: str) -> Object | None:
        """Give a claim, None if the API server has no such claim. Raises ServerError."""
        try:
            with _server_errors():
                found: Object = await self._client.get(_Claim, name, namespace=namespace)
                return found
        except ServerError as error:
            # A 404 that names no object is about the path: an API group that is off, or a proxy.
            if error.gone and error.object_name == name:
                return None
            raise

    async def slices(self) -> tuple[list[Object], str]:
        """Give this driver's slices of the node, and the version of the list. Raises ServerError."""
        try:
            with _server_errors():
                listed = self._client.list(_Slice, fields=self._selector)
                found: list[Object] = [one async for one in listed]
                return found, listed.resourceVersion
        except ServerError as error:
            if error.gone:
                raise ServerError(
                    "the API server has no resource.k8s.io/v1: Kubernetes 1.34 or later is needed", error.code
                ) from error
            raise

    async def changed(self, version: str) -> None:
        """Wait until one of these slices has changed after `version`. Raises ServerError."""
        watch: Any = self._client.watch(
            _Slice, fields=self._selector, resource_version=version, server_timeout=WATCH_SECONDS
        )
        with _server_errors():
            async with aclosing(watch):
                await anext(watch)

    async def create(self, slice_: Object, *, dry_run: bool = False) -> Object:
        """Create a slice; give the object that the server returns. Raises ServerError."""
        with _server_errors():
            made: Object = await self._client.create(_sent(slice_), dry_run=dry_run)
        return made

    async def replace(self, slice_: Object) -> Object:
        """Replace a slice of the same version; give what `create` gives. Raises ServerError."""
        name = slice_["metadata"]["name"]
        with _server_errors():
            made: Object = await self._client.replace(_sent(slice_), name=name)
        return made

    async def delete(self, slice_: Object) -> None:
        """Remove a slice, if it is still there. Raises ServerError."""
        try:
            with _server_errors():
                await self._client.delete(_Slice, slice_["metadata"]["name"])
        except ServerError as error:
            if not error.gone:
                raise

    async def close(self) -> None:
        await self._client.aclose()


@asynccontextmanager
async def connected(node: str) -> AsyncIterator[Server]:
    """Give the server, and end the connections."""
    server = Server(node)
    try:
        yield server
    finally:
        await server.close()


def _sent(slice_: Object) -> Any:
    return _Slice(dict(slice_))  # type: ignore[call-overload]  # the class is a dict


@contextmanager
def _server_errors() -> Iterator[None]:
    """Turn the exceptions of the client into ServerError."""
    try:
        yield
    except ApiError as error:
        details = error.status.details
        name = (details.name if details else None) or ""
        raise ServerError(f"the API server: {error}", error.status.code, name) from error
    except httpx2.HTTPStatusError as error:
        code = error.response.status_code
        raise ServerError(f"the API server: HTTP status {code}", code) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise ServerError(f"no API server: {describe_error(error, type(error).__name__)}") from error
    except ConfigError as error:
        raise ServerError(f"no credentials for the API server: {error}") from error
    # No answer of an API server: the page of a proxy, an incomplete line.
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(f"the API server: an invalid answer: {error!r}") from error
