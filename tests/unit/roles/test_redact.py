# SPDX-License-Identifier: Apache-2.0
"""The redactor: secrets in every form that K3s, systemd, Docker and Kubernetes take, and nothing else."""

import json
import re
import shlex
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import redact
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planted import COMMAND, EXEC_START, FLAGS, PLANTED, UNIT, leaked
from tests.unit.roles.places import Data

# Parts of a planted secret. Between them is anything that its form can carry.
PARTS = ("Qzx7", "x7Qz", "zQ7x")
EXAMPLES = 20
CA = "K10" + "0123456789abcdef" * 4 + "::"
PRINTABLE = "".join(map(chr, range(33, 127)))


def secrets(alphabet: str) -> st.SearchStrategy[str]:
    """Secrets with these characters between the parts."""
    # Hypothesis also tries words of the tests' own text. This one is counted.
    between = st.text(alphabet, max_size=6).filter(lambda text: "kept" not in text)
    return st.tuples(between, between).map(lambda two: f"{PARTS[0]}{two[0]}{PARTS[1]}{two[1]}{PARTS[2]}")


def systemd(word: str) -> str:
    """An argument in systemd's double quotes."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def registries(secret: str) -> Data:
    login = {"username": secret, "password": secret, "auth": secret, "identity_token": secret}
    return {"configs": {"reg.example:5000": {"auth": login, "tls": {"ca_file": "/kept/ca"}}}}


def kubeconfig(secret: str) -> Data:
    user = {"token": secret, "password": secret, "client-key-data": secret}
    return {"kind": "Config", "users": [{"name": "kept", "user": user}]}


def container(secret: str) -> Data:
    env = [{"name": "K3S_TOKEN", "value": secret}, {"name": "OTHER", "value": "kept"}]
    return {"args": ["agent", "--token", secret, "--docker"], "env": env, "image": "kept:1"}


ANY, NO_BLANK, PLAIN = PRINTABLE + " ", PRINTABLE, re.sub(r"""["'\\]""", "", PRINTABLE)
IN_URL = re.sub(r"""[/?#"<>'\\]""", "", PRINTABLE)
# Besides those of K3s, Docker and Kubernetes.
OTHER_NAMES = (
    "REGISTRY_PASS", "MY_SECRET", "DB_PWD", "K3S_TOKEN_OLD", "K3S_TOKEN_2", "PASSWORD_NEW", "KEY_TOKEN_PREV",
)  # fmt: skip


def in_shell(name: str) -> Callable[[str], str]:
    return lambda one: f"kept; {name}={shlex.quote(one)} KEPT=kept"


def in_environment(name: str) -> Callable[[str], str]:
    return lambda one: f"KEPT=kept\n{name}={one}\nKEPT=kept\n"


def in_yaml(name: str) -> Callable[[str], str]:
    return lambda one: yaml.safe_dump({"a": "kept", name.lower(): one})


# Each form: the characters that a secret may have in it, and the text. "kept" stays.
FORMS: dict[str, tuple[str, Callable[[str], str]]] = {
    "shell": (PLAIN + " ", lambda one: f"kept k3s agent --token {shlex.quote(one)} --docker --kept"),
    "shell, quotes in it": (NO_BLANK, lambda one: f"kept k3s agent --token {shlex.quote(one)} --kept"),
    "shell, short": (PLAIN + " ", lambda one: f"kept k3s agent -t {shlex.quote(one)} --docker --kept"),
    "shell, =": (PLAIN + " ", lambda one: f"kept k3s server --agent-token={shlex.quote(one)} --kept"),
    "shell, variable": (PLAIN + " ", lambda one: f"kept; export K3S_TOKEN={shlex.quote(one)} KEPT=kept"),
    "dashes before": (PLAIN, lambda one: f"kept --vpn-auth --{one} --kept"),
    "arguments without quotes": (PLAIN + " ", lambda one: f"{{ path=k3s ; argv[]=k3s --token {one} ; kept"),
    "process list": (ANY, lambda one: f"kept\0--etcd-s3-secret-key\0{one.replace(' ', '')}\0--kept"),
    "unit, word": (PLAIN, lambda one: f"[Service]\nEnvironment=K3S_TOKEN={one}\nUser=kept\n"),
    "unit, quotes": (ANY, lambda one: f"[Service]\nEnvironment={systemd('K3S_TOKEN=' + one)} KEPT=kept\n"),
    "unit, value in quotes": (
        ANY,
        lambda one: f"Environment=AWS_SECRET_ACCESS_KEY={systemd(one)} KEPT=kept\n",
    ),
    "unit, lines": (
        PLAIN + " ",
        lambda one: f"ExecStart=/kept/k3s \\\n\t'--token' \\\n\t'{one}' \\\n\t'--kept'\n",
    ),
    "unit, one word": (ANY, lambda one: f"ExecStart=/kept/k3s agent {systemd('--token=' + one)} --kept\n"),
    "environment file": (ANY, lambda one: f"KEPT=kept\nK3S_DATASTORE_ENDPOINT={one}\nKEPT=kept\n"),
    "environment file, quotes": (ANY, lambda one: f"KEPT=kept\nK3S_TOKEN={systemd(one)}\nKEPT=kept\n"),
    "YAML": (ANY, lambda one: yaml.safe_dump({"kept": 1, "token": one, "zkept": 2})),
    "YAML, plus": (PLAIN, lambda one: f"kept: 1\nagent-token+: {one}\nz: kept\n"),
    "YAML, block": (ANY, lambda one: f"kept: 1\ntoken: |-\n  {one}\n\n  {one}\nz: kept\n"),
    "YAML, list": (ANY, lambda one: yaml.safe_dump({"kept": 1, "token": [one, one], "z": "kept"})),
    "YAML, flow, plain": ("abc/+=.", lambda one: f"a: {{token: {one}, b: kept}}\n"),
    "YAML, pod": (ANY, lambda one: yaml.safe_dump(container(one))),
    "JSON": (ANY, lambda one: json.dumps({"kept": 1, "token": one, "z": ["kept"]})),
    "JSON, arguments": (ANY, lambda one: json.dumps(["kept", "k3s", "--token", one, "--kept"])),
    "JSON, arguments =": (
        ANY,
        lambda one: json.dumps({"Cmd": ["kept", f"--token={one}", "--kept"]}, indent=1),
    ),
    "JSON, environment": (ANY, lambda one: json.dumps({"Env": ["A=kept", f"K3S_TOKEN={one}", "B=kept"]})),
    "JSON, pod": (ANY, lambda one: json.dumps(container(one), indent=1)),
    "JSON, command": (
        PLAIN,
        lambda one: json.dumps({"kept": ["sh", "-c", f'k3s --token "{one} {one}" --z']}),
    ),
    "JSON, file": (ANY, lambda one: json.dumps({"content": f"kept: 1\ntoken: {json.dumps(one)}\nz: 1\n"})),
    "JSON, in JSON": (ANY, lambda one: json.dumps({"msg": json.dumps({"kept": json.dumps({"token": one})})})),
    "Python": (PLAIN + " ", lambda one: repr({"kept": 1, "token": one, "z": "kept"})),
    "URL": (IN_URL, lambda one: f"kept https://user:{one}@kept.example:3128/kept and"),
    "URL, user": (IN_URL, lambda one: f"kept https://{one}@kept.example:3128/kept and"),
    "URL, name": (IN_URL, lambda one: f"kept https://user:{one}-token={one}@host"),
    "URL, slash": (IN_URL + "/", lambda one: f"kept https://user:{one}@kept.example/ and"),
    "URL, quoted": (ANY, lambda one: f'kept="postgres://kine:{quote(one, safe="")}@kept.example:5432/k3s"'),
    "URL, query": (IN_URL, lambda one: f"kept https://kept.example/?token={one}&z=1 kept"),
    "proxy": (
        IN_URL,
        lambda one: json.dumps({"proxies": {"https-proxy": f"http://somebody:{one}@kept"}}) + "kept",
    ),
    "proxy, no scheme": (IN_URL, lambda one: f"Environment=HTTPS_PROXY=user:{one}@kept.example:3128"),
    "registries.yaml": (ANY, lambda one: yaml.safe_dump(registries(one))),
    "kubeconfig": (ANY, lambda one: yaml.safe_dump(kubeconfig(one))),
    "journal, token": (PLAIN, lambda one: f'kept time="kept" level=info msg="Join with {CA}server:{one}"'),
    "journal, words": (PLAIN, lambda one: f"kept isn't kept {CA}node:{one} kept"),
    "shell, short with two dashes": (
        PLAIN + " ",
        lambda one: f"kept k3s agent --t {shlex.quote(one)} --kept",
    ),
    "shell, short in one word": ("abc123/+.:", lambda one: f"kept k3s agent -t{one} --kept"),
    "login": (PLAIN + " ", lambda one: f"kept docker login -u kept -p {shlex.quote(one)} kept.example"),
    "login, one word": ("abc123/+.:", lambda one: f"kept docker login -u kept -p{one} kept.example"),
    "login, JSON": (ANY, lambda one: json.dumps(["docker", "login", "-p", one, "kept"])),
    "header of a name": (PLAIN, lambda one: f"kept -H 'X-Auth-Token: {one}' kept"),
    "header in double quotes": (PLAIN + " ", lambda one: f'kept -H "X-Auth-Token: {one}" kept'),
    "header without quotes": (PLAIN, lambda one: f"kept -H X-Auth-Token:{one}"),
    "header in JSON": (ANY, lambda one: json.dumps({"headers": [f"X-Api-Key: {one}"], "z": "kept"})),
    **{f"shell, {name}": (PLAIN + " ", in_shell(name)) for name in OTHER_NAMES},
    **{f"environment file, {name}": (ANY, in_environment(name)) for name in OTHER_NAMES},
    **{f"YAML, {name}": (ANY, in_yaml(name)) for name in OTHER_NAMES},
    "header": (PLAIN, lambda one: f"kept -H 'Authorization: Bearer {one}' kept"),
}


@pytest.mark.parametrize("form", FORMS)
def test_no_part_of_a_secret_stays(form: str) -> None:
    alphabet, text = FORMS[form]

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(secrets(alphabet))
    def check(secret: str) -> None:
        planted = text(secret)
        hidden = redact.redact(planted)
        assert [part for part in PARTS if part in hidden] == []
        assert "(hidden)" in hidden
        assert hidden.count("kept") == planted.count("kept")
        assert hidden.count("\n") == planted.count("\n")
        assert redact.redact(hidden) == hidden

    check()


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("x q4bjus.7k1x6b1fz0d72prp y", "x q4bjus.(hidden) y"),
        ("Bearer 0123456789abcdef", "Bearer (hidden)"),
        ("x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln y", "x (hidden) y"),
        ("BEGIN\n-----BEGIN EC PRIVATE KEY-----\nMHcC\nAQ==\n-----END EC PRIVATE KEY-----\nx", "BEGIN\n"
         "-----BEGIN EC PRIVATE KEY-----\n(hidden)\n(hidden)\n-----END EC PRIVATE KEY-----\nx"),
        ("- --token\n- -x y\n- --docker\n", "- --token\n- (hidden)\n- --docker\n"),
        ('{"token": ["a", {"b": "c"}]}', '{"token": (hidden)'),
        ("token: 'a\\'\nb: 'c'\n", "token: (hidden)\nb: 'c'\n"),
        ("K3S_TOKEN=a b\r\nB=c\r\n", "K3S_TOKEN=(hidden)\r\nB=c\r\n"),
    ],
)  # fmt: skip
def test_form_of_the_rest_stays(text: str, hidden: str) -> None:
    assert redact.redact(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/usr/local/bin/k3s server --docker --token-file /etc/t --vpn-auth-file=/etc/v --disable traefik",
        "token-file: /etc/rancher/k3s/jetson-k3s.token\nserver: https://jetson-1:6443\n",
        "secrets-encryption: true\n",
        "K3S_TOKEN_FILE=/etc/t K3S_URL=https://jetson-1:6443\nK3S_TOKEN=\n",
        "ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock",
        "docker run -t kept:1 && ssh -t kept",
        '{"registry-mirrors": ["https://mirror.example:5000"], "auths": {}, "proxies": {"no-proxy": "a,b"}}',
        "docker pull registry.example:5000/a/b@sha256:0123 for me@example.org",
        "kubelet-arg: [anonymous-auth=false, authorization-mode=Webhook]",
        "PWD=/root\nOLDPWD=/home\nbypass: a\nCOMPASS=b\nvolumes: [{secret: {secretName: a}}]\n",
        "k3s kubectl exec -ti a -- find -type f; k3s -tls-san 192.0.2.1 -token-file /etc/t -timeout=5s",
        "docker run -p 80:80 a; mkdir -p /etc/k3s; the login -- it was refused",
        "automountServiceAccountToken: false\ntoken: null\n",
        "the token is not the one of the cluster: compare k3s_token with /var/lib/rancher/k3s/server/token.",
        "level=fatal msg=\"Can't get a token, isn't it?\" error='no server' [::1]:6443 https://[::1]:6443/a",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ],
)
def test_text_without_a_secret_stays(text: str) -> None:
    assert redact.redact(text) == text


WORDS = (
    *("token", "password", "auth", "K3S_TOKEN", "--token", "-t", "k3s", "proxy", "secret-key", "name"),
    *("://", "@", ":", "=", " ", "\n", "\\", "\\\n", '"', "'", "{", "}", "[", "]", ",", "- ", "|", "argv[]="),
    *("value", "x", "eyJ", "Bearer ", "authorization", "\0", "\r\n", "\t", "İ", "é", CA),
    "-----BEGIN PRIVATE KEY-----",
)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_garbage_is_no_error_and_has_as_many_lines(text: str) -> None:
    hidden = redact.redact(text)
    assert hidden.count("\n") == text.count("\n")
    assert redact.redact(hidden) == hidden


JOURNAL = "Nov 25 host k3s[12]: level=info msg=\"can't find 'x' at http://h:80/x\" K3S_TOKEN=abc\n"
REPEATED = (
    *(JOURNAL, CA, "a-", "-", '"', "://", "\\'", "{token:[", 'token: "', "--token ", "--token='", "token:\n"),
    *('"token":', "token=", "-t ", "\\\n", " ", "proxy=", "eyJ-", "a://u:p/", '"--token",', "bearer "),
    *("name: token\n", "argv[]=", "\\\"token: 'a", "-----BEGIN EC PRIVATE KEY-----", "token: {a\n"),
    *("token:\n ", "token:\n\n\n", "login -p x ", "login -p", "k3s -tsecret ", "A_PASS_OLD_", "'x-token: "),
)


@pytest.mark.parametrize("part", REPEATED)
def test_time_is_linear(part: str) -> None:
    text = '"' + part * (100_000 // len(part))
    start = time.process_time()
    redact.redact(text)
    # A quadratic step takes minutes; a usual journal of 1 MB takes 0.4 s.
    assert time.process_time() - start < 5


def test_data_keep_their_structure() -> None:
    data = {
        "token": "a",
        "https://somebody:a@h": ("--token", "a", 1),
        "command": ["k3s", "agent", "-t", "a", "--agent-token=a"],
        "env": [{"name": "K3S_TOKEN", "value": "a"}, {"name": "OTHER", "value": "kept"}],
        "auth": {"username": "a", "password": 7, "anonymous": True, "none": None},
        "text": "token: a\nserver: kept\n",
        "number": 7,
    }
    assert redact.redact_data(data) == {
        "token": "(hidden)",
        "https://(hidden)@h": ["--token", "(hidden)", 1],
        "command": ["k3s", "agent", "-t", "(hidden)", "--agent-token=(hidden)"],
        "env": [{"name": "K3S_TOKEN", "value": "(hidden)"}, {"name": "OTHER", "value": "kept"}],
        "auth": {"username": "(hidden)", "password": "(hidden)", "anonymous": True, "none": None},
        "text": "token: (hidden)\nserver: kept\n",
        "number": 7,
    }


@pytest.mark.parametrize(
    "text",
    [
        COMMAND,
        COMMAND.replace(" --", " --docker --").replace(" planted", "=planted"),
        EXEC_START,
        UNIT,
        yaml.safe_dump(FLAGS),
        json.dumps(FLAGS, indent=1),
        json.dumps({"proxies": {"https-proxy": f"http://me:{PLANTED['proxy']}@proxy.example:3128"}}),
        f"K3S_DATASTORE_ENDPOINT='{PLANTED['datastore-endpoint']}'\nAWS_SECRET_ACCESS_KEY=planted/secret+key\n",
    ],
)
def test_secrets_of_the_labs_are_hidden(text: str) -> None:
    assert leaked(text)
    assert leaked(redact.redact(text)) == []
