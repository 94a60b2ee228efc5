"""The process that a reward model runs in: `python -m services.reward.model.runner PARENT_PID`.

Reads its settings from stdin, loads the model and says "ready", or why not; then reads batches of questions and
answers each on stdout, until stdin ends or the parent dies. Whatever hangs in here is ended by the parent with SIGKILL.
"""

import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.reward.frames import Message, encode_frame, read_frame, take_pipes
from services.reward.model.question import Question
from shoal.config.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, ShoalError
from shoal.reward_model import describe_reward_model, rendered
from shoal.rollout import ScoreOutcome
from shoal.worker.parent import die_with_parent

NO_TORCH = (
    "reward.model.path: a model runs here by torch, which is not installed: pip install 'shoal[reward-model]', or "
    "serve the model elsewhere and give reward.model.base_url"
)

Encoded = Mapping[str, Sequence[int]]
"""What a tokenizer makes of one input, by the model's names for it; `input_ids` are among it."""


def main() -> None:
    die_with_parent(parent_pid=int(sys.argv[1]))
    # A signal to the process group is for the parent: it drains first, and this process with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Else a bar and a report on standard error for each start.
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    batches, answers = take_pipes()
    settings = read_frame(batches)
    if settings is None:
        return
    try:
        runner = Runner(RewardModelConfig.model_validate(settings["config"]))
    except ShoalError as error:
        answers.write(encode_frame({"event": "refused", "why": error.message}))
        return
    answers.write(encode_frame({"event": "ready", "label": runner.label}))
    while (batch := read_frame(batches)) is not None:
        for answered in runner.answers(batch["questions"]):
            answers.write(encode_frame({"event": "answered", "answers": answered}))


class Runner:
    """A sequence classification model with its tokenizer."""

    def __init__(self, config: RewardModelConfig) -> None:
        """Raises `InvalidArgument` that names the field of `reward.model` at fault."""
        if importlib.util.find_spec("torch") is None:
            raise InvalidArgument(NO_TORCH)
        self._config = config
        description = describe_reward_model(config)
        self._tokenizer = description.tokenizer
        self._max_tokens = description.max_length_tokens
        self.label = description.label
        """The number of the label that pays."""
        self._model = _load(config, description.folder)
        if len(self._model_labels()) != description.num_labels:
            raise InvalidArgument(
                f"reward.model.path: the head of {config.path} has {len(self._model_labels())} labels and its "
                f"config.json names {description.num_labels}; mend the model"
            )

    def _model_labels(self) -> Mapping[int, str]:
        labels: Mapping[int, str] = self._model.config.id2label
        return labels

    def answers(self, questions: Sequence[Question]) -> Iterator[list[Message]]:
        """Answers, some at a time, each with the place of its question; places are in no order."""
        encoded: dict[int, Encoded] = {}
        refused: list[Message] = []
        for place, question in enumerate(questions):
            item = self._encode(question)
            if isinstance(item, str):
                refused.append({"place": place, "outcome": ScoreOutcome.UNSCORABLE, "detail": item})
            else:
                encoded[place] = item
        if refused:
            yield refused
        lengths = {place: len(item["input_ids"]) for place, item in encoded.items()}
        for places in plan_batches(lengths, self._config.batch_size, self._config.batch_tokens):
            yield self._answer(places, [encoded[place] for place in places])

    def _encode(self, question: Question) -> Encoded | str:
        """The tokens of a question, or why it cannot be answered."""
        try:
            text = rendered(self._tokenizer, question["messages"]) if "messages" in question else question["text"]
        except Exception as error:  # A template is a program: it raises what it likes.
            return f"the reward model's chat template refuses the messages: {str(error) or type(error).__name__}"
        item: Encoded = self._tokenizer(text, add_special_tokens=self._config.add_special_tokens)
        num_tokens = len(item["input_ids"])
        if not num_tokens:
            return "prompt and completion have no tokens"
        if num_tokens <= self._max_tokens:
            return item
        if self._config.too_long == "unscorable":
            return f"prompt and completion have {num_tokens} tokens, and the reward model takes {self._max_tokens}"
        self._tokenizer.truncation_side = "left" if self._config.too_long == "cut_start" else "right"
        cut: Encoded = self._tokenizer(
            text,
            add_special_tokens=self._config.add_special_tokens,
            truncation=True,
            max_length=self._max_tokens,
        )
        return cut

    def _answer(self, places: Sequence[int], items: Sequence[Encoded]) -> list[Message]:
        try:
            logits = self._logits(items)
        except Exception as error:
            lines = (str(error).strip() or type(error).__name__).splitlines()
            cure = "; lower reward.model.batch_tokens" if "out of memory" in lines[0] else ""
            why = f"the reward model raised {type(error).__name__}: {lines[0]}{cure}"
            return [{"place": place, "outcome": ScoreOutcome.FAILED, "detail": why} for place in places]
        return [
            {"place": place, "outcome": ScoreOutcome.SCORED, "logits": row, "num_tokens": len(item["input_ids"])}
            for place, item, row in zip(places, items, logits, strict=True)
        ]

    def _logits(self, items: Sequence[Encoded]) -> list[list[float]]:
        """One row of logits for each item."""
        import torch

        text_config = self._model.config.get_text_config()
        own = text_config.pad_token_id
        pad = padding_id(items) if own is None else own
        try:
            # Models of many families read the logits at the last token that is no padding, by this id.
            text_config.pad_token_id = pad
            with torch.inference_mode():
                inputs = {
                    name: torch.tensor(rows, device=self._model.device) for name, rows in padded(items, pad).items()
                }
                rows: list[list[float]] = self._model(**inputs).logits.float().tolist()
        finally:
            text_config.pad_token_id = own
        return rows


def plan_batches(lengths: Mapping[int, int], most_items: int, most_tokens: int) -> list[list[int]]:
    """Places by length, so that little is padded, cut into batches of at most `most_items`, whose longest item times
    their number is at most `most_tokens`; an item that is longer goes alone."""
    batches: list[list[int]] = []
    for place in sorted(lengths, key=lambda place: lengths[place]):
        batch = batches[-1] if batches else []
        if batch and len(batch) < most_items and lengths[place] * (len(batch) + 1) <= most_tokens:
            batch.append(place)
        else:
            batches.append([place])
    return batches


def padding_id(items: Sequence[Encoded]) -> int:
    """A token for models that name none: one that is in no item, so that none is taken for padding."""
    used = {token for item in items for token in item["input_ids"]}
    return next(token for token in range(len(used) + 1) if token not in used)


def padded(items: Sequence[Encoded], pad: int) -> dict[str, list[list[int]]]:
    """Rows of equal length, padded at the end, which no token before it can see."""
    longest = max(len(item["input_ids"]) for item in items)
    fillers = {"input_ids": pad}
    return {
        name: [[*item[name], *[fillers.get(name, 0)] * (longest - len(item[name]))] for item in items]
        for name in items[0]
    }


def _load(config: RewardModelConfig, folder: Any) -> Any:
    import torch
    import transformers

    if config.device != "cpu":
        wanted = int(config.device.partition(":")[2] or 0)
        if wanted >= torch.cuda.device_count():
            raise InvalidArgument(
                f"reward.model.device: {config.device}, but torch sees {torch.cuda.device_count()} GPUs on the reward "
                "service's machine; give another one, or cpu"
            )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    transformers.utils.logging.disable_progress_bar()
    try:
        model, loaded = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=config.dtype, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises whatever its parsers do
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidArgument(f"reward.model.path: no model can be loaded from {folder}: {line}") from None
    if missing := sorted(loaded["missing_keys"]):
        # transformers makes those up at random, and rewards with them.
        raise InvalidArgument(
            f"reward.model.path: the weights in {folder} lack {', '.join(missing[:3])} and {len(missing)} in all; give "
            "a model whose head has been trained"
        )
    try:
        return model.to(config.device).eval()
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0]
        raise InvalidArgument(f"reward.model.device: {config.path} does not fit on {config.device}: {line}") from None


if __name__ == "__main__":
    main()
