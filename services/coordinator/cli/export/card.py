"""The model card of a step, made from the run: configuration, curves, evaluations, data, and how to load the model.

People on other machines read the card. So the card has only settings from a fixed list of tables, and only the last
part of each path: no folder of this machine, no address, and nothing that could be a secret.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from services.coordinator.reporting.page.axes import SHARE, plain
from services.coordinator.reporting.reward_parts import part_metrics, verifier_names
from services.coordinator.store.files.step_file import StepFile
from services.coordinator.store.run_record import RunRecord
from shoal import __version__
from shoal.config import RunConfig
from shoal.config.tables.data import SourceConfig
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, MODEL_VERIFIERS
from shoal.quantities import counted

_TABLES = ("sampling", "grpo", "advantage", "loss", "kl", "correction", "learner")
"""Tables of the configuration that describe how the model was trained, but not on which machines."""
_SHAPING = (
    "correct", "verification_reward", "apply_verifiable_reward", "only_reward_good_outputs", "non_stop_penalty",
    "format", "style", "overlong", "length", "cosine", "repetition", "verifiers",
)  # fmt: skip
"""Fields of `[reward]` that describe how a reward is computed, but not on which machines."""
_CURVES = {
    "objective/scores": ("Reward", plain),
    "objective/verifiable_correct_rate": ("Correct", SHARE.value),
    "objective/kl": ("KL", plain),
    "val/sequence_lengths": ("Tokens of a completion", plain),
}
_MAX_ROWS = 12
_SERVE_ON_CPU = "VLLM_CPU_KVCACHE_SPACE=1 python -m vllm.entrypoints.openai.api_server --enforce-eager --model"
"""The command that serves a model on a CPU, since the command `vllm` of the package `vllm-cpu` does not start. Without
a cache size vLLM would take 92% of the machine's memory, and without `--enforce-eager` vLLM would first compile."""
_REWARD_TITLES = ("Verifier", "Function", "Weight", "Decides correctness")
_RATE = "eval/verifiable_correct_rate"
_RATE_OF_MANY = re.compile(r"eval/(?:pass|maj)_at_[0-9]+")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def model_card(
    record: RunRecord,
    config: RunConfig,
    step: int,
    repo: str = "",
    *,
    is_adapter: bool = False,
    reads_images: bool = False,
) -> str:
    """Returns the card as Markdown with its header.

    `repo` is the model's repository, if there is one. `reads_images` states that the model can also read images.
    """
    rows = [row for row in StepFile(record.folder / "metrics.jsonl").read() if row["step"] <= step]
    steps = [row for row in rows if "eval/num_prompts" not in row]
    evaluations = [row for row in rows if "eval/scores" in row or _RATE in row]
    base = _public_name(config.model.path)
    loader = "AutoModelForImageTextToText" if reads_images else "AutoModelForCausalLM"
    parts = [
        _header(config, is_adapter=is_adapter),
        f"{card_title(record, step)}\n\n{base}, trained with GRPO (group relative policy optimization, "
        f"arXiv:2402.03300) for {step} of {counted(config.run.num_steps, 'step')}, by Shoal {__version__}.",
        f"## Load it\n\n{_loading(config, repo, step, base if is_adapter else '', loader)}",
        f"## Training\n\n{_table(('', ''), _facts(config))}",
        *([f"### Reward\n\n{_table(_REWARD_TITLES, rewarded)}"] if (rewarded := _reward_rows(config, steps)) else []),
        *([f"### Curves\n\n{_curves(steps)}"] if steps else []),
        *([f"## Evaluation\n\n{_evaluations(evaluations)}"] if evaluations else []),
        f"## Configuration\n\nFields that differ from the defaults:\n\n```toml\n{_settings(config)}```",
    ]
    return "\n\n".join(parts) + "\n"


def card_title(record: RunRecord, step: int) -> str:
    """Returns the line of a card that names the model."""
    return f"# {record.run_id}, step {step}"


def _header(config: RunConfig, *, is_adapter: bool) -> str:
    values: dict[str, Any] = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["grpo", "reinforcement-learning", "shoal"],
    }
    if is_hub_name(config.model.path):
        values["base_model"] = config.model.path
    if datasets := [source.dataset for source in config.data.sources if is_hub_name(source.dataset or "")]:
        values["datasets"] = datasets
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def is_hub_name(name: str) -> bool:
    """Whether a name is a repository on the hub, rather than a folder on this machine."""
    return bool(_HUB_NAME.fullmatch(name)) and not Path(name).exists()


def _public_name(path: str) -> str:
    """Returns the name of a repository or a package, or the last part of a folder."""
    return path if is_hub_name(path) or path.startswith("package:") else Path(path).name


def _loading(config: RunConfig, repo: str, step: int, base: str, loader: str) -> str:
    """Returns instructions to load a model, or, with `base`, to load an adapter onto that model.

    `loader` is the class of transformers that loads the model.
    """
    name, revision = (repo, f', revision="step-{step}"') if repo else ("FOLDER", "")
    is_trusted = config.model.trust_remote_code
    trust, trust_flag = (", trust_remote_code=True", " --trust-remote-code") if is_trusted else ("", "")
    if base:
        place = base if is_hub_name(base) else f"FOLDER OF {base}"
        hint = "" if is_hub_name(base) else f" ({base} is not on the hub: name the folder of your copy)"
        return (
            f"An adapter, to be loaded with the model that it was trained on{hint}:\n\n"
            f"```python\nfrom peft import PeftModel\nfrom transformers import {loader}\n\n"
            f'model = {loader}.from_pretrained("{place}"{trust})\n'
            f'model = PeftModel.from_pretrained(model, "{name}"{revision})\n```'
        )
    served = name + (f" --revision step-{step}" if repo else "") + trust_flag
    return (
        f"```python\nfrom transformers import {loader}, AutoTokenizer\n\n"
        f'model = {loader}.from_pretrained("{name}"{revision}{trust})\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{name}"{revision}{trust})\n```\n\n'
        "Serve it with vLLM, on a GPU, or with vLLM's build for CPUs and a cache of 1 GiB for keys and values:\n\n"
        f"```bash\nvllm serve {served}\n{_SERVE_ON_CPU} {served}\n```"
    )


def _facts(config: RunConfig) -> Iterator[tuple[str, str]]:
    yield "Base model", _public_name(config.model.path)
    yield "Data", ", ".join(map(_source, config.data.sources))
    if config.evaluation.sources:
        yield "Held-out questions", ", ".join(map(_source, config.evaluation.sources))
    yield (
        "A step",
        f"{counted(config.grpo.groups_per_step, 'group')} of {counted(config.grpo.group_size, 'completion')}",
    )
    yield "A completion", f"at most {counted(config.sampling.max_completion_tokens, 'token', ',')}"
    yield "Learning rate", f"{config.learner.learning_rate:g}"
    yield "Seed", str(config.run.seed)


def _source(source: SourceConfig) -> str:
    if source.path is not None:
        paths = [source.path] if isinstance(source.path, str) else source.path
        return ", ".join(Path(path).name for path in paths)
    return source.task or _public_name(source.dataset or "")


def _reward_rows(config: RunConfig, steps: Sequence[Mapping[str, float]]) -> list[tuple[str, str, str, str]]:
    """Returns a row for each verifier that judged in `steps`, and a row for each environment."""
    measured = {name: 0.0 for row in steps for name in row}
    rows = [
        (name, _function(config, name), _weight(config, name), "yes" if config.reward.says_correct(name) else "no")
        for name in verifier_names(measured)
    ]
    return rows + [(environment.name, "an environment", "1", "") for environment in config.environments]


def _shaping(config: RunConfig) -> dict[str, Any]:
    """Returns the fields of `[reward]` that shape a reward and differ from the defaults."""
    values = config.reward.model_dump(mode="json", exclude_defaults=True)
    return {field: values[field] for field in _SHAPING if field in values}


def _function(config: RunConfig, verifier: str) -> str:
    """Names the function of a verifier, without folder and address."""
    reward = config.reward
    if verifier in reward.custom:
        custom = reward.custom[verifier]
        return custom.entry_point or f"{Path(custom.file).name}: {custom.function}"
    if verifier in JUDGE_VERIFIERS:
        return f"a judge, {Path(reward.judge.model).name}"
    if verifier in MODEL_VERIFIERS:
        return f"a reward model, {Path(reward.model.path).name}" if reward.model.path else "a reward model"
    return "Shoal" if verifier in BUILT_IN_VERIFIERS else "another package or server"


def _weight(config: RunConfig, verifier: str) -> str:
    factor = config.reward.weights.get(verifier, 1.0)
    return " or ".join(f"{weight:g}" for weight in sorted({factor * source.weight for source in config.data.sources}))


def _curves(steps: Sequence[Mapping[str, float]]) -> str:
    """Returns a table of steps at even distances, including the first and the last step."""
    metrics = [name for name in _CURVES if any(name in row for row in steps)]
    last = len(steps) - 1
    chosen = sorted({round(index * last / (_MAX_ROWS - 1)) for index in range(_MAX_ROWS)})
    rows = [
        (str(steps[index]["step"]), *(_value(steps[index], name, _CURVES[name][1]) for name in metrics))
        for index in chosen
    ]
    return _table(("Step", *(_CURVES[name][0] for name in metrics)), rows)


def _evaluations(evaluations: Sequence[Mapping[str, float]]) -> str:
    names = sorted({name for row in evaluations for name in row if _RATE_OF_MANY.fullmatch(name)}, key=_k_of)
    parts = part_metrics({name: 0.0 for row in evaluations for name in row})
    rows = [
        (
            str(row["step"]),
            f"{row['eval/num_prompts']:,.0f}",
            _value(row, _RATE, SHARE.value),
            _interval(row, _RATE, SHARE.value),
            *(_value(row, name, SHARE.value) for name in names),
            _value(row, "eval/scores", plain),
            _interval(row, "eval/scores", plain),
            *(_value(row, name, plain) for name in parts.values()),
        )
        for row in evaluations
    ]
    rates = ("Correct", "95% interval", *map(_title_of, names))
    titles = ("Step", "Held-out questions", *rates, "Reward", "95% interval", *parts)
    return _table(titles, rows)


def _k_of(name: str) -> tuple[str, int]:
    kind, _, k = name.removeprefix("eval/").partition("_at_")
    return kind, int(k)


def _title_of(name: str) -> str:
    return "{}@{}".format(*_k_of(name))


def _value(row: Mapping[str, float], name: str, text: Any) -> str:
    return str(text(row[name])) if name in row else "-"


def _interval(row: Mapping[str, float], name: str, text: Any) -> str:
    ends = [f"{name}_{end}" for end in ("low", "high")]
    return " to ".join(_value(row, end, text) for end in ends) if all(end in row for end in ends) else "-"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _settings(config: RunConfig) -> str:
    """Returns the listed tables as TOML, without defaults and possible paths or addresses."""
    lines = ["[run]", f"num_steps = {config.run.num_steps}", f"seed = {config.run.seed}"]
    tables = {name: getattr(config, name).model_dump(mode="json", exclude_defaults=True) for name in _TABLES}
    for name, values in (tables | {"reward": _shaping(config)}).items():
        if fields := list(_fields(values)):
            lines += ["", f"[{name}]", *fields]
    return "\n".join(lines) + "\n"


def _fields(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        elif all(map(_is_public, value if isinstance(value, list) else [value])):
            yield f"{prefix}{name} = {json.dumps(value)}"
        else:
            yield f"# {prefix}{name}: not shown, since it may name a file"


def _is_public(value: Any) -> bool:
    """Whether a value is surely not a path, an address or a secret: a number, or a name in code."""
    return isinstance(value, bool | int | float) or (isinstance(value, str) and bool(_NAME.fullmatch(value)))
