"""The tokens between two turns of an episode.

The policy's own tokens are never rendered again. A template drops thoughts, trims text, and writes calls in another
form, and one text has many tokenizations. So only the new messages are rendered, after a placeholder for the sampled
answer, and only the text after the placeholder is tokenized.
"""

import contextlib
import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.chat_templates.probes import ANSWER, STAND_IN, first_token
from shoal.chat_templates.rendering import BoundedTemplate, Dialogue, Unrendered
from shoal.chat_templates.template_messages import for_template, with_texts_of_arguments
from shoal.chat_templates.thoughts import opened_thought
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition, openai_call, openai_tool
from shoal.errors import InvalidArgument

RESULT = "{result}"
"""The place in `inline_results` for the result of a tool."""
_TALK = (*STAND_IN, {"role": "user", "content": "-"})
_TRIAL = "trial-of-a-message"
_PLACE = "\ue000"
_ESCAPED = re.compile(rf"{_PLACE}(\d+){_PLACE}")
_ROLE = re.compile(r"[A-Za-z0-9_-]+")


class TurnRenderer:
    """Renders prompts of episodes, and the messages after each turn of the policy, with a model's chat template.

    The template runs in a process with limits. A call that reaches a limit raises `InvalidArgument`.
    """

    def __init__(
        self,
        tokenizer: Any,
        tools: Sequence[ToolDefinition] = (),
        variables: Mapping[str, Any] | None = None,
        stop_token_ids: Sequence[int] = (),
        inline_results: str = "",
        time_s: float | None = None,
    ) -> None:
        """Takes a tokenizer of `transformers` with a chat template, the tools that the template renders into the
        prompt, `model.chat_template_kwargs`, further tokens that end a turn of the policy, `episodes.inline_results`,
        and the time that the template sees (now by default).

        Raises `InvalidArgument` for a template that does not end the policy's turn with a special token, unless results
        of tools are inline.
        """
        self._tokenizer = tokenizer
        self._template = BoundedTemplate(tokenizer, variables or {}, time_s)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._inline_results = inline_results
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._tools: list[dict[str, Any]] | None = None
        # Some tokenizers do not mark the tokens with which the template writes turns as special.
        behind = self._render(_TALK, begins_turn=True).rpartition(ANSWER)[2]
        self._unsplit = {token for token in tokenizer.get_added_vocab() if token.strip() and token in behind} - special
        # Longest first: a token may begin with another token.
        self._escaped = sorted({*special, *self._unsplit, ANSWER, _PLACE}, key=len, reverse=True)
        self._to_escape = re.compile("|".join(map(re.escape, self._escaped)))
        self._use(tools)

    def with_tools(self, tools: Sequence[ToolDefinition]) -> "TurnRenderer":
        """Returns a renderer with other tools that uses the same template process. Raises the constructor's errors."""
        other = copy.copy(self)
        other._use(tools)
        return other

    def _use(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = [self._escape_texts(openai_tool(tool)) for tool in tools] or None
        self._shown: set[tuple[str, int]] = set()
        self.end_of_turn_text = self._find_end_of_turn()
        self.end_of_turn = int(self._tokenizer.convert_tokens_to_ids(self.end_of_turn_text))
        """The token that ends a turn of the policy. Completions of an episode stop at it."""

    def close(self) -> None:
        """Ends the process of the template. The next call starts the process again."""
        self._template.close()

    def prompt(self, messages: Sequence[ChatMessage]) -> str:
        """Returns the text of an episode's prompt: the messages, without the beginning of the policy's turn."""
        return _ESCAPED.sub(lambda found: self._escaped[int(found[1])], self._prompt(messages))

    def prompt_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens of `prompt`. An environment's description of its tools cannot become a special token."""
        return self.encode(self._prompt(messages))

    def _prompt(self, messages: Sequence[ChatMessage]) -> str:
        return self._render([*map(self._of_data, messages)], begins_turn=False)

    def opening(self, prompt: Sequence[ChatMessage], messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens between an episode's prompt and the first turn: the environment's first messages, if any,
        and the beginning of the policy's turn.

        Raises `InvalidArgument` if the template refuses or omits a message, or changes the prompt when a message
        follows the prompt.
        """
        self._check_roles(messages)
        before = self._prompt(prompt)
        whole = self._render([*map(self._of_data, prompt), *map(self._escape, messages)], begins_turn=True)
        if not whole.startswith(before):
            raise InvalidArgument(
                "model.chat_template: the template changes the prompt when a message follows the prompt, so an "
                f"episode cannot continue the prompt's tokens: {_difference(before, whole)}"
            )
        before_ids, whole_ids = self.encode(before), self.encode(whole)
        if whole_ids[: len(before_ids)] == before_ids:
            return whole_ids[len(before_ids) :]
        return self.encode(whole[len(before) :])

    def observation(self, last_token: int, calls: Sequence[ToolCall], messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens between two turns: the end of the policy's turn (unless `last_token`, the last sampled
        token, ended the turn), all new messages, and the beginning of the policy's next turn.

        With `inline_results`, results of tools come first, inside the policy's turn, which continues if there are no
        other messages. `calls` are the turn's calls, which results of tools answer. Raises `InvalidArgument` if the
        template refuses or omits a message.
        """
        results = [message.content for message in messages if message.role == "tool"]
        if not self._inline_results or not results or self._has_ended(last_token):
            return self._behind_turn(last_token, calls, messages)
        others = [message for message in messages if message.role != "tool"]
        meant = self._meant(self._inline_results)
        inline = self.encode("\n".join(meant.replace(RESULT, self._escape_texts(result)) for result in results))
        return inline + self._behind_turn([last_token, *inline][-1], (), others) if others else inline

    def _behind_turn(self, last_token: int, calls: Sequence[ToolCall], messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens after a turn as the template writes them."""
        self._check_roles(messages)
        token_ids = self.encode(self._behind_answer(calls, messages))
        # The end of the turn was tokenized with the rest, since some tokenizers treat the beginning of a text
        # differently.
        assert token_ids[0] == self.end_of_turn
        # A turn may end with another stop token, such as the end of the sequence. One end is enough.
        return token_ids[1:] if self._has_ended(last_token) else token_ids

    def is_final(self, token_ids: Sequence[int]) -> bool:
        """Whether no result can follow a turn, because the policy ended the turn and `inline_results` must follow a
        call immediately."""
        return bool(self._inline_results) and len(token_ids) > 0 and self._has_ended(token_ids[-1])

    def _has_ended(self, last_token: int) -> bool:
        return last_token in {self.end_of_turn, *self._stop_token_ids}

    def sampled_text(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a turn's tokens, with special tokens, but without the token that ends the turn."""
        token_ids = list(token_ids)
        if token_ids and self._has_ended(token_ids[-1]):
            token_ids.pop()
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def opened_thought(self, token_ids: Sequence[int]) -> str:
        """Returns the opening mark of the thought in which a turn begins, given the tokens right before the turn: some
        templates write the mark themselves. The result is empty if the turn begins outside of a thought."""
        return opened_thought(str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False)))

    def whole(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens of a whole conversation, tokenized in one pass, up to the policy's next turn."""
        return self.encode(self._render([*map(self._of_data, messages)], begins_turn=True))

    def beginning(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens of another program's conversation, up to the policy's next turn. The texts of the
        conversation cannot become special tokens. Raises `InvalidArgument` if the template refuses a message."""
        return self.encode(self._render([*map(self._escape, messages)], begins_turn=True))

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without any that the tokenizer would add."""
        token_ids: list[int] = []
        for index, part in enumerate(_ESCAPED.split(text)):
            if index % 2:
                text = self._escaped[int(part)]
                pieces = [text[:1], text[1:]] if text in self._unsplit else [text]
            else:
                pieces = [part]
            for piece in filter(None, pieces):
                encoded = self._tokenizer(piece, add_special_tokens=False, split_special_tokens=bool(index % 2))
                token_ids += encoded["input_ids"]
        return token_ids

    def written(
        self, before: Sequence[ChatMessage], answer: ChatMessage, behind: Sequence[ChatMessage], otherwise: str
    ) -> str:
        """Returns an answer as the template writes it between messages, with calls in the template's form; `otherwise`
        if the template writes different text before the answer."""
        begun = self._render([*map(for_template, before)], begins_turn=True)
        text = self._render([*map(for_template, (*before, answer, *behind))], begins_turn=True)
        end = text.find(self.end_of_turn_text, len(begun))
        return text[len(begun) : end] if text.startswith(begun) and end >= 0 else otherwise

    def _behind_answer(self, calls: Sequence[ToolCall], messages: Sequence[ChatMessage]) -> str:
        """Returns the text from the end of the policy's turn to the end."""
        new = [*map(self._escape, messages)]
        text = ""
        if calls and any(message.role == "tool" for message in messages):
            with contextlib.suppress(InvalidArgument):  # Some templates take only one call, or other arguments.
                text = self._render([*_stand_in_with(calls), *new], begins_turn=True)
        if ANSWER not in text:
            text = self._render([*STAND_IN, *new], begins_turn=True)
        behind = text.rpartition(ANSWER)[2]
        start = behind.find(self.end_of_turn_text)
        if start < 0:
            raise InvalidArgument(
                f"model.chat_template: the template does not end the policy's turn with {self.end_of_turn_text} before "
                f"messages of {' and '.join(sorted({message.role for message in messages}))}"
            )
        return behind[start:]

    def _find_end_of_turn(self) -> str:
        """Returns the text of the token between an answer and a user's message. With `inline_results` a template may
        have no such token; then the token that ends any text also ends the answer."""
        text = self._render(_TALK, begins_turn=True)
        behind = text.rpartition(ANSWER)[2].lstrip()
        found = first_token(self._tokenizer, behind)
        # If nothing comes after the last answer, the token begins the next message.
        last = self._render(STAND_IN, begins_turn=False).rpartition(ANSWER)[2].strip()
        if ANSWER not in text or found is None or not last:
            if self._inline_results and self._tokenizer.eos_token:
                return str(self._tokenizer.eos_token)
            raise InvalidArgument(
                "model.chat_template: the template has no end of turn, which episodes need: after the policy's answer "
                f"comes {behind[:40]!r}, and no special token ends the answer. Choose a template that ends each "
                'answer with such a token, as model.chat_template = "chatml" does, or put results of tools into the '
                "policy's turn (episodes.inline_results)"
            )
        return found

    def _check_roles(self, messages: Sequence[ChatMessage]) -> None:
        """Raises `InvalidArgument` for a role whose messages the template silently omits, as many templates do, or
        writes inside the policy's turn."""
        roles = [message.role for message in messages]
        for role in {*roles}:
            if not _ROLE.fullmatch(role):  # Templates compare the role, so it cannot be escaped.
                raise InvalidArgument(
                    f"the environment sends a message of the role {role!r:.60}: a role must be one word"
                )
            number = min(roles.count(role), 2)
            if (role, number) in self._shown:
                continue
            calls = [ToolCall(f"call1234{i}", "-", "{}", ToolCallStatus.OK, "") for i in range(number)]
            trials = [ChatMessage(role, f"{_TRIAL}-{i}", tool_call_id=calls[i].id, name="-") for i in range(number)]
            text = self._behind_answer(calls, trials)
            if any(trial.content not in text for trial in trials):
                raise InvalidArgument(f"model.chat_template: {self._what_is_lost(role, calls, trials)}")
            self._shown.add((role, number))

    def _what_is_lost(self, role: str, calls: Sequence[ToolCall], trials: Sequence[ChatMessage]) -> str:
        if role == "tool":
            with contextlib.suppress(InvalidArgument):
                whole = self._render([*_stand_in_with(calls), *map(for_template, trials)], begins_turn=True)
                if all(trial.content in whole for trial in trials):
                    return (
                        "the template writes results of tools before the end of the policy's turn "
                        f"({self.end_of_turn_text}), as the templates of Gemma 4 and gpt-oss do, but an episode "
                        "continues only after that end: set "
                        'model.chat_template to a template that gives results their own turn, such as "chatml", or let '
                        "the environment answer calls with messages of a user"
                    )
        return (
            f"the template leaves out the environment's messages of the role {role!r} after the policy's turn: choose "
            "a template that writes these messages, or another role in the environment"
        )

    def _render(self, messages: Sequence[Mapping[str, Any]], begins_turn: bool) -> str:
        text = self._apply(messages, begins_turn)
        if isinstance(text, Unrendered) and text.refusal and (changed := with_texts_of_arguments(messages)):
            other = self._apply(changed, begins_turn)
            text = text if isinstance(other, Unrendered) else other
        if not isinstance(text, Unrendered):
            return text
        roles = ", ".join(str(message["role"]) for message in messages)
        why = f"refuses messages of the roles {roles}: {text.refusal}" if text.refusal else text.why
        raise InvalidArgument(f"model.chat_template: the template {why}")

    def _apply(self, messages: Sequence[Mapping[str, Any]], begins_turn: bool) -> str | Unrendered:
        [outcome] = self._template.render([Dialogue(messages, begins_turn, self._tools)])
        return outcome

    def _escape(self, message: ChatMessage) -> dict[str, Any]:
        """Returns an environment's message for the template. The texts of the message cannot become special tokens."""
        return {**self._escape_texts(for_template(message)), "role": message.role}

    def _of_data(self, message: ChatMessage) -> dict[str, Any]:
        """Returns a message of the data for the template. Special tokens in the message are intended."""
        return for_template(replace(message, content=self._meant(message.content)))

    def _meant(self, text: str) -> str:
        """Returns a text with intended special tokens in the form in which other texts are escaped."""
        return text.replace(_PLACE, f"{_PLACE}{self._escaped.index(_PLACE)}{_PLACE}")

    def _escape_texts(self, value: Any) -> Any:
        """Escapes the texts in a JSON value: the names and arguments of calls are also text from outside."""
        if isinstance(value, str):
            return self._to_escape.sub(lambda found: f"{_PLACE}{self._escaped.index(found[0])}{_PLACE}", value)
        if isinstance(value, dict):
            return {self._escape_texts(key): self._escape_texts(item) for key, item in value.items()}
        return [self._escape_texts(item) for item in value] if isinstance(value, list) else value


def _stand_in_with(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Returns the placeholder for an answer, with as many calls as the policy made."""
    functions = [openai_call(call, {"-": ANSWER}) for call in calls]
    return [STAND_IN[0], STAND_IN[1] | {"tool_calls": functions}]


def _difference(first: str, second: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return f"{first[at : at + 40]!r} becomes {second[at : at + 40]!r}"
