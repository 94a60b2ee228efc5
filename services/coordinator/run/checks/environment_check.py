"""The check of environments at the start of a run: a reward service must have them, and prompts with tools must fit.

The tools of an environment are known only from its code, which a reward service has. So prompts are rendered with tools
once a service is connected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from services.coordinator.rollout.episodes.stage import EpisodeParts, Stage, Stages, plain_renderer
from services.coordinator.rollout.episodes.stream import EnvironmentInfo
from services.coordinator.run.checks.preflight import PreparedInputs
from services.coordinator.store.events import EventLog
from shoal.config import RunConfig
from shoal.conversation import ToolDefinition
from shoal.data.rows import row_name
from shoal.episodes.suffix_check import find_difference, trial_turns
from shoal.errors import InvalidArgument
from shoal.rollout import Prompt
from shoal.similar_names import similar_names


async def prepare_environments(
    config: RunConfig, inputs: PreparedInputs, parts: EpisodeParts
) -> tuple[PreparedInputs, frozenset[str]]:
    """Opens the environments that prompts name, and renders the prompts with their tools.

    Returns the inputs, and the ids of prompts and questions that are left out because they are too long with the tools.
    Raises `InvalidArgument` if no reward service has an environment, if an environment cannot work there, if a row
    names a tool that its environment lacks, if the chat template cannot render episodes, if a limit of tokens leaves no
    room for a turn, or if all prompts or all questions are too long.
    """
    prompts, questions = inputs.prompts.prompts, inputs.evaluation_prompts
    named = {one.environment.environment: one for one in reversed((*prompts, *questions)) if one.environment}
    if not named:
        return inputs, frozenset()
    listed, stages, events = await parts.environments.list(), parts.stages, parts.events
    infos = [_usable(listed, name, prompt) for name, prompt in named.items()]
    check_tools_of_rows((*prompts, *questions), {info.name: [tool.name for tool in info.tools] for info in infos})
    if config.run.deterministic:
        _check_deterministic(infos)
    await stages.open(infos)
    rendered, asked = await stages.beside(
        lambda: ([_with_tools(one, stages) for one in prompts], tuple(_with_tools(one, stages) for one in questions))
    )
    for name, prompt in named.items():
        if not (config.episodes.inline_results and stages[name].tools):  # Inline results never match the template.
            await _note_another_rendering(name, stages, prompt, events)
    in_training, in_evaluations = config.sampling.max_completion_tokens, config.evaluation.max_completion_tokens
    await _check_room("sampling", in_training, prompts if in_evaluations else (*prompts, *questions), stages)
    if in_evaluations:
        await _check_room("evaluation", in_evaluations, questions, stages)
    _note_missing_tools((*prompts, *questions), (*rendered, *asked), stages, events)
    limit = config.data.max_prompt_tokens
    too_long = _too_long("prompts", rendered, limit, events) | _too_long("held-out questions", asked, limit, events)
    inputs = replace(
        inputs, prompts=replace(inputs.prompts, prompts=rendered), held_out=replace(inputs.held_out, prompts=asked)
    )
    return inputs, too_long


def _check_deterministic(infos: Sequence[EnvironmentInfo]) -> None:
    """Raises `InvalidArgument` for an environment whose episodes are not reproducible."""
    for info in infos:
        if not info.is_deterministic or info.is_agent:
            what = "is an agent, which may call the policy at any time" if info.is_agent else "is not deterministic"
            raise InvalidArgument(
                f"environments.{info.name} {what}, and run.deterministic is true: set run.deterministic to false, "
                "or use another environment"
            )


def _too_long(kind: str, prompts: Sequence[Prompt], limit: int, events: EventLog) -> frozenset[str]:
    """Returns the ids of prompts that are too long, and reports their number.

    Raises `InvalidArgument` if all prompts are too long.
    """
    too_long = frozenset(prompt.prompt_id for prompt in prompts if len(prompt.token_ids) > limit)
    if too_long:
        message = f"{len(too_long)} of {len(prompts)} {kind} have more than data.max_prompt_tokens ({limit}) tokens"
        if len(too_long) == len({prompt.prompt_id for prompt in prompts}):
            raise InvalidArgument(f"{message} with the tools of their environment: raise the limit")
        events.add("prompts_left_out", f"left out: {message} with their tools", num_left_out=len(too_long))
    return too_long


def _usable(listed: dict[str, EnvironmentInfo], name: str, prompt: Prompt) -> EnvironmentInfo:
    if name not in listed:
        raise InvalidArgument(
            f"{row_name(prompt.prompt_id)} names the environment {name!r}, which the reward service does not have; it "
            f"has: {', '.join(sorted(listed)) or 'none'}"
        )
    if listed[name].unavailable:
        raise InvalidArgument(
            f"environments.{name}: the environment cannot work at the reward service: {listed[name].unavailable}"
        )
    return listed[name]


def _with_tools(prompt: Prompt, stages: Stages) -> Prompt:
    stage = _stage_of(prompt, stages)
    if stage is None or not stage.tools:
        return prompt
    token_ids = np.array(stage.renderer.prompt_ids(prompt.messages), dtype=np.int32)
    return replace(prompt, text=stage.renderer.prompt(prompt.messages), token_ids=token_ids)


def _stage_of(prompt: Prompt, stages: Stages) -> Stage | None:
    return None if prompt.environment is None else stages.of(prompt.environment)


async def _note_another_rendering(name: str, stages: Stages, prompt: Prompt, events: EventLog) -> None:
    """Notes if the tokens of two trial turns differ from the tokens of the whole conversation.

    This is no fault: training uses the tokens of the turns. Raises `InvalidArgument` for a chat template that cannot
    render such turns.
    """
    stage = stages[name]
    try:
        difference = await stages.beside(
            lambda: find_difference(stage.renderer, prompt.messages, (), trial_turns(stage.tools))
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"environments.{name} cannot be played: {error.message}") from None
    if difference is not None:
        events.add("rendering_differs", f"environments.{name}: {difference}", environment=name)


async def _check_room(table: str, limit: int, prompts: Sequence[Prompt], stages: Stages) -> None:
    """Raises `InvalidArgument` if no episode has room for a turn after the turn's beginning, which agents lack."""
    named = {one.environment.environment: one for one in prompts if one.environment}
    for name, prompt in named.items():
        renderer = stages[name].renderer
        num_tokens = len(await stages.beside(partial(renderer.opening, prompt.messages, ())))
        if num_tokens >= limit and not stages[name].is_agent:
            raise InvalidArgument(
                f"{table}.max_completion_tokens ({limit}) has no room for a turn of an episode after the {num_tokens} "
                "tokens with which the chat template begins a turn: raise the limit"
            )


def _note_missing_tools(before: Sequence[Prompt], after: Sequence[Prompt], stages: Stages, events: EventLog) -> None:
    """Adds a note for each environment whose tools the chat template does not write, although it should."""
    noted: set[str] = set()
    for old, new in zip(before, after, strict=True):
        stage = _stage_of(new, stages)
        name = new.environment.environment if new.environment else ""
        if stage is None or name in noted or not stage.shows_tools or old.text != new.text:
            continue
        noted.add(name)
        events.add("tools_not_in_prompt", missing_tools(name), environment=name)


def missing_tools(environment: str) -> str:
    """Describes an environment whose tools the chat template does not write."""
    return (
        f"the chat template writes no tools, so prompts do not tell the policy how to call the tools of {environment}: "
        "describe the tools in the data, or choose a template that writes tools"
    )


def unwritten_tools(
    config: RunConfig, inputs: PreparedInputs, prompts: Sequence[Prompt], tools: Mapping[str, Sequence[ToolDefinition]]
) -> list[str]:
    """Returns the environments whose tools the chat template does not write into a prompt, although it should.

    `tools` has the tools of each environment; prompts of other environments are ignored. Raises `InvalidArgument` for a
    template that cannot render episodes.
    """
    shown = {name: tools[name] for name in tools if tools[name] and config.episodes.tools_in_prompt}
    named = {one.environment.environment: one for one in reversed(prompts) if one.environment and _offers(one, shown)}
    if not named:
        return []
    plain = plain_renderer(config, inputs.tokenizer, inputs.stop_token_ids, inputs.time_s)
    try:
        return [
            name
            for name, prompt in named.items()
            if plain.with_tools(shown[name]).prompt(prompt.messages) == plain.prompt(prompt.messages)
        ]
    finally:
        plain.close()


def _offers(prompt: Prompt, tools: Mapping[str, Sequence[ToolDefinition]]) -> bool:
    """Whether a prompt offers any of the tools of its environment."""
    task = prompt.environment
    return task is not None and bool(tools.get(task.environment)) and (task.tools is None or len(task.tools) > 0)


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
