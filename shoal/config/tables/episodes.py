"""The `[episodes]` table: how prompts with an environment are played, and what their turns are worth."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.section import AT_ONCE, NEXT_STEP, Section
from shoal.errors import InvalidArgument

ToolParser = Literal[
    "hermes",
    "tag",
    "call_tool",
    "qwen3_xml",
    "pythonic",
    "llama3_json",
    "harmony",
    "gemma4",
    "glm",
    "phi4_mini",
    "mistral",
    "regex",
]
PARSERS_THAT_STOP = ("tag", "call_tool")
"""Forms of tool calls whose own closing text ends a turn."""


class EpisodesConfig(Section):
    """Prompts that name an environment are played as episodes of several turns (docs/episodes.md).

    `sampling.max_completion_tokens` bounds a whole episode: what the policy sampled and what the environment said.
    """

    tool_parser: ToolParser = "hermes"
    """Form of the tool calls in the policy's text: `hermes` (Hermes, Qwen 2.5 and 3), `qwen3_xml` (Qwen3-Coder and
    3.5), `pythonic` (Llama 4, Olmo 3, Gemma 3), `llama3_json` (Llama 3), `harmony` (gpt-oss), `gemma4`, `glm` (GLM-4.5
    and later), `phi4_mini`, `mistral`, `tag`, as in `<python>1 + 1</python>`, `call_tool`, as in
    `<call_tool name="python">1 + 1</call_tool>` (DR Tulu), or `regex`, a form of your own (docs/tool-calls.md)."""
    tool_pattern: str = ""
    """A regular expression of the package `regex` that finds a call. Applies with `tool_parser` `regex`. The group
    `name` is the tool, and the group `arguments` is a JSON object; in its place the group `argument` is the first
    required parameter. An example is `CALL (?P<name>[a-z]+): (?P<argument>[^\\n]*)`. Without the group `name` the
    environment must have a single tool."""
    tools_in_prompt: bool = True
    """Hand the tools of the environment to the chat template, which writes the tools into the prompt. Otherwise the
    data has to state how tools are called."""
    inline_results: str = ""
    """Text that contains the result of a tool as `{result}` and is put into the policy's own turn, such as
    `"<output>\\n{result}\\n</output>\\n"` (open-instruct's `legacy`, Search-R1). The turn continues after this text. If
    empty, the chat template writes results as turns of their own. The sampled text has to end with the call. `tag` and
    `call_tool` calls end it; others do so if `sampling.stop_strings` has their end (docs/tool-calls.md)."""
    user_results: str = ""
    """Text that contains the result of a tool as `{result}` and becomes a message of the user, such as
    `"```tool_output\\n{result}\\n```"`, for chat templates that write no results of tools (Gemma 3, Phi 3). If empty,
    results have the role `tool`. The data has to state how tools are called."""
    max_turns: int = Field(default=8, ge=1, le=1000)
    """Maximum number of turns that the environment answers. If the last of these answers has results of tool calls, the
    policy may say one more thing."""
    max_tool_calls: int = Field(default=64, ge=1, le=10_000)
    """Maximum number of tool calls in an episode. Further calls are not made, and the policy may say one more thing."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of a turn. If unset, a turn may take all remaining tokens of the episode. A turn that this limit
    cuts off is answered like any other turn."""
    timeout_s: Annotated[float, AT_ONCE] = Field(default=1800.0, gt=0)
    """Longest wall time of an episode, after which it is FAILED. Pauses and waits for a generator do not count."""
    call_timeout_s: float = Field(default=60.0, gt=0, le=86_400)
    """Longest wall time of one call into the environment, at most a day."""
    max_losses: Annotated[int, AT_ONCE] = Field(default=3, ge=1)
    """Number of times that an episode may lose its environment before the episode is FAILED. The count begins anew when
    the episode has come a turn further. Up to this number the episode is played again: from its recorded turns if the
    environment is deterministic, else from the beginning."""
    truncated: Literal["score", "mask"] = "score"
    """Treatment of episodes that a limit ended. `score` trains on such episodes with the reward that they get. `mask`
    does not train on them, but they count in the statistics of their group."""
    turn_rewards: Literal["sum", "last", "tokens"] = "sum"
    """Use of the rewards of turns. `sum` adds the sum of the turns' rewards to the reward of the episode, and `last`
    adds the last turn's reward. With `tokens` the reward of a turn counts only for the tokens up to the end of this
    turn. These rewards are compared over all turns of the group and discounted with `turn_discount`."""
    turn_discount: Annotated[float, NEXT_STEP] = Field(default=1.0, gt=0, le=1)
    """Discount factor per turn, going back from the last turn, at whose end the reward of the episode is added. Applies
    with `turn_rewards = "tokens"`. `advantage.discount` is per token, and applies in addition."""

    @model_validator(mode="after")
    def _discounts_what_it_has(self) -> Self:
        if self.turn_discount < 1 and self.turn_rewards != "tokens":
            raise ValueError(
                'turn_discount below 1 needs turn_rewards = "tokens": otherwise single turns have no rewards'
            )
        return self

    @field_validator("inline_results", "user_results")
    @classmethod
    def _has_the_result(cls, text: str) -> str:
        if text and text.count("{result}") != 1:
            raise ValueError("must contain {result} exactly once, at the place of the tool's result")
        return text

    @model_validator(mode="after")
    def _has_one_place_for_results(self) -> Self:
        if self.inline_results and self.user_results:
            raise ValueError(
                "inline_results and user_results are two places for the results of tools: give one of them"
            )
        return self

    @model_validator(mode="after")
    def _has_a_pattern_that_works(self) -> Self:
        if (self.tool_parser == "regex") != bool(self.tool_pattern):
            raise ValueError('tool_parser = "regex" and tool_pattern go together: give both, or neither')
        if self.tool_pattern:
            from shoal.episodes.tool_calls import make_parser

            try:
                make_parser("regex", self.tool_pattern)
            except InvalidArgument as error:
                raise ValueError(error.message) from None
        return self
