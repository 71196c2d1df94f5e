# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server for this node, its claims and its slices."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import httpx2
from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from tegra_device_plugin.system.api_server import ApiServer, Object, ServerError, server_errors
from tegra_device_plugin.system.kubernetes import DRIVER

FIELD_MANAGER = "tegra-dra-driver"
# The API server ends a watch after so many seconds.
WATCH_SECONDS = 300
_WATCH_PAUSE_SECONDS = 1.0

_Slice = create_global_resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
_Claim = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")


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


class Server(ApiServer):
    transport = _Transport

    def __init__(self, node: str) -> None:
        """Raise ServerError if there are no credentials."""
        super().__init__(node, FIELD_MANAGER)
        self._selector: dict[str, Any] = {"spec.nodeName": node, "spec.driver": DRIVER}

    async def node_uid(self) -> str:
        """Give the uid of this node's Node. Raises ServerError."""
        node = await self.get_node()
        with server_errors():
            return str(node["metadata"]["uid"])

    async def claim(self, namespace: str, name: str) -> Object | None:
        """Give a claim, None if the API server has no such claim. Raises ServerError."""
        try:
            with server_errors():
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
            with server_errors():
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
        with server_errors():
            async with aclosing(watch):
                await anext(watch)

    async def create(self, slice_: Object, *, dry_run: bool = False) -> Object:
        """Create a slice; give the object that the server returns. Raises ServerError."""
        with server_errors():
            made: Object = await self._client.create(_sent(slice_), dry_run=dry_run)
        return made

    async def replace(self, slice_: Object) -> Object:
        """Replace a slice of the same version; give what `create` gives. Raises ServerError."""
        name = slice_["metadata"]["name"]
        with server_errors():
            made: Object = await self._client.replace(_sent(slice_), name=name)
        return made

    async def delete(self, slice_: Object) -> None:
        """Remove a slice, if it is still there. Raises ServerError."""
        try:
            with server_errors():
                await self._client.delete(_Slice, slice_["metadata"]["name"])
        except ServerError as error:
            if not error.gone:
                raise


def _sent(slice_: Object) -> Any:
    return _Slice(dict(slice_))  # type: ignore[call-overload]  # the class is a dict
