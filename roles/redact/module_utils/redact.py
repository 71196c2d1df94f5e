# SPDX-License-Identifier: Apache-2.0
"""Replace secrets in texts and data, before they reach a screen, a log, a report or a fact cache.

`redact` reads a text of any form: command lines, unit and environment files, YAML, JSON, URLs, journals, or a
mix. It replaces each secret by `(hidden)` and keeps all other bytes and the number of lines. Where a text has
two meanings, `redact` hides the longer value. A second call changes nothing. No text raises an error. Time is
linear.

Runs on the board, therefore Python 3.6 compatible. A board may have no YAML parser.
"""

import json
import re
from bisect import bisect_right

HIDDEN = "(hidden)"
# Options of K3s whose value is a secret, not the path of one (pkg/cli/cmds).
K3S_OPTIONS = (
    "agent-token",
    "cluster-secret",
    "datastore-endpoint",
    "etcd-s3-access-key",
    "etcd-s3-secret-key",
    "etcd-s3-session-token",
    "token",
    "vpn-auth",
)
# Last words of a secret's name: K3S_AGENT_TOKEN, agent-token and agentToken end in `token`.
ENDINGS = (
    "access-key",
    "access-key-id",
    "api-key",
    "auth-key",
    "authorization",
    "client-key-data",
    "client-secret",
    "cluster-secret",
    "datastore-endpoint",
    "join-key",
    "passphrase",
    "passwd",
    "password",
    "private-key",
    "secret-key",
    "token",
    "token-secret",
    "vpn-auth",
)
# A key of registries.yaml and of Docker's config.json. A longer name, such as anonymous-auth, is a switch.
AUTH = "auth"
# Values that contain no secret.
SWITCHES = ("true", "false", "null", "None", "True", "False", "~")

HEADER = "authorization"

SEPARATORS = re.compile("[-_.]")
ENDS = tuple(SEPARATORS.sub("", ending) for ending in ENDINGS)

# Where a secret may follow: the end of a name, the start of a URL's authority, a token's own form.
# Each begins with plain characters, which `re` searches for fast. NAME and BEARER are for text in lower case.
NAME = re.compile(
    "(?:auth|proxy|key[-_.]?id|key[-_.]?data|"
    + "|".join(sorted({ending.rpartition("-")[2] for ending in ENDINGS} - {"id", "data"}, reverse=True))
    + ")(?![a-z0-9_-])"
)
BEARER = re.compile(r"bearer +(?=[^\s\"']*[0-9])(?=[\w.~+/=-]{12})")
FORMS = {
    "url": re.compile("://"),
    "short": re.compile(r"-t(?<![\w-]-t)(?![\w-])"),
    "secure": re.compile("K10[0-9a-f]{64}::(?:[a-z]+:)?"),
    "bootstrap": re.compile(r"\.(?<=[a-z0-9]{6}\.)(?<![\w.-][a-z0-9]{6}\.)(?=[a-z0-9]{16}(?![\w.-]))"),
    "jwt": re.compile(r"eyJ(?<![\w-]eyJ)[\w-]{8,}\.[\w-]{8,}"),
    "pem": re.compile("-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----"),
}
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
LONGEST_NAME = 64
QUOTED = {
    '"': re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL),
    "'": re.compile(r"'[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL),
}
QUOTE = re.compile(r"""\\.|["']""", re.DOTALL)
# Between an option and its value: blanks, continued lines, the NUL of /proc/PID/cmdline; a comma in lists.
NEXT_WORD = re.compile(r"(?:[ \t\0]|\\\r?\n)+")
NEXT_ITEM = re.compile(r"[ \t]*,\s*")
NEXT_LINE = re.compile(r"\r?\n[ \t]*-[ \t]+")
PLAIN = re.compile(r"[^,}\]\n]*")
WORD_STOP = re.compile(r"""[\s\0]|\\.|["']""", re.DOTALL)
# systemd prints `argv[]` without quotes: a value ends at the next option.
ARGV, ARGV_STOP = "argv[]=", re.compile(r"\s+(?:--?[A-Za-z]|;)")
ASSIGNMENT, SPACED_ASSIGNMENT = re.compile(r"\+?="), re.compile(r"[ \t]*=[ \t]*")
COLON = re.compile(r"""\+?(\\?["']?)[ \t]*:(?=\s|$|["'\[{]|(?<=["']:))[ \t]*""")
# `{name: K3S_TOKEN, value: X}`, in one line or in two.
VALUE_OF_NAME = re.compile(r"""["']?[ \t]*(?:,\s*|\r?\n[ \t]*)["']?value["']?[ \t]*:[ \t]*""")
NAME_KEY = re.compile(r"""name["']?[ \t]*:[ \t]*["']?$""")
# A scalar that ends its line. In single quotes YAML has no escapes.
YAML_QUOTED = re.compile(r"""('[^']*(?:''[^']*)*')[ \t]*,?[ \t]*\r?(?:[ \t]\#.*)?$""")
BLOCK_SCALAR = re.compile(r"[|>][-+0-9]*$")
INDENT = re.compile(r"[ \t+-]*")
LINE_CONTENT = re.compile(r"(?m)[^\s][^\r\n]*")
BRACKETS = re.compile(r"""\\.|["'\[\]{}]""", re.DOTALL)
SCALAR = re.compile(r""""[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'|[^\s,\[\]{}:"']+""", re.DOTALL)
URL = re.compile(r"[^\s\"<>\0]*")
AUTHORITY = re.compile(r"[^/?#\s\"<>\0]*")
# `user:a/b@host` has no port after its colon.
PORT = re.compile(r"[^:\[]*(?::\d*)?$|\[")
PROXY = re.compile(r"""["']?[ \t]*[=:, \t][ \t]*["']?""")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://")
PEM_BODY = re.compile(r"[\s\\\w+/=:,.()]*(?:-(?!----)[\s\\\w+/=:,.()]*)*")
# So many characters after its first line may contain the closing quote of a YAML scalar.
LONGEST_SCALAR = 4096


def is_secret(name):
    """Is the value of this option, variable or key a secret?"""
    plain = SEPARATORS.sub("", name).lower()
    return plain.endswith(ENDS) or plain == AUTH


def redact(text):
    """The text with `(hidden)` in place of each secret."""
    return _Redaction(text).result()


def redact_data(value):
    """Parsed JSON or YAML, or a module's result: names decide, and every string is redacted as a text."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        named = isinstance(value.get("name"), str) and is_secret(value["name"])
        return {
            redact(key) if isinstance(key, str) else key: _hidden_data(one)
            if (isinstance(key, str) and is_secret(key)) or (named and key == "value")
            else redact_data(one)
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redact_list(value)
    return value


def _redact_list(values):
    """A list, which may be a command line."""
    found, of_k3s = [], False
    for number, one in enumerate(values):
        before = values[number - 1] if number else None
        if isinstance(one, str) and isinstance(before, str) and _takes_secret(before, of_k3s):
            found.append(HIDDEN)
        else:
            found.append(redact_data(one))
        of_k3s = of_k3s or (isinstance(one, str) and "k3s" in one)
    return found


def _takes_secret(word, of_k3s):
    """Is the argument after this one of a command line a secret?"""
    return (word.startswith("-") and "=" not in word and is_secret(word)) or (of_k3s and word == "-t")


def _hidden_data(value):
    """The same structure without its scalars; a switch and null stay."""
    if isinstance(value, dict):
        return {key: _hidden_data(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden_data(one) for one in value]
    return value if value is None or value == "" or isinstance(value, bool) else HIDDEN


class _Redaction:
    """One pass over a text. `done` is the end of what is settled; handlers move it forward only."""

    def __init__(self, text):
        self.text = text
        self.pieces = []
        self.done = 0
        self.line = (0, 0)
        self.quotes = []
        self.argv = -1
        self.decoded = -1
        self.unclosed = False
        self.address = (0, 0, 0, -1)

    def result(self):
        """The redacted text."""
        for position, form, found in self.points():
            if position < self.done:
                continue
            span = self.enclosing(position)
            if not self.decode(span, form, found):
                getattr(self, "at_" + form)(found, span)
        return "".join([*self.pieces, self.text[self.done :]])

    def points(self):
        """Where secrets may be, in the order of the text, as (position, form, match)."""
        lower = self.text.replace("\u0130", "i").lower()  # whose lower case has two characters
        points = [(found.start(), "name", found) for found in NAME.finditer(lower)]
        points += [(found.start(), "bearer", found) for found in BEARER.finditer(lower)]
        for form, pattern in FORMS.items():
            points += [(found.start(), form, found) for found in pattern.finditer(self.text)]
        return sorted(points, key=lambda point: point[0])

    # Replacing

    def put(self, start, end, replacement):
        """Replace this part of the text."""
        self.pieces.extend([self.text[self.done : start], replacement])
        self.done = end

    def hide(self, start, end):
        """Hide the content of each line in this part of the text."""
        start = max(start, self.done)
        if start < end:
            self.put(start, end, LINE_CONTENT.sub(HIDDEN, self.text[start:end]))

    def hide_value(self, start, end):
        """Hide a value; the quotes around it stay."""
        found = QUOTED.get(self.text[start : start + 1])
        if found is not None and end - start > 1 and found.match(self.text, start, end):
            if found.match(self.text, start, end).end() == end:
                start, end = start + 1, end - 1
        self.hide(start, end)

    # Lines and quotes

    def enclosing(self, position):
        """Positions of the quotes around this one in its line, which may be continued; None without."""
        if not self.line[0] <= position < self.line[1]:
            self.read_line(position)
        number = bisect_right(self.quotes, (position, 0)) - 1
        if number >= 0 and position <= self.quotes[number][1]:
            return self.quotes[number]
        return None

    def read_line(self, position):
        """Find the line of a position, and its quoted parts."""
        text = self.text
        start = text.rfind("\n", 0, position) + 1
        while start > 1 and text.endswith(("\\\n", "\\\r\n"), 0, start):
            start = text.rfind("\n", 0, start - 1) + 1
        end = self.end_of_line(position)
        while text.endswith(("\\", "\\\r"), start, end) and end < len(text):
            end = self.end_of_line(end + 1)
        self.line, self.quotes = (start, end + 1), []
        self.argv = text.find(ARGV, start, end)
        # An open quote is no quote, and then its kind has no other until the end.
        kinds = "\"'"
        while start is not None:
            start, kinds = self.read_quotes(start, end, kinds)

    def read_quotes(self, start, end, kinds):
        """Find quoted parts; where to go on, and with which quotes, after one that does not end."""
        opened = None
        for found in QUOTE.finditer(self.text, start, end):
            kind = found.group()
            if opened is None:
                apostrophe = kind == "'" and self.text[found.start() - 1 : found.start()].isalnum()
                if kind in kinds and not apostrophe:
                    opened = found
            elif kind == opened.group():
                self.quotes.append((opened.start(), found.start()))
                opened = None
        if opened is None:
            return None, kinds
        return opened.end(), kinds.replace(opened.group(), "")

    def end_of_line(self, position):
        """Where the line of this position ends."""
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end

    def line_prefix(self, position):
        """Start of the line if only indentation, dashes and quotes are before this position, else None."""
        start = position
        while start > 0 and self.text[start - 1] in " \t+-\"'":
            start -= 1
        return start if start == 0 or self.text[start - 1] == "\n" else None

    def decode(self, span, form, found):
        """Redact a JSON string with escapes as the text that it means. False if it is none."""
        if span is None or span[0] == self.decoded or self.text[span[0]] != '"':
            return False
        self.decoded = span[0]
        start, end = span[0] + 1, span[1]
        whole = self.text[start:end]
        if "\\" not in whole or start < self.done or self.value_from_start(start, form, found):
            return False
        try:
            meant = json.loads('"' + whole + '"', strict=False)
        except ValueError:
            return False
        redacted = redact(meant)
        if redacted != meant:
            whole = json.dumps(redacted, ensure_ascii=max(whole) < "\x80")[1:-1]
        self.put(start, end, whole)
        return True

    def value_from_start(self, start, form, found):
        """Is this a quoted assignment, such as `"K3S_TOKEN=a b"`?"""
        assigned = self.text.startswith("=", found.end())
        return form == "name" and assigned and self.name_start(found) == start

    # Handlers, one for each form

    def name_start(self, found):
        """Where the name begins that ends here."""
        start = found.start()
        first = max(self.done, start - LONGEST_NAME)
        while start > first and self.text[start - 1] in NAME_CHARACTERS:
            start -= 1
        return start

    def at_name(self, found, span):
        """Hide the value of a name, if one follows."""
        start, end = self.name_start(found), found.end()
        name = self.text[start:end]
        if name.lower().endswith("proxy"):
            self.hide_credentials(end, span)
            return
        if not is_secret(name):
            return
        if name.startswith("-"):
            self.at_option(start, end, span)
            return
        colon = COLON.match(self.text, end)
        if colon:
            self.at_key(start, colon, span, name.lower() == HEADER)
        elif name.lower() != AUTH:
            self.at_variable(start, end, span)

    def at_short(self, found, span):
        """-t is K3s' short option for --token; other programs mean something else."""
        nearby = max(self.line[0], found.start() - LONGEST_SCALAR)
        if self.enclosing(found.start()) is not None or self.line_prefix(found.start()) is not None:
            nearby = max(0, found.start() - LONGEST_SCALAR)
        if self.text.find("k3s", nearby, found.start()) >= 0:
            self.at_option(found.start(), found.end(), span)

    def at_option(self, start, end, span):
        """Hide the value of an option of a command line."""
        assignment = ASSIGNMENT.match(self.text, end)
        if assignment:
            self.hide_assigned(start, assignment.end(), span)
        elif span and (span[0] + 1, span[1]) == (start, end):
            self.hide_next(start, end + 1, None)
        else:
            self.hide_next(start, end, span)

    def hide_next(self, start, end, span):
        """Hide the next argument of a command line, or the next item of a list."""
        limit = span[1] if span else self.line[1] - 1
        item, line, blanks = (one.match(self.text, end) for one in (NEXT_ITEM, NEXT_LINE, NEXT_WORD))
        if self.text[end : end + 1] == "=":
            self.hide_word(end + 1, limit)
        elif item:
            self.hide_scalar(item.end())
        elif line and self.line_prefix(start) is not None:
            self.hide_value(line.end(), self.end_of_line(line.end()))
        elif blanks:
            self.hide_word(blanks.end(), limit, self.is_argv(start, span))

    def hide_scalar(self, start):
        """Hide a scalar between brackets."""
        limit = self.end_of_line(start)
        if self.text[start : start + 1] in QUOTED:
            self.hide_quoted(start, limit, None)
        else:
            self.hide_plain(start, limit, False)

    def is_argv(self, position, span):
        """Is this inside of a command line that systemd has printed without quotes?"""
        return span is None and 0 <= self.argv < position

    def hide_word(self, start, limit, argv=False):
        """Hide an argument, delimited as in a shell."""
        end = self.end_of_word(start, limit)
        if argv:
            stop = ARGV_STOP.search(self.text, end, limit)
            end = stop.start() if stop else limit
        self.hide_value(start, end)

    def end_of_word(self, start, limit):
        """The end of an argument; a quote without an end is a character."""
        while True:
            stop = WORD_STOP.search(self.text, start, limit)
            if stop is None:
                return limit
            kind = stop.group()
            quoted = kind in QUOTED and QUOTED[kind].match(self.text, stop.start(), limit)
            if kind[0].isspace() or kind == "\0" or kind.endswith("\n"):
                return stop.start()
            start = (quoted or stop).end()

    def hide_assigned(self, start, value, span):
        """Hide the value of NAME=VALUE, which begins at `start`."""
        if span and span[0] + 1 == start:
            self.hide(value, span[1])
            return
        limit = span[1] if span else self.line[1] - 1
        if self.text[start - 1 : start] in ("?", "&") and start:
            limit = min(limit, max(self.text.find("&", value, limit), 0) or limit)
        self.hide_word(value, limit, self.is_argv(start, span))

    def at_variable(self, start, end, span):
        """Hide the value of a variable, or that of `{name: NAME, value: VALUE}`."""
        first = span is None and self.line_prefix(start) is not None
        assignment = (SPACED_ASSIGNMENT if first else ASSIGNMENT).match(self.text, end)
        if assignment and first:
            # As in an environment file, where a value may have blanks.
            self.hide_value(assignment.end(), self.line[1] - 1)
        elif assignment:
            self.hide_assigned(start, assignment.end(), span)
        elif NAME_KEY.search(self.text[max(self.done, start - LONGEST_NAME) : start]):
            value = VALUE_OF_NAME.match(self.text, end)
            if value and "\n" in value.group() and self.text[value.end() : value.end() + 1] not in QUOTED:
                self.hide(value.end(), self.end_of_line(value.end()))
            elif value:
                self.hide_scalar(value.end())

    def at_key(self, start, colon, span, header):
        """Hide the value of a key in YAML, JSON or a header."""
        text, value = self.text, colon.end()
        quoted = bool(colon.group(1))
        first = self.line_prefix(start)
        before = text[max(0, start - LONGEST_NAME) : start].rstrip(" \t\"'\n\r")[-1:]
        if not (first is not None or quoted or header or before in ("{", ",")):
            return
        kind = text[value : value + 1]
        if kind and kind in "[{" and self.hide_brackets(value):
            return
        own = span if span and span[1] >= value else None
        limit = own[1] if own else self.end_of_line(value)
        if kind in QUOTED:
            self.hide_quoted(value, limit, first)
        elif first is not None and not quoted and own is None:
            self.hide_block(value, limit, start - first)
        elif header or (own and own[0] + 1 == start):
            self.hide(value, limit)
        else:
            self.hide_plain(value, limit, quoted)

    def hide_quoted(self, start, limit, first):
        """Hide a quoted scalar; one that does not end in its line ends soon, or with the line."""
        kind = self.text[start]
        alone = YAML_QUOTED.match(self.text, start, limit) if first is not None else None
        if alone:
            self.hide(start + 1, alone.end(1) - 1)
            return
        end, found = start, QUOTED[kind].match(self.text, start, limit)
        while found:  # '' is a quote in YAML
            end, found = found.end(), QUOTED[kind].match(self.text, found.end(), limit)
        if end == start and first is not None:
            end = self.text.find(kind, limit, limit + LONGEST_SCALAR)
            self.hide(start + 1, limit if end < 0 else end)
        elif end == start:
            self.hide(start + 1, limit)
        else:
            self.hide(start + 1, end - 1)

    def hide_block(self, start, limit, column):
        """Hide a plain or block scalar, or a nested value: the rest of its line, and the lines below it."""
        rest = self.text[start:limit].rstrip()
        if rest not in SWITCHES and not BLOCK_SCALAR.match(rest):
            self.hide(start, limit)
        self.hide(limit, self.end_of_block(limit, column))

    def end_of_block(self, limit, column):
        """End of the lines below this one that are indented deeper than the column."""
        end, start = limit, limit + 1
        while start < len(self.text):
            content = INDENT.match(self.text, start).end()
            stop = self.end_of_line(content)
            if self.text[content:stop].strip():
                if content - start <= column:
                    return end
                end = stop
            elif self.text.startswith("---", start):
                return end
            start = stop + 1
        return end

    def hide_plain(self, start, limit, quoted):
        """Hide a plain scalar inside of brackets; JSON stays JSON."""
        found = PLAIN.match(self.text, start, limit)
        value = found.group().strip()
        if value and value not in SWITCHES:
            end = start + len(found.group().rstrip())
            self.put(start, end, '"{}"'.format(HIDDEN) if quoted and value != HIDDEN else HIDDEN)

    def hide_brackets(self, start):
        """Hide the scalars in a list or a mapping; its keys stay. False if it does not end."""
        depth, opened = 0, None
        for found in () if self.unclosed else BRACKETS.finditer(self.text, start):
            kind = found.group()
            if kind in QUOTED:
                opened = None if opened == kind else opened or kind
            elif opened is None and kind in "[{":
                depth += 1
            elif opened is None and kind in "]}":
                depth -= 1
                if depth == 0:
                    self.put(start, found.end(), SCALAR.sub(_hidden_scalar, self.text[start : found.end()]))
                    return True
        self.unclosed = True
        return False

    def hide_credentials(self, end, span):
        """Hide the credentials of a proxy whose address has no scheme."""
        start = PROXY.match(self.text, end)
        if start and not SCHEME.match(self.text, start.end()):
            limit = span[1] if span and span[1] >= start.end() else len(self.text)
            self.hide(start.end(), self.last_at(start.end(), limit))

    def at_url(self, found, span):
        """Hide the credentials in a URL: all before the last @ of its authority."""
        start, limit = found.end(), span[1] if span else len(self.text)
        authority = AUTHORITY.match(self.text, start, limit)
        end = self.text.rfind("@", start, authority.end())
        if end < 0 and not PORT.match(authority.group()):
            end = self.last_at(start, limit)
        only_user = self.text.endswith("ssh", 0, found.start()) and ":" not in authority.group()
        if end > start and not only_user:
            self.hide(start, end)

    def last_at(self, start, limit):
        """Position of the last @ in the rest of a URL, -1 without one."""
        known, end, limited, last = self.address
        if limited != limit or not known <= start < end:
            end = URL.match(self.text, start, limit).end()
            last = self.text.rfind("@", start, end)
            self.address = (start, end, limit, last)
        return last

    def at_secure(self, found, span):
        """Hide what follows the CA's hash and the user in a token of K3s."""
        self.hide_word(found.end(), span[1] if span else self.line[1] - 1)

    def at_bootstrap(self, found, _span):
        """Hide the secret of a bootstrap token; its ID is public."""
        self.hide(found.end(), found.end() + 16)

    def at_jwt(self, found, span):
        """Hide a JSON web token."""
        self.hide(found.start(), self.end_of_word(found.start(), span[1] if span else self.line[1] - 1))

    def at_bearer(self, found, span):
        """Hide a token of HTTP."""
        self.hide(found.end(), self.end_of_word(found.end(), span[1] if span else self.line[1] - 1))

    def at_pem(self, found, _span):
        """Hide a private key."""
        self.hide(found.end(), PEM_BODY.match(self.text, found.end()).end())


def _hidden_scalar(found):
    """The replacement of a scalar between brackets: a key stays."""
    scalar, text = found.group(), found.string
    is_key = text[found.end() : found.end() + 16].lstrip().startswith(":")
    if is_key or scalar in SWITCHES:
        return scalar
    return scalar[0] + HIDDEN + scalar[0] if scalar[0] in QUOTED else HIDDEN
