"""The command-line options that decide the identity of a service, and who reaches the service."""

import argparse
import os
from pathlib import Path


def add_security_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options. Each option defaults to an environment variable. An empty variable counts as unset."""
    group = parser.add_argument_group("security")
    add_tls_option(group, "with tls.crt, tls.key and ca.crt of this process; ca.crt has the authorities of its peers")
    group.add_argument(
        "--tokens-file",
        metavar="FILE",
        type=Path,
        default=os.environ.get("SHOAL_TOKENS_FILE") or None,
        help="identify callers by bearer tokens instead of certificates: the file has a line `SHA256 ROLE NAME` for "
        "each token, and SHOAL_TOKEN_FILE has the token of this process [SHOAL_TOKENS_FILE]",
    )
    group.add_argument(
        "--allow-wildcard-address",
        action="store_true",
        default=os.environ.get("SHOAL_ALLOW_WILDCARD_ADDRESS") == "1",
        help="allow --listen on every interface (0.0.0.0, [::]) [SHOAL_ALLOW_WILDCARD_ADDRESS=1]",
    )


def add_tls_option(parser: argparse._ActionsContainer, holds: str) -> None:
    """Adds `--tls-dir`. In the help of the option, `holds` states which files the folder has."""
    parser.add_argument(
        "--tls-dir",
        metavar="FOLDER",
        type=Path,
        default=os.environ.get("SHOAL_TLS_DIR") or None,
        help=f"folder {holds} (default: no TLS) [SHOAL_TLS_DIR]",
    )
