"""What `${NAME#...}` and its kin make of a value."""

import re


def cut(value: str, rest: str) -> str | None:
    """The value of `${NAME<rest>}`: a beginning (#, ##) or an end (%, %%) cut off, or a piece replaced (/, //).

    None where `rest` is none of these, or holds a variable.
    """
    match = re.match(r"##|#|%%|%|//|/", rest)
    if match is None or "$" in rest:
        return None
    how, pattern = match[0], rest[match.end() :]
    if how in ("/", "//"):
        pattern, _, new = pattern.partition("/")
        return re.sub(_expression(pattern, is_longest=True), lambda _: new, value, count=0 if how == "//" else 1)
    expression = _expression(pattern, is_longest=len(how) == 2)
    if how[0] == "#":
        return re.sub(rf"\A{expression}", "", value, count=1)
    # The shortest end is the match that begins last.
    ends = [at for at in range(len(value) + 1) if re.fullmatch(_expression(pattern, is_longest=True), value[at:])]
    if not ends:
        return value
    return value[: ends[0] if len(how) == 2 else ends[-1]]


def _expression(pattern: str, *, is_longest: bool) -> str:
    """A pattern of the shell as a regular expression; `*` and `?` stand for text, all else for itself."""
    many = ".*" if is_longest else ".*?"
    return "".join(many if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)
