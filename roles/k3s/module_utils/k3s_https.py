# SPDX-License-Identifier: Apache-2.0
"""Requests to K3s that carry a token: they reach servers of one cluster, and no other computer.

Runs on the board: Python 3.6 compatible.
"""

import ssl
import urllib.request


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: urllib would send the token to the address in it."""

    def redirect_request(self, *_):
        """Follow none."""


def opener(ca):
    """An opener that trusts certificates of the CA (PEM) alone, and uses no proxy. ssl.SSLError without a CA.

    The name in the certificate is not compared. K3s signs a certificate of the same CA for each node, with
    the addresses that the node asks for, so a name would prove nothing.
    """
    if not ca:
        raise ssl.SSLError("the cluster's CA is not known")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # has no CA yet, unlike the default context
    context.check_hostname = False
    context.load_verify_locations(cadata=ca)
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), NoRedirect()
    )
