# SPDX-License-Identifier: Apache-2.0
"""Replace secrets in texts and data, before they reach a screen, a log, a report or a fact cache.

`redact` reads command lines, unit and environment files, YAML, JSON, URLs and journals, also in one text. It
replaces each secret by `(hidden)` and keeps the number of lines. Where the end of a value is not certain, the
rest of its line is hidden. No text raises an error. Time is linear.

Runs on the board, therefore Python 3.6 compatible. A board may have no YAML parser.
"""

import re
from typing import Any, List, Match, Optional, Pattern, Sequence, Tuple

HIDDEN = "(hidden)"
# Last words of a secret's name: K3S_AGENT_TOKEN, agent-token and agentToken end in `token`. `auth` is a key
# of registries.yaml and of Docker's config.json; a longer name, such as anonymous-auth, is a switch. Short
# words follow another one: `secret` alone is a kind of volume, and PWD a directory. Old tokens count, too.
ENDINGS = """
    (?:access|api|auth|join|private|secret)-key access-key-id authorization client-key-data
    (?:client|cluster|token)-secret datastore-endpoint passphrase passwd password token vpn-auth
"""
NAME = (
    "(?:auth|[a-z0-9_.-]*?(?:{}|[a-z0-9][_.-](?:pass|pwd|secret)))(?:[_.-]?(?:old|new|previous|prev|[0-9]+))?"
).format("|".join(ENDINGS.split()).replace("-", "[-_.]?"))
SECRET = re.compile(NAME + r"\Z", re.IGNORECASE)
SWITCH = re.compile(r"(?:true|false|null|none|~|''|\"\")?[\s,]*\Z", re.IGNORECASE)
# How much of a line before a name or an address is searched.
NEARBY = 64

# A name with the sign of an assignment or a key, or with the end of an argument.
NAMED = re.compile(
    r"""
    (?P<quote>["']?) (?<![\w.-]) (?P<name>--?t|-p|NAME) (?![\w-])
    (?:
        (?P<sign> \\*["']?[ \t]*\+?[:=][ \t]* )
        | (?P<value> ["']?,[ \t]*["']?value["']?:[ \t]* )  # of {name: K3S_TOKEN, value: X}
        | (?P<last> ["']?[ \t]*,?[ \t]*\\?\r?$ )
        | (?P<blank> ["']?[,\s\0]+ )
    )
    """.replace("NAME", NAME),
    re.IGNORECASE | re.VERBOSE,
)
# -t is K3s' --token, and -p the password of `docker login`. Not an option that begins like that.
SHORT = ("-t", "--t", "-p")
STUCK = re.compile(
    r"""(?<![\w.-])(?P<name>-[tp])(?!ls-|oken|imeout|ype|emplate|ail)(?P<value>[^\s\0=,'"-][^\s\0'"]{3,})"""
)
NAME_KEY = re.compile(r"""name["']?[ \t]*:[ \t]*$""")
# Indentation and dashes of lists before a key or a variable.
INDENT = re.compile(r"[ \t]*(?:-[ \t]+)*(?:export[ \t]+)?")
CONTENT = re.compile(r"(?m)[^\s][^\r\n]*")
ESCAPED_QUOTE = re.compile(r"""\\+["']""")
QUOTED = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.|'')*')(?=[\s\0]|$|[,;:)}\]]+(?:[\s\0"'\\]|$))""")
UP_TO_QUOTE = re.compile(r'(?:[^"\\]|\\.)*')
WORD = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s\0])+""")
IN_BRACKETS = re.compile(r"[^,}\]]*")
# systemd prints arguments without quotes: a value ends at the next option.
EXEC, EXEC_VALUE_END = re.compile(r"(?:Exec\w+=)?\{ path="), re.compile(r"\s+(?:--?[A-Za-z]|;)|$")

PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----)((?:[^-]|-(?!----))*)")
# Without a name: tokens of K3s, of `k3s token create`, JSON web tokens, tokens of HTTP.
FORMS = re.compile(
    r"""
    (?P<secure> K10[0-9a-f]{64}::) [^\s\0]*
    | (?P<bootstrap> (?<![\w.-])[a-z0-9]{6}\.) [a-z0-9]{16} (?![\w.-])
    | (?<![\w-]) eyJ[\w-]{8,}\.[\w-]{8,}[\w.-]*
    | (?P<bearer> [Bb][Ee][Aa][Rr][Ee][Rr]\ +) (?=[^\s"']*[0-9]) [\w.~+/=-]{12,}
    """,
    re.VERBOSE,
)
URL = re.compile(r"[^\s\"<>\0]+")
AUTHORITY = re.compile("://|proxy[:=,]", re.IGNORECASE)
CUT = re.compile(r"://[^/?#]*\(hidden\)$")  # its password has the name of a secret in it
PROXY = re.compile(r"""proxy["']?[ \t]*[:=,]?[ \t]*["']?$""", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Is the value of this option, variable or key a secret?"""
    return SECRET.match(name) is not None


def redact(text: str) -> str:
    """The text with `(hidden)` in place of each secret."""
    text = PRIVATE_KEY.sub(lambda found: found.group(1) + _hide(found.group(2)), text)
    of_k3s = "k3s" in text
    lines, column, awaited = [], None, False
    for line in text.split("\n"):
        indent = _end(INDENT, line, 0)
        if awaited or (column is not None and (indent > column or not line.strip())):
            lines.append(line[:indent] + _hide(line[indent:]))
            awaited = awaited and not line.strip(" \t\\")
        else:
            hidden, column, awaited = _redact_names(line, indent, of_k3s)
            lines.append(URL.sub(_without_credentials, FORMS.sub(_hide_form, hidden)))
    return "\n".join(lines)


def redact_data(value: Any) -> Any:
    """Parsed JSON or YAML, or a module's result: names decide, and every string is redacted as a text."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        named = isinstance(value.get("name"), str) and is_secret(value["name"])
        return {
            redact(key) if isinstance(key, str) else key: _hidden_data(one)
            if (isinstance(key, str) and _takes_secret(key, one)) or (named and key == "value")
            else redact_data(one)
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redact_list(value)
    return value


def _takes_secret(key: str, value: Any) -> bool:
    """Is the value of this key a secret? That of a proxy is one with credentials."""
    return is_secret(key) or (key.lower().endswith("proxy") and isinstance(value, str) and "@" in value)


def _redact_list(values: Sequence[Any]) -> List[Any]:
    """A list, which may be a command line."""
    found, of_k3s, of_login, before = [], False, False, ""
    for one in values:
        option = before in SHORT or (before.startswith("-") and is_secret(before))
        awaited = option and _takes_secret_here(before, of_k3s, of_login)
        found.append(HIDDEN if awaited and isinstance(one, str) else redact_data(one))
        before = one if isinstance(one, str) else ""
        of_k3s, of_login = of_k3s or "k3s" in before, of_login or "login" in before
    return found


def _hidden_data(value: Any) -> Any:
    """The same structure without its scalars; a switch and null stay."""
    if isinstance(value, dict):
        return {key: _hidden_data(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden_data(one) for one in value]
    return value if value is None or value == "" or isinstance(value, bool) else HIDDEN


def _hide(text: str) -> str:
    """The text with the content of each line replaced."""
    return CONTENT.sub(HIDDEN, text)


def _takes_secret_here(name: str, of_k3s: bool, of_login: bool) -> bool:
    """Has this option a secret in this command? Short ones mean something else in others."""
    if name == "-p":
        return of_login
    return of_k3s or name not in SHORT


def _redact_names(line: str, indent: int, of_k3s: bool) -> Tuple[str, Optional[int], bool]:
    """(line, column, awaited): the line without the values of names.

    Lines below that are indented deeper than `column` belong to a value. If `awaited`, so does the next line.
    """
    pieces, done, column, awaited = [], 0, None, False
    login = line.find("login")

    def has_secret(found: Match[str]) -> bool:
        return _takes_secret_here(found.group("name"), of_k3s, 0 <= login < found.start())

    line = STUCK.sub(lambda found: found.group("name") + HIDDEN if has_secret(found) else found.group(), line)
    for found in NAMED.finditer(line):
        option = found.group("name").startswith("-")
        before = line[max(0, found.start() - NEARBY) : found.start()]
        if found.start() < done or not has_secret(found):
            continue
        if found.group("last") is not None:
            listed = found.start() == indent or line.rstrip()[-1:] in (",", "\\")
            awaited = (option and listed) or NAME_KEY.search(before) is not None
            continue
        if found.start() == indent and found.group("sign") and not option:
            start, end, column = found.end(), len(line), indent
        else:
            start, end = _value(line, found, option, before.rstrip()[-1:])
        if not SWITCH.match(line[start:end]):
            pieces += [line[done:start], _hide(line[start:end])]
            done = end
            awaited = line[end:].strip() in ("", "\\") and line.rstrip().endswith("\\")
    return "".join([*pieces, line[done:]]), column, awaited


def _value(line: str, found: Match[str], option: bool, before: str) -> Tuple[int, int]:
    """Start and end of the value of a name; `before` is the character before the name."""
    start, separator = found.end(), found.group("sign") or found.group("value") or found.group("blank")
    closed = separator[0] in ("'", '"', "\\")
    key = ":" in separator and not option
    word = found.group("name").lower()
    # Of HTTP: `-H 'X-Auth-Token: X'`.
    header = word.endswith("authorization") or (
        key and not closed and (found.group("quote") or word.startswith("x-"))
    )
    sure = closed or header or found.group("value") or before in ("{", ",", "\\")
    if (key and not sure) or (found.group("blank") and not option):
        return start, start
    opening = start if closed or not found.group("quote") else found.start()
    quoted, in_quotes = QUOTED.match(line, opening), line[start : start + 1] in ("'", '"')
    if line.startswith(HIDDEN, start):
        end = start
    elif ESCAPED_QUOTE.match(line, start) or (before == "\\" and not in_quotes):
        end = max(_end(UP_TO_QUOTE, line, start), _end(WORD, line, start))
    elif quoted:
        start, end = max(start, opening + 1), quoted.end() - 1
    elif header or (key and (in_quotes or line[start : start + 1] in ("[", "{"))):
        end = len(line)
    elif key:
        end = _end(IN_BRACKETS, line, start)
    else:
        end = max(_end(WORD, line, opening), _end(WORD, line, start))
        if EXEC.match(line):
            end = next(EXEC_VALUE_END.finditer(line, end)).start()
        elif "," in separator:
            end = max(end, _end(IN_BRACKETS, line, start))
    return start, end


def _end(pattern: Pattern[str], line: str, start: int) -> int:
    """Where the match of a pattern at `start` ends; `start` without one."""
    found = pattern.match(line, start)
    return found.end() if found else start


def _hide_form(found: Match[str]) -> str:
    """The replacement of a secret without a name; the public part before it stays."""
    return (found.group(found.lastgroup) if found.lastgroup else "") + HIDDEN


def _without_credentials(found: Match[str]) -> str:
    """A URL, or a proxy whose address has no scheme, without user and password."""
    word, nearby = found.group(), found.string[max(0, found.start() - NEARBY) : found.start()]
    authority, end = AUTHORITY.search(word), len(word) if CUT.search(word) else word.rfind("@")
    if not authority and not PROXY.search(nearby):
        return word
    start = authority.end() if authority else 0
    return word[:start] + HIDDEN + word[end:] if start < end else word
