"""The tokens between two turns of an episode.

The policy's own tokens are never rendered again. A template drops thoughts, trims text, and writes calls in another
form, and one text has many tokenizations. So only the new messages are rendered, after a placeholder for the sampled
answer, and only the text after the placeholder is tokenized.
"""

import contextlib
import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from shoal.chat_templates.probes import ANSWER, STAND_IN, first_token
from shoal.chat_templates.rendering import BoundedTemplate, Dialogue, Unrendered
from shoal.chat_templates.template_messages import for_template, render_in_any_form, without_last_end
from shoal.chat_templates.thoughts import opened_thought
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition, openai_tool
from shoal.episodes.turn_ends import TRIAL, TurnEnds, find_turn_ends, stand_in_with
from shoal.errors import InvalidArgument

RESULT = "{result}"
"""The place in `inline_results` and `user_results` for the result of a tool."""
_TALK = (*STAND_IN, {"role": "user", "content": "-"})
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
        user_results: str = "",
        time_s: float | None = None,
    ) -> None:
        """Takes a tokenizer of `transformers` with a chat template, the tools that the template renders into the
        prompt, `model.chat_template_kwargs`, further tokens that end a turn of the policy, `episodes.inline_results`,
        `episodes.user_results`, and the time that the template sees (now by default).

        Raises `InvalidArgument` for a template that does not end the policy's turn with a special token, unless results
        of tools are inline.
        """
        self._tokenizer = tokenizer
        self._template = BoundedTemplate(tokenizer, variables or {}, time_s)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._inline_results, self._user_results = inline_results, user_results
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
        self._ends = self._find_ends()
        self.ends_of_turn = tuple(map(self._number, self._ends.stops))
        """The tokens at which the turns of an episode stop."""

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
        given = self._messages(messages, self._of_data)
        text, begun = (self._render(given, begins_turn) for begins_turn in (False, True))
        return without_last_end(text, begun, self._tokenizer.eos_token)

    def opening(self, prompt: Sequence[ChatMessage], messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens between an episode's prompt and the first turn: the environment's first messages, if any,
        and the beginning of the policy's turn.

        Raises `InvalidArgument` if the template refuses or omits a message, or changes the prompt when a message
        follows the prompt.
        """
        self._check_roles(messages)
        before = self._prompt(prompt)
        both = [*map(self._of_data, prompt), *self._messages(messages, self._escape)]
        whole = self._render(both, begins_turn=True)
        if not whole.startswith(before) and self._is_refused(both):
            # The template joins the messages with the prompt's last message, whose end is already there.
            behind = self._behind_answer((), messages)
            end = self._ends.answer
            whole = before + (behind.removeprefix(end).lstrip() if end in self._ends.closing else behind)
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
        inline = self.encode(self._formatted(self._inline_results, results))
        return inline + self._behind_turn([last_token, *inline][-1], (), others) if others else inline

    def _behind_turn(self, last_token: int, calls: Sequence[ToolCall], messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens after a turn as the template writes them."""
        self._check_roles(messages)
        token_ids = self.encode(self._behind_answer(calls, messages))
        # The end of the turn was tokenized with the rest, since some tokenizers treat the beginning of a text
        # differently. A turn may end with another stop token, such as the end of the sequence. One end is enough,
        # unless the template's end also begins the next message.
        closes = token_ids[0] in map(self._number, self._ends.closing)
        is_there = last_token == token_ids[0] or (closes and self._has_ended(last_token))
        return token_ids[1:] if is_there else token_ids

    def is_final(self, token_ids: Sequence[int]) -> bool:
        """Whether no result can follow a turn, because the policy ended the turn and `inline_results` must follow a
        call immediately."""
        return bool(self._inline_results) and len(token_ids) > 0 and self._has_ended(token_ids[-1])

    def _has_ended(self, last_token: int) -> bool:
        return last_token in {*self.ends_of_turn, *self._stop_token_ids}

    def _number(self, token: str) -> int:
        return int(self._tokenizer.convert_tokens_to_ids(token))

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
        return self.encode(self._render(self._messages(messages, self._of_data), begins_turn=True))

    def beginning(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Returns the tokens of another program's conversation, up to the policy's next turn. The texts of the
        conversation cannot become special tokens. Raises `InvalidArgument` if the template refuses a message."""
        return self.encode(self._render(self._messages(messages, self._escape), begins_turn=True))

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
        if the template writes different text before the answer, or changes the answer's content. Raises
        `InvalidArgument` if the template refuses or omits a message."""
        self._check_roles(behind)
        begun = self._render(self._messages(before, for_template), begins_turn=True)
        text = self._render(self._messages((*before, answer, *behind), for_template), begins_turn=True)
        closing = self._ends.calls if answer.tool_calls and self._ends.calls else self._ends.answer
        end = text.find(closing, len(begun))
        written = text[len(begun) : end]
        is_usable = text.startswith(begun) and end >= 0 and (answer.tool_calls or answer.content in written)
        return written if is_usable else otherwise

    def _behind_answer(self, calls: Sequence[ToolCall], messages: Sequence[ChatMessage]) -> str:
        """Returns the text from the end of the policy's turn to the end."""
        new = self._messages(messages, self._escape)
        if calls and self._ends.calls and any(message.role == "tool" for message in messages):
            with contextlib.suppress(InvalidArgument):  # Some templates take only one call, or other arguments.
                text = self._render([*stand_in_with(calls, self._ends.content), *new], begins_turn=True)
                _, end, behind = text.rpartition(ANSWER)[2].partition(self._ends.calls)
                if end:
                    return end + behind
        behind = self._render([*STAND_IN, *new], begins_turn=True).rpartition(ANSWER)[2]
        end = self._ends.answer
        if end not in self._ends.closing:  # Each role may have a token of its own.
            end = first_token(self._tokenizer, behind) or end
        start = behind.find(end)
        if start < 0:
            raise InvalidArgument(
                f"model.chat_template: the template does not end the policy's turn with {end} before messages of "
                f"{' and '.join(sorted({message.role for message in messages}))}"
            )
        return behind[start:]

    def _find_ends(self) -> TurnEnds:
        """Returns the ends of turns. With `inline_results` a template may end no turns; then the token that ends any
        text also ends the answer."""
        found = find_turn_ends(
            self._render, self._tokenizer, has_results=not (self._inline_results or self._user_results)
        )
        if found is not None:
            return found
        if self._inline_results and self._tokenizer.eos_token:
            eos = str(self._tokenizer.eos_token)
            return TurnEnds(eos, "", "", frozenset([eos]), (eos,))
        behind = self._render(_TALK, begins_turn=True).rpartition(ANSWER)[2].lstrip()
        raise InvalidArgument(
            "model.chat_template: the template has no end of turn, which episodes need: after the policy's answer "
            f"comes {behind[:40]!r}, and no special token ends the answer. Choose a template that ends each "
            'answer with such a token, as model.chat_template = "chatml" does, or put results of tools into the '
            "policy's turn (episodes.inline_results)"
        )

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
            trials = [ChatMessage(role, f"{TRIAL}-{i}", tool_call_id=calls[i].id, name="-") for i in range(number)]
            if role == "tool" and not (self._ends.calls or self._user_results):
                raise InvalidArgument(
                    "model.chat_template: the template writes no results of tools behind the policy's turn: set "
                    "episodes.user_results, which puts results into messages of the user; or choose a template that "
                    'writes results, such as "chatml"'
                )
            text = self._behind_answer(calls, trials)
            if any(trial.content not in text for trial in trials):
                raise InvalidArgument(
                    f"model.chat_template: the template leaves out the environment's messages of the role {role!r} "
                    "after the policy's turn: choose a template that writes these messages, or another role in the "
                    "environment"
                )
            self._shown.add((role, number))

    def _render(self, messages: Sequence[Mapping[str, Any]], begins_turn: bool) -> str:
        [text] = render_in_any_form(self._template, [Dialogue(messages, begins_turn, self._tools)])
        if not isinstance(text, Unrendered):
            return text
        roles = ", ".join(str(message["role"]) for message in messages)
        why = f"refuses messages of the roles {roles}: {text.refusal}" if text.refusal else text.why
        raise InvalidArgument(f"model.chat_template: the template {why}")

    def _is_refused(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Returns whether the template refuses messages in the form in which they are given."""
        [text] = self._template.render([Dialogue(messages, True, self._tools)])
        return isinstance(text, Unrendered)

    def _escape(self, message: ChatMessage) -> dict[str, Any]:
        """Returns an environment's message for the template. The texts of the message cannot become special tokens."""
        return {**self._escape_texts(for_template(message)), "role": message.role}

    def _messages(self, messages: Sequence[ChatMessage], convert: Callable[[ChatMessage], Any]) -> list[dict[str, Any]]:
        """Returns messages for the template. With `user_results`, the results of a turn become a message of the user,
        and calls are part of the content."""
        if not self._user_results:
            return [*map(convert, messages)]
        messages = [replace(message, content=_words_of(message), tool_calls=()) for message in messages]
        made: list[dict[str, Any]] = []
        for is_result, group in groupby(messages, key=lambda message: message.role == "tool"):
            if is_result:
                content = self._formatted(self._user_results, [message.content for message in group])
                made.append({"role": "user", "content": content})
            else:
                made += map(convert, group)
        return made

    def _formatted(self, form: str, results: Sequence[str]) -> str:
        meant = self._meant(form)
        return "\n".join(meant.replace(RESULT, self._escape_texts(result)) for result in results)

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


def _words_of(message: ChatMessage) -> str:
    """Returns the content with the calls as the policy wrote them, or as JSON if somebody else made the calls."""
    calls = [
        call.raw or f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments_json or "{}"}}}'
        for call in message.tool_calls
    ]
    return "\n".join(filter(None, (message.content, *calls)))


def _difference(first: str, second: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return f"{first[at : at + 40]!r} becomes {second[at : at + 40]!r}"
