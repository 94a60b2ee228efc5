"""Page sizes and page tokens, which work the same way in every listing."""

from shoal.errors import InvalidArgument
from shoal.wire.fields import invalid


def page_size(requested: int, *, default: int, largest: int) -> int:
    """Returns the size of a page; 0 asks for the default. Raises `InvalidArgument` for a number below 0."""
    if requested < 0:
        raise invalid("page_size", f"must be at least 0 (given: {requested})")
    return min(requested or default, largest)


def bad_token(token: str) -> InvalidArgument:
    """Makes the error for a page token that came from no earlier page of this listing."""
    return InvalidArgument(
        f"page_token: {token!r} is not a token of an earlier page of this listing; leave it empty for the first page"
    )
