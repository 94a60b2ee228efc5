"""The check that environments have the tools that rows of data offer."""

from collections.abc import Mapping, Sequence

from shoal.data.rows import row_name
from shoal.errors import InvalidArgument
from shoal.rollout import Prompt
from shoal.similar_names import similar_names


def check_tools_of_rows(prompts: Sequence[Prompt], tools: Mapping[str, Sequence[str]]) -> None:
    """Raises `InvalidArgument`, which names the row, for a tool that the row's environment does not have.

    `tools` has the names of the tools of each environment; rows of other environments are ignored.
    """
    for prompt in prompts:
        task = prompt.environment
        if task is None or task.tools is None or task.environment not in tools:
            continue
        there = tools[task.environment]
        for name in task.tools:
            if name not in there:
                near = similar_names(name, there, most=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise InvalidArgument(
                    f"{row_name(prompt.prompt_id)} names the tool {name!r:.80}{hint}, which its environment "
                    f"{task.environment!r} does not have; its tools: {', '.join(there) or 'none'}"
                )
