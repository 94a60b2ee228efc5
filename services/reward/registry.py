"""The verifiers by name."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.reward.verdict import Unscorable, Verdict
from services.reward.verifiers import (
    code,
    exact_string,
    flan,
    gsm8k,
    json_schema,
    language,
    math,
    max_length,
    multiple_choice,
    passthrough,
    puzzle,
    r1_format,
    re_search,
    re_search_f1,
    reasoning_gym,
    regex,
    repetition_penalty,
    soft_overlong,
    strict_math,
    string_f1,
    string_matcher,
    think_format,
    up_to_max_length,
)
from services.reward.verifiers.ifeval import verify as ifeval


def _nothing_to_load() -> None:
    pass


def _nothing_amiss() -> str:
    return ""


@dataclass(frozen=True)
class Verifier:
    """How completions are judged under one name."""

    verify: Callable[..., Verdict]
    """Completion and label -> verdict. Raises `Unscorable`; whatever else it raises means that it broke. Its
    keyword-only parameters are its options; those of the configuration are `reward.verifiers.<name>`."""
    load: Callable[[], None] = _nothing_to_load
    """Imports what `verify` needs. Called once in each process, outside any deadline of a completion."""
    module: str = ""
    """A package that it needs and that is an extra of its own."""
    reads: Literal["text", "num_tokens", "token_ids"] = "text"
    """What it gets of the completion beside the text, as a keyword of this name."""
    unavailable: Callable[[], str] = _nothing_amiss
    """Says why it cannot judge on this machine; empty when it can. May take a second. What it is then asked to judge
    is FAILED with this reason."""

    @property
    def description(self) -> str:
        """What it reads, what it returns, and in which range."""
        return inspect.getdoc(self.verify) or ""

    def judge(self, completion: str, label: Any, token_ids: Sequence[int], options: Mapping[str, Any]) -> Verdict:
        """Calls `verify` with what it reads. Raises what that raises."""
        if self.reads == "text":
            return self.verify(completion, label, **options)
        if completion and not token_ids:
            raise Unscorable("the completion came without token ids, which this verifier reads")
        given: Any = len(token_ids) if self.reads == "num_tokens" else token_ids
        return self.verify(completion, label, **{self.reads: given}, **options)


ALL_VERIFIERS = {
    "code": Verifier(code.verify, code.load, unavailable=code.unavailable),
    "code_stdio": Verifier(code.verify_stdio, code.load, unavailable=code.unavailable),
    "exact_string": Verifier(exact_string.verify),
    "flan": Verifier(flan.verify),
    "gsm8k": Verifier(gsm8k.verify),
    "ifeval": Verifier(ifeval.verify, ifeval.load, module="punkt"),
    "ifeval_old": Verifier(ifeval.verify_old, ifeval.load, module="punkt"),
    "json_schema": Verifier(json_schema.verify, json_schema.load, module="jsonschema"),
    "language": Verifier(language.verify, language.load, module="langdetect"),
    "math": Verifier(math.verify, math.load),
    "max_length": Verifier(max_length.verify, reads="num_tokens"),
    "multiple_choice": Verifier(multiple_choice.verify),
    "passthrough": Verifier(passthrough.verify),
    "puzzle": Verifier(puzzle.verify),
    "r1_format": Verifier(r1_format.verify),
    "re_search": Verifier(re_search.verify),
    "re_search_f1": Verifier(re_search_f1.verify),
    "reasoning_gym": Verifier(reasoning_gym.verify, reasoning_gym.load, module="reasoning_gym"),
    "regex": Verifier(regex.verify),
    "repetition_penalty": Verifier(repetition_penalty.verify, reads="token_ids"),
    "soft_overlong": Verifier(soft_overlong.verify, reads="num_tokens"),
    "strict_math": Verifier(strict_math.verify, strict_math.load),
    "string_f1": Verifier(string_f1.verify),
    "string_matcher": Verifier(string_matcher.verify),
    "think_format": Verifier(think_format.verify),
    "up_to_max_length": Verifier(up_to_max_length.verify, reads="num_tokens"),
}
"""By name; the names stand in `shoal.verifiers` as well."""

VERIFIERS = {
    name: verifier
    for name, verifier in ALL_VERIFIERS.items()
    if not verifier.module or importlib.util.find_spec(verifier.module) is not None
}
"""Those that can work with what is installed."""
