"""The reason why no call reaches a coordinator, and the change that helps."""

import re

from shoal.network import host_of

_OTHER_HOST = "Hostname Verification Check failed"
_UNVERIFIED = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([a-z ]+)")
_NO_TLS = "WRONG_VERSION_NUMBER"


def tls_failure(message: str) -> str:
    """Returns the cause of a failed TLS handshake in gRPC's message; empty for other failures."""
    if unverified := _UNVERIFIED.search(message):
        return unverified[1]
    return next((what for what in (_OTHER_HOST, _NO_TLS) if what in message), "")


def why_unreachable(address: str, message: str, *, uses_tls: bool) -> str:
    """Returns why no call reaches a coordinator, in place of gRPC's message.

    `uses_tls` is whether the caller uses TLS. May ask the server for the names in its certificate.
    """
    failure, host = tls_failure(message), host_of(address)
    if failure == _OTHER_HOST:
        # The import takes 0.1 s, which processes without TLS need not spend.
        from shoal.rpc.auth.certificates import names_of_server

        names = ", ".join(names_of_server(address)) or "no host"
        return (
            f"the certificate of the coordinator at {address} is not for {host}, but for {names}. Call the coordinator "
            f"by one of these names, or issue the certificate also for {host} (shoal certs FOLDER --host {host})"
        )
    if failure == _NO_TLS:
        return f"the coordinator at {address} does not use TLS: leave out --tls-dir, and unset SHOAL_TLS_DIR"
    if failure:
        return (
            f"the certificate of the coordinator at {address} is not accepted ({failure}): the ca.crt in --tls-dir or "
            "SHOAL_TLS_DIR must have the authority that issued the certificate"
        )
    hint = "" if uses_tls else "; if it uses TLS, set --tls-dir or SHOAL_TLS_DIR"
    return f"no coordinator answers at {address} ({message}): check that it is running there{hint}"
