"""The program that applies a chat template: a script of its own, which imports nothing but Jinja and starts fast.

    python -I -S template_program.py FOLDER MEMORY_BYTES CPU_S

FOLDER has the package `jinja2`. Standard input has, as JSON, one a line: the template with the values of its variables;
then for each row its messages, and whether the policy's turn begins behind them. Standard output gets a line for each
row, in order: {"text": ...}, or {"problem": ...}, with "is_last" where no line follows. Where a line is missing, its
row has ended the program.
"""

import json
import resource
import sys
from datetime import datetime
from typing import Any


def main() -> None:
    folder, memory_bytes, cpu_s = sys.argv[1:]
    sys.path.append(folder)
    _limit(int(memory_bytes), int(cpu_s))
    given = json.loads(sys.stdin.readline())
    template = None
    for line in sys.stdin:
        try:
            if template is None:
                template = environment().from_string(given["template"])
            messages, begins_turn = json.loads(line)
            text = template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=begins_turn,
                **given["variables"],
            )
            outcome = {"text": text}
        except MemoryError:
            outcome = {"problem": "takes too much memory", "is_last": True}
        except Exception as error:  # A template is a program: it may raise anything.
            outcome = {"problem": f"refuses the messages: {str(error) or type(error).__name__}"}
        print(json.dumps(outcome), flush=True)
        if "is_last" in outcome:
            return


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Sets the limits, unless they are lower already."""
    for kind, limit in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_s)):
        _, most = resource.getrlimit(kind)
        if most == resource.RLIM_INFINITY or limit <= most:
            resource.setrlimit(kind, (limit, most))


def environment() -> Any:
    """Returns Jinja as transformers sets it up for chat templates."""
    from jinja2 import TemplateError, ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """The marks of transformers around what the model has written."""

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
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


if __name__ == "__main__":
    main()
