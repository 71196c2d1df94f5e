# SPDX-License-Identifier: Apache-2.0
"""A cluster's CA: the hash by which a join token names it, and who has made it. Pure.

Runs on the board, which has no library for certificates: Python 3.6 compatible, and with as much of DER
(X.690) and X.509 (RFC 5280) as the hash takes.
"""

import base64
import binascii
import collections
import hashlib
import re

CERTIFICATE = re.compile(b"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
# The end of a subject: K3s' own CA of servers, and the root that its script for rotation makes, as we do.
NAME = re.compile(rb"k3s-server-(ca|root)(?:@(\d+))?\Z")
# Tags of DER: the version and the extensions of a certificate, the key's id in its authority key identifier.
VERSION, EXTENSIONS, KEY_ID = 0xA0, 0xA3, 0x80
# 2.5.29.14 and 2.5.29.35
SUBJECT_KEY_ID, AUTHORITY_KEY_ID = b"\x55\x1d\x0e", b"\x55\x1d\x23"

# Names and key as their DER; the two ids are empty where the certificate has none.
Certificate = collections.namedtuple("Certificate", "der subject issuer key key_id authority_id")


class CaError(Exception):
    """That is no bundle of certificates."""


def bundle_hash(pem):
    """The hash between K10 and :: in a token, of the bundle that a server gives at /cacerts.

    As K3s does it (pkg/clientaccess/token.go, hashCA). Of a single certificate it hashes the file. Of several
    it hashes the DER of the root to which the first one leads, so that a CA below it can be replaced. Where
    it leads to none, it is the file again. K3s checks signatures on the way. Here names and key ids say what
    leads to what: a server whose signatures are wrong fails when a connection is made.
    """
    root = _root(pem)
    return hashlib.sha256(pem if root is None else root.der).hexdigest()


def blocks(text):
    """The certificates of a bundle, each as PEM that ends with a new line."""
    return [match.group() + "\n" for match in re.finditer(CERTIFICATE.pattern.decode(), text, re.DOTALL)]


def made_by_k3s(text):
    """Did K3s or a rotation make this CA of a server?"""
    return _made(text) is not None


def rotated(text):
    """When a server's CA was made by a rotation, in seconds since 1970; None if it was not."""
    made = _made(text)
    return int(made.group(2)) if made is not None and made.group(1) == b"root" else None


def _made(text):
    pem = text.encode("ascii")
    root = _root(pem) or parsed(_ders(pem)[0])
    return NAME.search(root.subject)


def _root(pem):
    """The root to which the first of a bundle leads, None if it leads to none or stands alone."""
    certificates = [parsed(der) for der in _ders(pem)]
    return root_of(certificates[0], certificates[1:])


def root_of(first, others):
    """The root among the others to which a certificate leads; None when it leads to none."""
    roots = [one for one in others if one.authority_id in (b"", one.key_id)]
    between = [one for one in others if one not in roots]
    return _search([first], roots, between)


def _search(path, roots, between):
    for root in _parents(path, roots):
        return root
    for step in _parents(path, between):
        root = _search([*path, step], roots, between)
        if root is not None:
            return root
    return None


def _parents(path, candidates):
    """Those that may have signed the last of the path, the likeliest first; none that is on it already."""
    child = path[-1]
    found = [
        one
        for one in candidates
        if one.subject == child.issuer
        and (one.key_id == child.authority_id or not (one.key_id and child.authority_id))
        # The same CA cross-signed is the same CA.
        and not any((one.subject, one.key) == (before.subject, before.key) for before in path)
    ]
    return sorted(found, key=lambda one: one.key_id != child.authority_id)


def _ders(pem):
    try:
        ders = [base64.b64decode(text) for text in CERTIFICATE.findall(pem)]
    except binascii.Error as error:
        raise CaError(str(error)) from error
    if not ders:
        raise CaError("no certificate in it")
    return ders


def parsed(der):
    """A certificate from its DER; CaError when it is none."""
    try:
        ((_, certificate, _),) = _elements(der)
        _, body, _ = next(_elements(certificate))
        fields = [field for field in _elements(body) if field[0] != VERSION]
        _serial, _algorithm, issuer, _validity, subject, key = (whole for _, _, whole in fields[:6])
        ids = _key_ids(fields[6:])
    except (IndexError, StopIteration, ValueError) as error:
        raise CaError("a certificate in it is damaged") from error
    return Certificate(
        der, subject, issuer, key, ids.get(SUBJECT_KEY_ID, b""), ids.get(AUTHORITY_KEY_ID, b"")
    )


def _key_ids(optional):
    """{extension: key's id} of the two extensions that have one."""
    ids = {}
    for tag, content, _ in optional:
        if tag != EXTENSIONS:
            continue
        ((_, extensions, _),) = _elements(content)
        for _, extension, _ in _elements(extensions):
            (_, name, _), *_, (_, value, _) = _elements(extension)
            if name in (SUBJECT_KEY_ID, AUTHORITY_KEY_ID):
                ((_, inner, _),) = _elements(value)
                if name == AUTHORITY_KEY_ID:
                    inner = next((text for tag, text, _ in _elements(inner) if tag == KEY_ID), b"")
                ids[name] = inner
    return ids


def _elements(der):
    """(tag, content, tag and length and content) of each element in a row."""
    start = 0
    while start < len(der):
        tag, length, at = der[start], der[start + 1], start + 2
        if length & 0x80:  # the long form: in so many bytes
            count = length & 0x7F
            length, at = int.from_bytes(der[at : at + count], "big"), at + count
        if at + length > len(der):
            raise ValueError("cut off")
        yield tag, der[at : at + length], der[start : at + length]
        start = at + length
