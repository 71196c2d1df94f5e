# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server for this node, by lightkube: its Node, and the errors of all requests.

Kubelets renew the service account's token. lightkube reads it again when the API server rejects it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_global_resource
from lightkube.types import PatchType

from tegra_device_plugin.system.log import describe_error

Object = Mapping[str, Any]

REQUEST_SECONDS = 10.0

# By default, httpx2 logs every request.
logging.getLogger("httpx2").setLevel(logging.WARNING)

# Without the typed models of every API group, which take memory.
_Node = create_global_resource("", "v1", "Node", "nodes")


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


class ApiServer:
    """Requests about one node; a subclass has more."""

    transport = httpx2.AsyncHTTPTransport

    def __init__(self, node: str, field_manager: str) -> None:
        """Raise ServerError if there are no credentials."""
        self.node = node
        with server_errors():
            config = KubeConfig.from_env().get()
            if config is None or config.user is None:
                raise ConfigError("the kubeconfig's current context names no user")
            verify = verify_cluster(config.cluster, config.user, config.abs_file)
            self._client = AsyncClient(
                config,
                timeout=httpx2.Timeout(REQUEST_SECONDS),
                field_manager=field_manager,
                transport=self.transport(verify=verify),
            )

    async def get_node(self) -> Object:
        """Give this node's Node. Raises ServerError."""
        with server_errors():
            found: Object = await self._client.get(_Node, self.node)
        return found

    async def patch_node(self, patch: Object) -> None:
        """Merge `patch` into this node's Node. With a resourceVersion, only into that version.

        Raises ServerError.
        """
        with server_errors():
            await self._client.patch(_Node, self.node, dict(patch), patch_type=PatchType.MERGE)

    async def close(self) -> None:
        await self._client.aclose()


T = TypeVar("T", bound=ApiServer)


@asynccontextmanager
async def connected(server: T) -> AsyncIterator[T]:
    """Give the server, and end the connections."""
    try:
        yield server
    finally:
        await server.close()


@contextmanager
def server_errors() -> Iterator[None]:
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
