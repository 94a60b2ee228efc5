"""The program that applies chat templates: a script that imports only Jinja and starts fast.

    python -I -S template_program.py FOLDER MEMORY_BYTES

FOLDER has the package `jinja2`. Standard input has one JSON value per line. The first line has the templates "plain"
and "for_tools", the values of their variables, their time in seconds since 1970, and the limits of a text. Each further
line is a table with "cpu_s", its limit of computing time in seconds, and "rows". A row has messages, tools, and whether
the policy's turn begins after the messages. Standard output gets a line for each row, in order: {"text": ...},
{"refusal": ...} with the template's message, or {"problem": ...}. If a line is missing, its row has ended the program.
A text depends only on the input: random draws of a template are the same each time.
"""

import json
import random
import resource
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any


def main() -> None:
    folder, memory_bytes = sys.argv[1:]
    sys.path.append(folder)
    # The parent ends this program, by the end of its input or by SIGKILL.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _limit(resource.RLIMIT_AS, int(memory_bytes))
    given = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        batch = json.loads(line)
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + batch["cpu_s"])
        for row in batch["rows"]:
            outcome = _outcome(given, *row)
            print(json.dumps(outcome), flush=True)
            if outcome.get("problem") == "memory":
                return


def _outcome(given: Mapping[str, Any], messages: Any, begins_turn: bool, tools: Any) -> dict[str, Any]:
    random.seed(0)
    try:
        text = _compiled(given["for_tools" if tools else "plain"], given["time_s"]).render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=begins_turn, **given["variables"]
        )
    except MemoryError:
        return {"problem": "memory"}
    except Exception as error:  # A template is a program: it may raise anything.
        return {"refusal": str(error) or type(error).__name__}
    num_chars = sum(len(message["content"]) for message in messages) + (len(json.dumps(tools)) if tools else 0)
    if len(text) > (limit := given["max_chars"] + given["max_growth"] * num_chars):
        return {"problem": f"writes {len(text)} characters, but the limit is {limit}"}
    return {"text": text}


@cache
def _compiled(template: str, time_s: float) -> Any:
    return environment(time_s).from_string(template)


def _limit(kind: int, limit: int) -> None:
    """Sets a soft limit, unless it is already lower. The hard limit stays: the limit of time grows with every line."""
    _, most = resource.getrlimit(kind)
    if most == resource.RLIM_INFINITY or limit <= most:
        resource.setrlimit(kind, (limit, most))


def environment(time_s: float = 0.0) -> Any:
    """Returns a Jinja environment like the one of transformers for chat templates, but with a fixed time."""
    from jinja2 import TemplateError, ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """The tag that transformers allows around text that the model has written."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = datetime.fromtimestamp(time_s).strftime
    return made


if __name__ == "__main__":
    main()
