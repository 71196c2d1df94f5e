# SPDX-License-Identifier: Apache-2.0
"""A SIMULATED API server: as much of it as our programs see, over real HTTP, with faults to order.

What it does to a ResourceSlice is read from kubernetes 1.36.4 (pkg/registry/resource/resourceslice): fields
whose feature gate is off are dropped unless the old object has them, taints get the time of their addition,
an update of another version than the last is a conflict, a version that is too old to be watched is gone.
A merge patch of a Node that has another version than the last is a conflict, too
(apiserver pkg/registry/generic/registry/store.go).
"""

import asyncio
import copy
import itertools
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.conformance.awaited import Awaited

NODE = "jetson-1"
TOKEN = "token-of-the-first-hour"
CAPACITY, TAINTS = "DRAConsumableCapacity", "DRADeviceTaints"

Object = dict[str, Any]


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any = None
    content_type: str = ""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def is_write(self) -> bool:
        return self.method != "GET" and "dryRun" not in self.query


@dataclass
class Fault:
    """Answers of this server to the next `count` requests that `fits` accepts."""

    fits: Callable[[Request], bool]
    status: int = 500
    count: int = 1
    seconds: float = 0.0
    body: bytes | None = None
    """Instead of a Status."""
    then_go_on: bool = False
    """Answer in earnest after `seconds`."""


class RefusedError(Exception):
    def __init__(self, status: int, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.name = name
        """The object that it is about; empty: none."""


Watch = asyncio.Queue[Object | None]
"""One open stream: its events, and None at its end."""


class FakeApi(Awaited):
    """Serves at `url`. Every change notifies `until`. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = frozenset({CAPACITY, TAINTS})
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.slices: dict[str, Object] = {}
        self.claims: dict[tuple[str, str], Object] = {}
        self.node_uid = str(uuid.uuid4())
        self.node: Object = {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": NODE, "uid": self.node_uid, "resourceVersion": "1"},
            "spec": {},
        }
        self.token = TOKEN
        self.oldest_version = 0
        self.watches: list[Watch] = []
        self.serves_dra = True
        self.ends_watches_immediately = False
        self._versions = itertools.count(1000)
        self._version = next(self._versions)
        self._history: list[tuple[int, Object]] = []
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server:
            self._server.close()
            self._server = None
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self.watches.clear()

    def kubeconfig(self, token_file: Path) -> str:
        """Give a file's content for a client, whose token is in another file that may change."""
        token_file.write_text(self.token)
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"tokenFile": str(token_file)}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )

    def describe(self) -> str:
        last = [f"{one.method} {one.path} {one.query}" for one in self.requests[-12:]]
        return f"slices {json.dumps(self.slices, indent=1)}, taints {self.taints}, requests {last}"

    @property
    def slice(self) -> Object:
        (found,) = self.slices.values()
        return found

    @property
    def devices(self) -> list[Object]:
        """Those of the only slice; none without one."""
        return [device for one in self.slices.values() for device in one["spec"].get("devices") or []]

    @property
    def writes(self) -> list[Request]:
        return [one for one in self.requests if one.is_write]

    @property
    def taints(self) -> list[Object]:
        found: list[Object] = self.node["spec"].get("taints", [])
        return found

    # What others do.

    def set_taints(self, *taints: Object) -> None:
        self._merge_node({"spec": {"taints": list(taints)}})

    def add_slice(self, spec: Object, name: str = "") -> Object:
        return self._create({"metadata": {"name": name or "made-by-hand"}, "spec": spec})

    def delete_slices(self) -> None:
        """Do what a kubelet does when it starts."""
        for name in list(self.slices):
            self._delete(name)

    def end_watches(self) -> None:
        for watch in self.watches:
            watch.put_nowait(None)

    def forget_history(self) -> None:
        """Answer 410 to every client that continues from an older version."""
        self.oldest_version = self._version

    def allocate(self, name: str, *results: Object) -> Object:
        """Make a claim that the scheduler has given these devices."""
        full = [
            {"driver": "gpu.jetson-k3s.github.io", "pool": NODE, "request": "gpu"} | one for one in results
        ]
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": str(uuid.uuid4())},
            "spec": {},
            "status": {"allocation": {"devices": {"results": full, "config": []}}} if full else {},
        }
        self.claims["default", name] = claim
        return claim

    # HTTP.

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._talk(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
        method, target, _ = first.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        parts = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        request = Request(method, parts.path, query, json.loads(body) if body else None)
        request.content_type = headers.get("content-type", "")
        self.requests.append(request)
        self._changed.set()
        try:
            if fault := next((one for one in self.faults if one.count and one.fits(request)), None):
                fault.count -= 1
                await asyncio.sleep(fault.seconds)
                if not fault.then_go_on:
                    if fault.body is not None:
                        return await self._send(writer, fault.status, fault.body, "text/html")
                    return await self._refuse(writer, fault.status, "ordered")
            if headers.get("authorization") != f"Bearer {self.token}":
                return await self._refuse(writer, 401, "Unauthorized")
            if request.is_watch:
                await self._stream(request, writer)
                return True
            answer = self._serve(request)
        except RefusedError as refused:
            return await self._refuse(writer, refused.status, refused.reason, refused.name)
        finally:
            self._changed.set()
        return await self._send(writer, 200 if method != "POST" else 201, json.dumps(answer).encode())

    async def _refuse(self, writer: asyncio.StreamWriter, code: int, why: str, name: str = "") -> bool:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": why,
            "reason": HTTPStatus(code).phrase.replace(" ", ""),
            "details": {"name": name} if name else {},
            "code": code,
        }
        return await self._send(writer, code, json.dumps(status).encode())

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json"
    ) -> bool:
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        return True

    async def _stream(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Send changes in chunks until the stream is ended."""
        version = int(request.query.get("resourceVersion", 0))
        watch: Watch = asyncio.Queue()
        if version < self.oldest_version:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version", "reason": "Expired"}
            watch.put_nowait({"type": "ERROR", "object": gone})
            watch.put_nowait(None)
        for at, event in self._history:
            if at > version >= self.oldest_version:
                watch.put_nowait(event)
        self.watches.append(watch)
        self._changed.set()
        if self.ends_watches_immediately:
            watch.put_nowait(None)
        try:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            while (change := await watch.get()) is not None:
                if self._fits(change["object"], request):
                    line = json.dumps(change).encode() + b"\n"
                    writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                    await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            if watch in self.watches:
                self.watches.remove(watch)
                self._changed.set()

    # The objects.

    def _serve(self, request: Request) -> Object:
        match request.path.strip("/").split("/"):
            case ["api", "v1", "nodes", name] if name == NODE:
                return self._node(request)
            case ["apis", "resource.k8s.io", "v1", *rest] if self.serves_dra:
                return self._resource(request, rest)
        raise RefusedError(404, "the server could not find the requested resource")

    def _node(self, request: Request) -> Object:
        if request.method == "PATCH":
            if request.content_type != "application/merge-patch+json":
                raise RefusedError(415, "the body of the request was in an unknown format")
            version = request.body["metadata"].get("resourceVersion")
            if version not in (None, self.node["metadata"]["resourceVersion"]):
                raise RefusedError(409, "the object has been modified", NODE)
            self._merge_node(request.body)
        return self.node

    def _merge_node(self, patch: Object) -> None:
        self._version = next(self._versions)
        metadata = {**self.node["metadata"], "resourceVersion": str(self._version)}
        self.node = {**self.node, "metadata": metadata, "spec": {**self.node["spec"], **patch["spec"]}}
        self._changed.set()

    def _resource(self, request: Request, rest: list[str]) -> Object:
        match request.method, rest:
            case "GET", ["namespaces", namespace, "resourceclaims", name]:
                if (namespace, name) not in self.claims:
                    raise RefusedError(404, f'resourceclaims.resource.k8s.io "{name}" not found', name)
                return self.claims[namespace, name]
            case "GET", ["resourceslices"]:
                items = [one for one in self.slices.values() if self._fits(one, request)]
                version = {"resourceVersion": str(self._version)}
                return {"kind": "ResourceSliceList", "metadata": version, "items": items}
            case "POST", ["resourceslices"]:
                return self._create(request.body, dry_run="dryRun" in request.query)
            case "PUT", ["resourceslices", name]:
                return self._replace(name, request.body)
            case "DELETE", ["resourceslices", name]:
                return self._delete(name)
        raise RefusedError(405, "no such method")

    def _fits(self, one: Object, request: Request) -> bool:
        wanted = dict(part.split("=") for part in request.query["fieldSelector"].split(",") if part)
        if "spec" not in one:
            return True
        has = {"spec.nodeName": one["spec"].get("nodeName"), "spec.driver": one["spec"]["driver"]}
        return all(has.get(key) == value for key, value in wanted.items())

    def _create(self, sent: Object, *, dry_run: bool = False) -> Object:
        made = copy.deepcopy(sent)
        self._drop(made, None)
        metadata = made["metadata"]
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{uuid.uuid4().hex[:5]}")
        metadata["uid"] = str(uuid.uuid4())
        if dry_run:
            return made
        return self._put(made, "ADDED")

    def _replace(self, name: str, sent: Object) -> Object:
        old = self.slices.get(name)
        if old is None:
            raise RefusedError(404, f'resourceslices.resource.k8s.io "{name}" not found', name)
        if sent["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise RefusedError(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        made = copy.deepcopy(sent)
        self._drop(made, old)
        return self._put(made, "MODIFIED")

    def _delete(self, name: str) -> Object:
        if name not in self.slices:
            raise RefusedError(404, f'resourceslices.resource.k8s.io "{name}" not found', name)
        gone = copy.deepcopy(self.slices.pop(name))
        self._note(gone, "DELETED")
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _put(self, made: Object, event: str) -> Object:
        for device in made["spec"].get("devices") or []:
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-11-23T05:00:00Z")
        if made["spec"].get("devices") == []:
            del made["spec"]["devices"]
        made |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        self.slices[made["metadata"]["name"]] = made
        self._note(made, event)
        return made

    def _note(self, one: Object, event: str) -> None:
        self._version = next(self._versions)
        one["metadata"]["resourceVersion"] = str(self._version)
        change = {"type": event, "object": copy.deepcopy(one)}
        self._history.append((self._version, change))
        for watch in self.watches:
            watch.put_nowait(change)
        self._changed.set()

    def _drop(self, new: Object, old: Object | None) -> None:
        before = (old or {}).get("spec", {}).get("devices") or []
        for device in new["spec"].get("devices") or []:
            if TAINTS not in self.gates and not any("taints" in one for one in before):
                device.pop("taints", None)
            if CAPACITY not in self.gates and not any("allowMultipleAllocations" in one for one in before):
                device.pop("allowMultipleAllocations", None)
                for one in device.get("capacity", {}).values():
                    one.pop("requestPolicy", None)
