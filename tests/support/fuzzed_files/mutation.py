"""Arbitrary changes of real files."""

import random
from collections.abc import Sequence

_PIECES = (
    b"", b"\x00", b"\xff\xfe",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc3", b"\n", b"\r", b"\t", b'"', b"'", b'"""', b"  ",
    b"[", b"]", b"[[", b"{", b"}", b"(", b")", b",", b":", b"=", b"#", b"$", b"${", b"$(", b"`", b"\\", b"\\\n", b"|",
    b"&", b"*", b"-", b"--", b"<<", b"<<EOF\n", b"%", b"{%", b"{{", b"}}", b"..", b"/", b"~", b"~nobody/", b"~root/x",
    b"nan", b"inf", b"-inf", b"NaN", b"Infinity", b"1e999", b"-1", b"0", b"00", b"0x", b"1_0", b"9" * 400, b"9" * 5000,
    b"2026-13-41", b"1979-05-27T07:32:00Z", b"true", b"null", b"None", b"!!python/object:os.system", b"&a [*a]",
    b"__class__", b"..", b"\xf0\x9f\x92\xa9", "\u202e".encode(), b"\\ud800", b"\\u0000", b"a" * 5000,
)  # fmt: skip
_NESTED = ((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"), (b"(", b")"), (b"- ", b""), (b"[a.", b"]"), (b"$(", b")"))
MAX_BYTES = 64 << 10


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Changes a file in one to eight places; `others` are files to take parts from."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(_CHANGES)(data, others, rng)
    return data[:MAX_BYTES]


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randint(0, len(data))


def _with_piece(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(_PIECES) + data[at + rng.choice((0, 0, 1, 4)) :]


def _with_byte(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _with_nesting(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    at, depth = _place(data, rng), rng.choice((3, 40, 200, 1500, 20000))
    begin, end = rng.choice(_NESTED)
    return data[:at] + begin * depth + rng.choice((b"", b"1")) + end * rng.choice((0, depth)) + data[at:]


def _without_part(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    begin, end = sorted((_place(data, rng), _place(data, rng)))
    return data[:begin] + data[end:]


def _with_part(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice([data, *others])
    begin, end = sorted((_place(other, rng), _place(other, rng)))
    at = _place(data, rng)
    return data[:at] + other[begin : min(end, begin + 2000)] + data[at:]


def _with_other_lines(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 4)):
        other = rng.choice([data, *others]).split(b"\n")
        lines[rng.randrange(len(lines))] = rng.choice(other)
    return b"\n".join(lines)


def _with_other_value(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    """Replaces what follows one "=" or ":" on its line."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    sign = b"=" if b"=" in lines[at] else b":"
    name, found, _ = lines[at].partition(sign)
    value = rng.choice((*_PIECES, b"[]", b"{}", b"[1, 2]", b'"text"', b"{a = 1}", b"1.5", b"[[]]", b'[{"a": [1]}]'))
    lines[at] = name + found + b" " + value
    return b"\n".join(lines)


def _in_other_encoding(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    encoding = rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7"))
    return data.decode("utf-8", "replace").encode(encoding, "replace")


_CHANGES = (
    *[_with_piece] * 4, *[_with_byte] * 2, _with_nesting, *[_without_part] * 2, *[_with_part] * 2,
    *[_with_other_lines] * 3, *[_with_other_value] * 5, _in_other_encoding,
)  # fmt: skip
