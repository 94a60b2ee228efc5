"""The file systems of fsspec, such as s3:// and gs://, and the reasons for their errors."""

import re
from typing import Any

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument

_EXTRAS = {"s3": "pip install 'shoal[s3]'", "gs": "pip install 'shoal[gcs]'", "gcs": "pip install 'shoal[gcs]'"}
_ALMOST_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9]+:/(?!/)")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")
"""Names of the errors that packages of file systems raise without credentials. These packages may not be installed."""


def file_system(place: str, name: str) -> tuple[Any, str]:
    """Returns the file system of a folder or URL, and the path in it.

    `name` is the option or field that names the place. Raises `InvalidArgument` for an invalid place, and
    `FailedPrecondition` without the package of its file system.
    """
    from fsspec.core import url_to_fs

    protocol = place.partition("://")[0]
    if _ALMOST_A_URL.match(place) or protocol == "memory":
        raise InvalidArgument(f"{name} {place} cannot be used: give a folder, or a URL such as s3://BUCKET/NAME")
    try:
        files, root = url_to_fs(place, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        install = _EXTRAS.get(protocol)
        raise FailedPrecondition(
            f"{place} needs a package that is not installed: {install or error}", reason=ErrorReason.MISSING_EXTRA
        ) from None
    except ValueError as error:
        raise InvalidArgument(f"{name} {place}: {error}") from None
    return files, root.rstrip("/")


def is_local(files: Any) -> bool:
    """Whether a file system is the local file system."""
    return "file" in ((files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol))


def why_refused(error: Exception) -> str:
    """Returns what must be changed before a place can be used; empty if a repeated try may work."""
    if isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS:
        return (
            "set the credentials of a user who may write there, in the form that the package of the file system "
            "reads, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return "create the bucket, or correct its name" if isinstance(error, FileNotFoundError) else ""
