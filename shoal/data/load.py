"""Loading of prompts from data sources."""

import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.config.tables.data import DataConfig, SourceConfig
from shoal.config.tables.model import ModelConfig
from shoal.config.tables.reward import RewardConfig
from shoal.data.conversation import Conversation, conversation_of, unknown_verifier
from shoal.data.draw import draw_distinct
from shoal.data.files import read_dataset, read_files
from shoal.data.prompt_set import PromptSet
from shoal.data.rendering import render
from shoal.data.rows import RowSource, check_columns
from shoal.data.tasks import make_task
from shoal.errors import InvalidArgument
from shoal.models.model_folder import load_tokenizer
from shoal.quantities import counted
from shoal.rollout import MAX_WEIGHT, Prompt

_BATCH = 1024
"""Texts of one tokenizer call, which runs on all cores."""
_MAX_NAMES = 12


def load_prompts(
    sources: Sequence[SourceConfig],
    *,
    model: ModelConfig,
    data: DataConfig,
    seed: int,
    reward: RewardConfig,
    known_verifiers: Collection[str] | None,
    known_environments: Collection[str] = (),
    tokenizer: Any = None,
    time_s: float | None = None,
    beside: Iterable[Prompt] = (),
) -> PromptSet:
    """Reads every source, mixes them, applies the chat template and drops prompts that are too long.

    `reward` gives the names and weights of verifiers. `known_verifiers` and `known_environments` are the names that
    rows may use; None allows any verifier. With `tokenizer` the model's tokenizer is not loaded again. The chat
    template sees `time_s` as the current time. If a row gives different prompts, for example because another
    source or a prompt in `beside` has the same file, their ids differ: "q.jsonl#2:6" is of the same row as "q.jsonl:6".

    Raises `InvalidArgument` for an empty source, a malformed row (with file and line), an unknown verifier or
    environment, a failing chat template, and when every prompt is too long.
    """
    check_verifier_names(reward, known_verifiers)
    if tokenizer is None:
        tokenizer = load_tokenizer(model)
    asked: list[tuple[Prompt, str]] = []
    digests, lengths_dropped, left_out = dict[str, str](), list[int](), set[str]()
    known = {prompt.prompt_id: prompt for prompt in beside}
    for source in sources:
        rows = _read(source)
        digests |= rows.digests
        uses = Counter(_select_rows(source, rows.name, len(rows.rows)))
        numbers = sorted(uses)
        used = [rows.rows[number] for number in numbers]
        conversations = [conversation_of(row, source, known_verifiers, reward, known_environments) for row in used]
        left_out.update(*(conversation.left_out for conversation in conversations))
        tokenized = _tokenize(conversations, tokenizer, model.chat_template_kwargs, time_s)
        kept: dict[int, tuple[Prompt, str]] = {}
        for number, conversation, (text, token_ids) in zip(numbers, conversations, tokenized, strict=True):
            if len(token_ids) > data.max_prompt_tokens:
                lengths_dropped += [len(token_ids)] * uses[number]
                continue
            prompt = _prompt(f"{rows.name}:{rows.rows[number].number}", conversation, text, token_ids)
            kept[number] = (prompt, _asked(conversation))
        kept = _with_own_ids(kept, known, rows.name)
        known |= {prompt.prompt_id: prompt for prompt, _ in kept.values()}
        for repeat in range(max(uses.values())):
            asked += [one for number, one in kept.items() if uses[number] > repeat]
    if not asked:
        raise _all_too_long(lengths_dropped, data.max_prompt_tokens)
    return PromptSet(
        prompts=[prompt for prompt, _ in asked],
        questions=[question for _, question in asked],
        num_dropped_too_long=len(lengths_dropped),
        digests=digests,
        left_out=frozenset(left_out),
        seed=seed,
        shuffle=data.shuffle,
    )


def _all_too_long(lengths: Sequence[int], limit: int) -> InvalidArgument:
    return InvalidArgument(
        f"data.max_prompt_tokens: every prompt is longer than {limit} tokens (there are {len(lengths)} prompts, and "
        f"the shortest has {min(lengths)} tokens); raise the limit"
    )


def first_conversations(
    sources: Sequence[SourceConfig],
    verifiers: Collection[str],
    reward: RewardConfig,
    known_environments: Collection[str] = (),
) -> dict[str, Conversation]:
    """Returns for each of `verifiers` the first conversation that names it, if there is one. Needs no tokenizer.
    Raises the errors of `load_prompts` for the rows that are read."""
    found: dict[str, Conversation] = {}
    for source in sources:
        for row in _read(source).rows:
            conversation = conversation_of(row, source, reward.known_verifiers, reward, known_environments)
            for truth in conversation.ground_truths:
                if truth.verifier in verifiers:
                    found.setdefault(truth.verifier, conversation)
            if len(found) == len(verifiers):
                return found
    return found


def _prompt(prompt_id: str, conversation: Conversation, text: str, token_ids: list[int]) -> Prompt:
    return Prompt(
        prompt_id=prompt_id,
        token_ids=np.array(token_ids, dtype=np.int32),
        text=text,
        ground_truths=conversation.ground_truths,
        messages=conversation.messages,
        environment=conversation.environment,
    )


def _with_own_ids(
    kept: Mapping[int, tuple[Prompt, str]], known: Mapping[str, Prompt], name: str
) -> dict[int, tuple[Prompt, str]]:
    """Returns the prompts of a source, with the first alias of its name under which no different prompt is known."""

    def named(alias: str) -> dict[int, tuple[Prompt, str]]:
        return {
            number: (replace(prompt, prompt_id=f"{alias}{prompt.prompt_id.removeprefix(name)}"), question)
            for number, (prompt, question) in kept.items()
        }

    aliases = itertools.chain([name], (f"{name}#{number}" for number in itertools.count(2)))
    return next(
        found
        for found in map(named, aliases)
        if all(_content(prompt) == _content(known.get(prompt.prompt_id, prompt)) for prompt, _ in found.values())
    )


def _content(prompt: Prompt) -> tuple[Any, ...]:
    return prompt.text, prompt.messages, prompt.ground_truths, prompt.environment


def _asked(conversation: Conversation) -> str:
    """Returns the question of a prompt, with the task of its environment."""
    task = conversation.environment
    if task is None:
        return conversation.question
    return f"{conversation.question}\n{task.environment}: {json.dumps(task.task, sort_keys=True)}"


def check_verifier_names(reward: RewardConfig, known_verifiers: Collection[str] | None) -> None:
    """Raises `InvalidArgument` for settings of unknown verifiers, which would have no effect, and for weights that are
    too large."""
    for name, weight in reward.weights.items():
        if abs(weight) > MAX_WEIGHT:
            raise InvalidArgument(
                f"reward.weights.{name} must be from -{MAX_WEIGHT:g} to {MAX_WEIGHT:g} (given: {weight:g})"
            )
    fields = {"weights": [*reward.weights], "remap": [*reward.remap.values()], "correct": [*reward.correct]}
    for field, names in fields.items():
        for name in names:
            if known_verifiers is not None and name not in known_verifiers:
                raise InvalidArgument(f"reward.{field}: {unknown_verifier(name, known_verifiers)}")


def _read(source: SourceConfig) -> RowSource:
    if source.path is not None:
        rows = read_files(source)
    else:
        rows = make_task(source) if source.dataset is None else read_dataset(source)
    check_columns(source, rows)
    if source.name is not None:
        rows = replace(rows, name=source.name)
    return _labeled_rows(rows, source) if source.labels else rows


def _labeled_rows(rows: RowSource, source: SourceConfig) -> RowSource:
    """Returns the rows whose verifier column has one of `source.labels`, in any case."""
    wanted = {label.lower() for label in source.labels}
    chosen, found = [], set()
    for row in rows.rows:
        named = row.values.get(source.verifier_column)
        names = {str(name).lower() for name in (named if isinstance(named, list) else [named])}
        found |= names
        if names & wanted:
            chosen.append(row)
    if not chosen:
        raise InvalidArgument(
            f"data source {rows.name}: no row has one of the labels {', '.join(source.labels)} in the column "
            f"{source.verifier_column!r}; the column has {', '.join(sorted(found)[:_MAX_NAMES])}"
        )
    return replace(rows, rows=chosen)


def _select_rows(source: SourceConfig, name: str, num_rows: int) -> list[int]:
    """Returns the numbers of the rows to use, pass by pass: `count` rows, `fraction` of the rows, or all.

    Whole passes use every row; the rows of the last, partial pass are drawn without replacement. The draw depends only
    on the source, so that runs with different seeds train on the same prompts.

    Raises `InvalidArgument` when a fraction selects no row.
    """
    if source.count is not None:
        wanted = source.count
    elif source.fraction is not None:
        wanted = int(source.fraction * num_rows)
        if wanted == 0:
            raise InvalidArgument(
                f"data source {name}: fraction {source.fraction} of {counted(num_rows, 'row')} selects no row"
            )
    else:
        wanted = num_rows
    passes, rest = divmod(wanted, num_rows)
    return list(range(num_rows)) * passes + sorted(draw_distinct(f"mixture:{name}", num_rows, rest))


def _tokenize(
    conversations: Sequence[Conversation], tokenizer: Any, variables: Mapping[str, Any], time_s: float | None
) -> list[tuple[str, list[int]]]:
    """Returns the text and token ids of each conversation. Raises the errors of `render`."""
    texts = render(conversations, tokenizer, variables, time_s)
    token_ids: list[list[int]] = []
    for start in range(0, len(texts), _BATCH):
        # The template already writes the special tokens.
        token_ids += tokenizer(texts[start : start + _BATCH], add_special_tokens=False)["input_ids"]
    for conversation, ids in zip(conversations, token_ids, strict=True):
        if not ids:
            raise InvalidArgument(f"{conversation.where}: the prompt has no tokens, because the prompt's text is empty")
    return list(zip(texts, token_ids, strict=True))
