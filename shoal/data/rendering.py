"""The texts of prompts: a chat template applied to conversations, in a child process with limits.

A template is a program that comes with a model. It may not end, or want all memory, within one operation that nothing
in the same process can interrupt. The child is a fork, which needs no time to start, and it only renders.
"""

import gc
import math
import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shoal.data.conversation import Conversation
from shoal.errors import InvalidArgument
from shoal.quantities import format_bytes

_FIXED_S, _ROW_S = 30.0, 0.1
"""Longest time: so much, and so much for each row. A row takes about 0.1 ms."""
_MEMORY_BYTES = 1 << 30
"""Most memory that templates may take beside what this process has."""
_MAX_CHARS, _MAX_GROWTH = 1 << 20, 16
"""Most characters of a text: so many, and so many for each one of its messages."""
_TEMPLATE = "the chat template (model.chat_template, else the tokenizer's own)"
_TEXT, _PROBLEM = b"t", b"p"


def render(conversations: Sequence[Conversation], tokenizer: Any, variables: Mapping[str, Any]) -> list[str]:
    """Returns the text of each conversation, in order; `variables` are those of the chat template.

    Raises `InvalidArgument`, with the row, where there is no template, or where it fails, does not end in time, or
    takes too much memory.
    """
    if not tokenizer.chat_template:
        raise InvalidArgument(
            "model.chat_template: the tokenizer has no chat template; set one, for example "
            "'{% for message in messages %}{{ message.content }}\\n{% endfor %}'"
        )
    within_s = _FIXED_S + _ROW_S * len(conversations)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_render_all, args=(sender, conversations, tokenizer, variables, within_s)
    )
    with warnings.catch_warnings():  # The child uses nothing that another thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sender.close()
    try:
        return list(_received(receiver, conversations, time.monotonic() + within_s, within_s))
    finally:
        receiver.close()
        child.kill()
        child.join()


def _received(
    receiver: Connection, conversations: Sequence[Conversation], deadline: float, within_s: float
) -> Iterable[str]:
    for conversation in conversations:
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            raise _refusal(conversation, f"does not end: {within_s:.0f} s are over for {len(conversations)} rows")
        try:
            message = receiver.recv_bytes()
        except EOFError:
            raise _refusal(conversation, "ends the process that renders it") from None
        content = message[1:].decode(errors="surrogatepass")
        if message[:1] == _PROBLEM:
            raise _refusal(conversation, content)
        yield content


def _refusal(conversation: Conversation, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{conversation.where}: {_TEMPLATE} {problem}")


def _render_all(
    sender: Connection,
    conversations: Sequence[Conversation],
    tokenizer: Any,
    variables: Mapping[str, Any],
    within_s: float,
) -> None:
    """Renders in the child, and ends it without what a Python process does at its end: buffers are the parent's."""
    try:
        _limit(within_s)
        for conversation in conversations:
            kind, content = _outcome(conversation, tokenizer, variables)
            sender.send_bytes(kind + content.encode(errors="surrogatepass"))
            if kind == _PROBLEM:
                break
    finally:
        os._exit(0)


def _outcome(conversation: Conversation, tokenizer: Any, variables: Mapping[str, Any]) -> tuple[bytes, str]:
    messages = [{"role": message.role, "content": message.content} for message in conversation.messages]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **variables)
    except MemoryError:
        return _PROBLEM, f"takes more than {format_bytes(_MEMORY_BYTES)} of memory"
    except Exception as error:  # A template is a program: it may raise anything.
        return _PROBLEM, f"refuses the messages: {str(error) or type(error).__name__}"
    num_chars = sum(len(message["content"]) for message in messages)
    if len(text) > _MAX_CHARS + _MAX_GROWTH * num_chars:
        return _PROBLEM, f"makes {len(text)} characters of {num_chars}"
    return _TEXT, text


def _limit(within_s: float) -> None:
    """Limits memory, and processor time where nobody waits any more; leaves the parent's signals and garbage alone."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    gc.freeze()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + _MEMORY_BYTES,
        resource.RLIMIT_CPU: math.ceil(within_s) + 1,
    }
    for kind, limit in limits.items():
        with suppress(ValueError):  # A lower limit is set already.
            resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
