"""The `[episodes]` table: how prompts with an environment are played, and what their turns are worth."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.section import AT_ONCE, NEXT_STEP, Section
from shoal.errors import InvalidArgument

ToolParser = Literal["hermes", "tag", "call_tool", "qwen3_xml", "pythonic", "llama3_json", "regex"]
PARSERS_THAT_STOP = ("tag", "call_tool")
"""Forms whose calls end a turn by a text of theirs."""


class EpisodesConfig(Section):
    """Prompts that name an environment are played as episodes of several turns (docs/episodes.md).

    `sampling.max_completion_tokens` bounds a whole episode: what the policy sampled and what the environment said.
    """

    tool_parser: ToolParser = "hermes"
    """Form of the tool calls in what the policy says: `hermes` (Hermes, Qwen 2.5 and 3), `qwen3_xml` (Qwen3-Coder),
    `pythonic` (Llama 4, Olmo 3), `llama3_json` (Llama 3), `tag`, as in `<python>1 + 1</python>`, `call_tool`, as in
    `<call_tool name="python">1 + 1</call_tool>` (DR Tulu), or `regex`, a form of your own (docs/tool-calls.md)."""
    tool_pattern: str = ""
    """Of `regex`: a regular expression of the package `regex` that finds a call, with the group `name` for the tool,
    and `arguments` for a JSON object or `argument` for the first required parameter, such as
    `CALL (?P<name>[a-z]+): (?P<argument>[^\\n]*)`. Without `name` an environment needs a single tool."""
    tools_in_prompt: bool = True
    """Hand the tools of the environment to the chat template, which writes them into the prompt. Otherwise the data say
    how tools are called."""
    inline_results: str = ""
    """Text that a tool's result becomes, with `{result}`, in the policy's own turn, which goes on behind it, such as
    `"<output>\\n{result}\\n</output>\\n"` (open-instruct's `legacy`, Search-R1). Empty, the chat template writes
    results as turns of their own. Calls have to end what is sampled: those of the forms `tag` and `call_tool` do, those
    of others where `sampling.stop_strings` says so (docs/tool-calls.md)."""
    max_turns: int = Field(default=8, ge=1, le=1000)
    """Maximum number of turns that the environment answers. After the last one the policy may say one more thing if it
    was given the results of tool calls."""
    max_tool_calls: int = Field(default=64, ge=1, le=10_000)
    """Maximum number of tool calls in an episode; those beyond are not carried out. After the last one the policy may
    say one more thing."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of a turn; unset, a turn may take what is left of the episode. A turn that is cut off here is
    answered like any other."""
    timeout_s: Annotated[float, AT_ONCE] = Field(default=1800.0, gt=0)
    """Wall time of an episode, after which it is FAILED; pauses, and waits for a generator, do not count."""
    call_timeout_s: float = Field(default=60.0, gt=0, le=86_400)
    """Wall time of one call into the environment, at most a day."""
    max_losses: Annotated[int, AT_ONCE] = Field(default=3, ge=1)
    """Times that an episode may lose its environment before it is FAILED, counted anew when it has come a turn further.
    Before that it is played again: from its recorded turns where the environment is deterministic, else from the
    beginning."""
    truncated: Literal["score", "mask"] = "score"
    """Treatment of episodes that a limit ended: `score` trains on them with the reward that they get, `mask` does not
    train on them; they count in the statistics of their group."""
    turn_rewards: Literal["sum", "last", "tokens"] = "sum"
    """What becomes of the rewards of turns: their sum, or the last of them, is added to the reward of the episode; or
    each counts for the `tokens` up to the end of its turn alone, compared over all turns of the group and discounted
    with `turn_discount`."""
    turn_discount: Annotated[float, NEXT_STEP] = Field(default=1.0, gt=0, le=1)
    """Of `turn_rewards = "tokens"`: discount factor per turn, going back from the last turn, whose end has the reward
    of the episode. `advantage.discount` is per token, and applies besides."""

    @model_validator(mode="after")
    def _discounts_what_it_has(self) -> Self:
        if self.turn_discount < 1 and self.turn_rewards != "tokens":
            raise ValueError(
                'turn_discount below 1 needs turn_rewards = "tokens": otherwise turns have no rewards apart'
            )
        return self

    @field_validator("inline_results")
    @classmethod
    def _has_the_result(cls, text: str) -> str:
        if text and text.count("{result}") != 1:
            raise ValueError("must have {result} once, where the result of a tool stands")
        return text

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
