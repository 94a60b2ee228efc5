"""The process of a reward model: `python -m services.reward.model.runner PARENT_PID`.

Reads its settings from stdin, loads the model and reports "ready", or why it refuses; then reads batches of questions
and answers each on stdout, until stdin ends or the parent dies. If it hangs, the parent ends it with SIGKILL.
"""

import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.reward.model.question import Question
from services.reward.process.frames import Message, encode_frame, read_frame, take_pipes
from shoal.chat_templates.rendering import Unrendered
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, ResourceExhausted, ShoalError
from shoal.full_memory import is_out_of_memory
from shoal.models.compute_dtype import settled_dtype
from shoal.models.remote_code import reason_of
from shoal.models.reward_model import describe_reward_model, rendered
from shoal.scores import ScoreOutcome
from shoal.worker.parent import die_with_parent

NO_TORCH = (
    "reward.model.path: running a model here needs torch, which is missing: pip install 'shoal[reward-model]', or "
    "serve the model elsewhere and give reward.model.base_url"
)

Encoded = Mapping[str, Sequence[int]]
"""A tokenized input: the model's inputs by name, including `input_ids`."""


def main() -> None:
    die_with_parent(parent_pid=int(sys.argv[1]))
    # A signal to the process group is for the parent, which drains first and then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Otherwise each start prints a progress bar and a report to standard error.
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    batches, answers = take_pipes()
    settings = read_frame(batches)
    if settings is None:
        return
    try:
        runner = Runner(RewardModelConfig.model_validate(settings["config"]))
    except ShoalError as error:
        is_full = isinstance(error, ResourceExhausted)
        answers.write(encode_frame({"event": "refused", "why": error.message, "is_full": is_full}))
        return
    answers.write(encode_frame({"event": "ready", "label": runner.label}))
    while (batch := read_frame(batches)) is not None:
        for answered in runner.answers(batch["questions"]):
            answers.write(encode_frame({"event": "answered", "answers": answered}))


class Runner:
    """A sequence classification model with its tokenizer."""

    def __init__(self, config: RewardModelConfig) -> None:
        """Raises `InvalidArgument` that names the field of `reward.model` at fault, or `ResourceExhausted` if the model
        does not fit memory."""
        if importlib.util.find_spec("torch") is None:
            raise InvalidArgument(NO_TORCH)
        self._config = config
        description = describe_reward_model(config)
        self._tokenizer = description.tokenizer
        self._max_tokens = description.max_length_tokens
        self.label = description.label
        """The index of the label that is the reward."""
        self._model = _load(config, description.folder)
        num_labels = len(self._model.config.id2label)
        if num_labels != description.num_labels:
            raise InvalidArgument(
                f"reward.model.path: the head of {config.path} has {num_labels} labels and its "
                f"config.json names {description.num_labels}; fix the model"
            )

    def answers(self, questions: Sequence[Question]) -> Iterator[list[Message]]:
        """Yields answers, several at a time, each with the index of its question, in any order."""
        encoded: dict[int, Encoded] = {}
        refused: list[Message] = []
        for index, text in enumerate(self._texts(questions)):
            item = self._encode(text)
            if isinstance(item, str):
                refused.append({"index": index, "outcome": ScoreOutcome.UNSCORABLE, "detail": item})
            else:
                encoded[index] = item
        if refused:
            yield refused
        lengths = {index: len(item["input_ids"]) for index, item in encoded.items()}
        for indices in plan_batches(lengths, self._config.batch_size, self._config.batch_tokens):
            yield self._answer(indices, [encoded[index] for index in indices])

    def _texts(self, questions: Sequence[Question]) -> list[str | Unrendered]:
        conversations = [question["messages"] for question in questions if "messages" in question]
        outcomes = iter(rendered(self._tokenizer, conversations))
        return [next(outcomes) if "messages" in question else question["text"] for question in questions]

    def _encode(self, text: str | Unrendered) -> Encoded | str:
        """Returns the tokens of a question, or why it cannot be answered."""
        if isinstance(text, Unrendered):
            return f"the reward model's chat template {text.why}"
        item: Encoded = self._tokenizer(text, add_special_tokens=self._config.add_special_tokens)
        num_tokens = len(item["input_ids"])
        if not num_tokens:
            return "prompt and completion have no tokens"
        if num_tokens <= self._max_tokens:
            return item
        if self._config.too_long == "unscorable":
            return f"prompt and completion have {num_tokens} tokens; the reward model takes at most {self._max_tokens}"
        self._tokenizer.truncation_side = "left" if self._config.too_long == "cut_start" else "right"
        cut = {"truncation": True, "max_length": self._max_tokens}
        item = self._tokenizer(text, add_special_tokens=self._config.add_special_tokens, **cut)
        return item

    def _answer(self, indices: Sequence[int], items: Sequence[Encoded]) -> list[Message]:
        try:
            logits = self._logits(items)
        except Exception as error:
            lines = (str(error).strip() or type(error).__name__).splitlines()
            cure = "; lower reward.model.batch_tokens" if "out of memory" in lines[0] else ""
            why = f"the reward model raised {type(error).__name__}: {lines[0]}{cure}"
            return [{"index": index, "outcome": ScoreOutcome.FAILED, "detail": why} for index in indices]
        return [
            {"index": index, "outcome": ScoreOutcome.SCORED, "logits": row, "num_tokens": len(item["input_ids"])}
            for index, item, row in zip(indices, items, logits, strict=True)
        ]

    def _logits(self, items: Sequence[Encoded]) -> list[list[float]]:
        """Returns one row of logits for each item."""
        import torch

        text_config = self._model.config.get_text_config()
        configured = text_config.pad_token_id
        pad = padding_id(items) if configured is None else configured
        try:
            # Many models find the last token that is not padding by this id, and read its logits.
            text_config.pad_token_id = pad
            with torch.inference_mode():
                device = self._model.device
                inputs = {name: torch.tensor(rows, device=device) for name, rows in padded(items, pad).items()}
                logits: list[list[float]] = self._model(**inputs).logits.float().tolist()
        finally:
            text_config.pad_token_id = configured
        return logits


def plan_batches(lengths: Mapping[int, int], max_items: int, max_tokens: int) -> list[list[int]]:
    """Cuts the indices into batches of at most `max_items` items, in order of length, to limit padding. The length of a
    batch's longest item times its number of items is at most `max_tokens`; a longer item goes alone."""
    batches: list[list[int]] = []
    for index in sorted(lengths, key=lambda index: lengths[index]):
        batch = batches[-1] if batches else []
        if batch and len(batch) < max_items and lengths[index] * (len(batch) + 1) <= max_tokens:
            batch.append(index)
        else:
            batches.append([index])
    return batches


def padding_id(items: Sequence[Encoded]) -> int:
    """Returns a padding token for models that name none: a token that occurs in no item."""
    used = {token for item in items for token in item["input_ids"]}
    return next(token for token in range(len(used) + 1) if token not in used)


def padded(items: Sequence[Encoded], pad: int) -> dict[str, list[list[int]]]:
    """Returns rows of equal length, padded at the end, where no earlier token attends to the padding."""
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
                "service's machine; give another device, or cpu"
            )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    transformers.utils.logging.disable_progress_bar()
    try:
        model, loaded = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=config.dtype,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=config.trust_remote_code,
        )
    except Exception as error:  # transformers passes on all errors of its parsers
        line = reason_of(error).splitlines()[0]
        if is_out_of_memory(error):
            raise _no_memory(config, line) from None
        raise InvalidArgument(f"reward.model.path: no model can be loaded from {folder}: {line}") from None
    own = str(model.dtype).removeprefix("torch.")
    model.to(getattr(torch, settled_dtype("reward.model.dtype", config.dtype, own, on_cpu=config.device == "cpu")))
    if missing := sorted(loaded["missing_keys"]):
        # transformers would initialize them at random, so the rewards would be random too.
        raise InvalidArgument(
            f"reward.model.path: the weights in {folder} lack {len(missing)} of the model's tensors, for example "
            f"{', '.join(missing[:3])}; give a model whose head has been trained"
        )
    try:
        return model.to(config.device).eval()
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0]
        if is_out_of_memory(error):
            raise _no_memory(config, line) from None
        raise InvalidArgument(f"reward.model.device: {config.path} cannot be put on {config.device}: {line}") from None


def _no_memory(config: RewardModelConfig, line: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"reward.model.device: {config.path} does not fit the free memory: {line}; set reward.model.device to another "
        "device, reward.model.dtype to bfloat16, or reward.model.path to a smaller model"
    )


if __name__ == "__main__":
    main()
