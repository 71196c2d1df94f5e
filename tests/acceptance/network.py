# SPDX-License-Identifier: Apache-2.0
"""What a cluster's network is for: pods of two boards reach each other."""

import json
from functools import partial

from tests.acceptance.cluster import Cluster, wait_until

_SERVE = "import socket\ns = socket.create_server(('', 8080))\nwhile True: s.accept()[0].sendall(b'hello')"
_WAIT = "import signal; signal.pause()"


def check(cluster: Cluster, image: str) -> None:
    """Check that a pod of the first board reaches one of the second, by its address and by a Service.

    `image` is one with a Python that the boards have: the plugin's.
    """
    for pod, program, board in zip(("asker", "server"), (_WAIT, _SERVE), cluster.boards[:2], strict=True):
        spec = {"nodeName": board.name, "terminationGracePeriodSeconds": 0}
        run = ("run", pod, f"--image={image}", "--image-pull-policy=Never", "--restart=Never", "--command")
        cluster.kubectl(*run, f"--overrides={json.dumps({'spec': spec})}", "--", "python3.11", "-c", program)
    cluster.kubectl("expose", "pod", "server", "--port=80", "--target-port=8080")
    try:
        wait_until(
            lambda: all(cluster.phase(pod) == "Running" for pod in ("server", "asker")), "both run", 60
        )
        pod_ip = cluster.kubectl("get", "pod", "server", "--output=jsonpath={.status.podIP}")
        service = cluster.kubectl("get", "service", "server", "--output=jsonpath={.spec.clusterIP}")
        for address, port in ((pod_ip, 8080), (service, 80)):
            wait_until(partial(_answers, cluster, address, port), f"an answer of {address}", 30)
    finally:
        cluster.kubectl("delete", "pod/server", "pod/asker", "service/server")


def _answers(cluster: Cluster, address: str, port: int) -> bool:
    ask = f"import socket; print(socket.create_connection(('{address}', {port}), 5).recv(9).decode())"
    return cluster.kubectl("exec", "asker", "--", "python3.11", "-c", ask).strip() == "hello"
