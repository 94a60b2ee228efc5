"""Ends of bracketed text in a shell script."""


def closing(text: str, start: int, pair: str) -> int:
    """Returns the index after the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == pair[0]) - (text[index] == pair[1])
        if depth == 0:
            return index + 1
    return len(text)


def array_end(text: str, start: int) -> int:
    """Returns the index after the bracket that ends an array. Skips brackets in quotes, comments and expansions."""
    at, depth = start, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"":
            at = text.find(char, at + 1)
            if at < 0:
                break
        elif char == "#" and text[at - 1] in " \t\n(":
            at = text.find("\n", at)
            if at < 0:
                break
        depth += (char == "(") - (char == ")")
        at += 1
        if depth == 0:
            return at
    return len(text)
