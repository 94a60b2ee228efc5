"""The names of the built-in verifiers and their options: the table `reward.verifiers`.

Written by tools/verifier_docs.py from the declarations in services/reward, which this library cannot import; change
those declarations and run `make docs`. The names are the labels of the data's verifier column, including
open-instruct's labels.
"""

from typing import Literal

from pydantic import Field

from shoal.config.tables.section import Section

RULE_VERIFIERS = frozenset(
    {
        "code",
        "code_stdio",
        "exact_string",
        "flan",
        "gsm8k",
        "ifeval",
        "ifeval_old",
        "json_schema",
        "language",
        "math",
        "max_length",
        "multiple_choice",
        "passthrough",
        "puzzle",
        "r1_format",
        "re_search",
        "re_search_f1",
        "reasoning_gym",
        "reasoning_steps",
        "regex",
        "repetition_penalty",
        "soft_overlong",
        "strict_math",
        "string_f1",
        "string_matcher",
        "think_answer_format",
        "think_answer_tags",
        "think_format",
        "up_to_max_length",
    }
)
"""Verifiers that judge by a rule, in the reward service's pool."""

JUDGE_VERIFIERS = frozenset(
    {
        "general-creative_writing",
        "general-factuality",
        "general-quality",
        "general-quality_ref",
        "general-quality_rubric",
        "general-refusal",
        "general-safety",
        "general-web_instruct_general_verifier",
        "llm_judge",
        "rubric",
    }
)
"""Verifiers whose judge is a language model, so they need `reward.judge`."""

MODEL_VERIFIERS = frozenset({"reward_model"})
"""Verifiers that are reward models, so they need `reward.model`."""

UNLABELED_VERIFIERS = frozenset({"general-quality", "general-safety", "reward_model"})
"""Verifiers that read no label, so data may omit the label."""

ZERO_AT_BEST = frozenset({"passthrough", "repetition_penalty", "soft_overlong"})
"""Verifiers whose best value is 0: penalties and `passthrough`."""

MEASURES = frozenset({"max_length", "reasoning_steps", "reward_model"})
"""Verifiers whose value 1 does not mean that a completion is correct."""

BUILT_IN_VERIFIERS = RULE_VERIFIERS | JUDGE_VERIFIERS | MODEL_VERIFIERS


class CodeOptions(Section):
    timeout_s: float = Field(default=1.0, gt=0)
    """Longest time for the program and one test (open-instruct's `code_max_execution_time`)."""
    total_timeout_s: float = Field(default=8.0, gt=0)
    """Longest time for all tests of one completion. Tests that are not finished by then are not passed. Keep this time
    two seconds below `reward.timeout_s`, which makes the completion FAILED."""
    memory_mib: int = Field(default=512, ge=64)
    """Address space of the program, in MiB."""
    pass_rate_threshold: float = Field(default=0.0, ge=0, le=1)
    """Share of passed tests below which the value is 0 (open-instruct's `code_pass_rate_reward_threshold`)."""
    partial_credit: bool = True
    """Make the value the share of passed tests. Otherwise the value is 1 if all tests pass, else 0."""
    reward_speed: bool = False
    """Count for each passed test only the share of its time limit that is left (open-instruct's
    `code_apply_perf_penalty`)."""
    any_tag: bool = False
    """Drop any word after the opening backticks, not only "python"."""

    @property
    def reaches_1(self) -> bool:
        """Whether the best value is at least 1. With `reward_speed` it is not, since each test takes some time."""
        return not self.reward_speed


class Gsm8kOptions(Section):
    equality: Literal["number", "text"] = "number"
    """How the last number is compared with the label. With `number`, 5.0 equals 5. With `text`, the last number must
    equal the label letter for letter, as in open-instruct, so 5.0 does not equal 5; every comma between digits is
    dropped first."""


class InstructionOptions(Section):
    strict_wording: bool = False
    """Judge by the wording of an instruction wherever open-instruct's checker differs from the wording. docs/rewards.md
    lists the differences."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Time limit for checking one answer. After this time the completion is UNSCORABLE, for example because a label's
    keyword is a regular expression with catastrophic backtracking. Keep this time below `reward.timeout_s`, which kills
    the process."""


class JsonSchemaOptions(Section):
    timeout_s: float = Field(default=2.0, gt=0)
    """Longest time for validating one completion. After this time the completion is UNSCORABLE."""


class MathOptions(Section):
    extraction: list[Literal["latex", "expr", "string"]] = Field(default=["latex", "expr"], min_length=1)
    """Forms in which the verifier looks for answer and label: LaTeX, plain expressions, single letters A to D."""
    boxed_match_priority: int = Field(default=50, ge=-1)
    """Rank of boxed answers. Below 50, boxed answers come before announced answers; above 50, after announced answers.
    At 50 the later answer counts. With -1, boxes are read like other formulas."""
    float_rounding: int = Field(default=6, ge=0)
    """Number of decimals to which numbers are compared. For numbers below 0.001, the number of significant digits."""
    strict: bool = True
    """Whether names of variables matter. If true, a tuple is also no answer to a label that is a set."""
    allow_set_relation_comparison: bool = False
    """Whether an inequality equals the interval or set of its solutions if the label is such an interval or set."""
    answer_tags: bool = False
    """Read only the last `<answer>...</answer>` if there is one, also if the answer in the tags has no LaTeX around it.
    Suits prompts that ask for R1's format."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for reading and comparing one answer. After this time the completion is UNSCORABLE. Keep this time
    below `reward.timeout_s`, which kills the process."""


class LengthOptions(Section):
    max_length_tokens: int = Field(default=32768, ge=1)
    """Number of tokens of difference that lower the value by 1 (open-instruct's `max_length_verifier_max_length`)."""


class MultipleChoiceOptions(Section):
    strict: bool = False
    """Accept only an answer in a box, in <answer> tags, or after "answer is" or "answer:", or a correction of such an
    answer."""
    values: Literal["unit", "loose", "soft", "strict"] = "unit"
    """Values of a right letter in a box, a right letter elsewhere, a wrong letter in a box, and anything else. `unit`
    gives 1, 1, 0, 0. The others are the values of ROLL's crossthinkqa: `loose` gives 1, 1, -1, -1, `soft` gives 1, 0.5,
    -0.5, -1, and `strict` gives 1, -1, -1, -1."""


class FormatOptions(Section):
    reward: float = 1.0
    """Value of a completion in the right format."""

    @property
    def reaches_1(self) -> bool:
        """Whether the best value is at least 1."""
        return self.reward >= 1


class ReasoningGymOptions(Section):
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for a task's scorer on one answer. After this time the completion is UNSCORABLE."""


class RegexOptions(Section):
    timeout_s: float = Field(default=1.0, gt=0)
    """Longest time for one search. After this time the completion is UNSCORABLE."""


class RepetitionOptions(Section):
    ngram_size: int = Field(default=3, ge=1)
    """Length of an n-gram, in tokens."""
    max_penalty: float = Field(default=-1.0, le=0)
    """Value if every n-gram is a repetition."""


class SoftOverlongOptions(Section):
    max_length_tokens: int = Field(default=4096, ge=1)
    """Length from which the full penalty applies."""
    soft_cache_tokens: int = Field(default=1024, ge=0)
    """Number of tokens before `max_length_tokens` over which the penalty grows."""


class StrictMathOptions(Section):
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for comparing one answer. After this time the completion is UNSCORABLE."""


class ThinkAnswerOptions(Section):
    code_language: str = ""
    """Language of a fenced block that the answer must contain. If empty, no block is required."""


class VerifiersConfig(Section):
    code: CodeOptions = CodeOptions()
    """A program that is run against tests of its functions."""
    code_stdio: CodeOptions = CodeOptions()
    """A program that is run on inputs, and whose outputs are compared."""
    gsm8k: Gsm8kOptions = Gsm8kOptions()
    """The last number of a completion (GSM8K, arXiv:2110.14168)."""
    ifeval: InstructionOptions = InstructionOptions()
    """The `ifeval` verifier: instructions that a program can check (IFEval, arXiv:2311.07911)."""
    ifeval_old: InstructionOptions = InstructionOptions()
    """One instruction that a program can check, in open-instruct's older form."""
    json_schema: JsonSchemaOptions = JsonSchemaOptions()
    """JSON that matches a schema (json-schema.org)."""
    math: MathOptions = MathOptions()
    """Mathematical equality of the final answer, with math-verify (github.com/huggingface/Math-Verify)."""
    max_length: LengthOptions = LengthOptions()
    """A completion as long as the label demands."""
    multiple_choice: MultipleChoiceOptions = MultipleChoiceOptions()
    """A letter among choices."""
    r1_format: FormatOptions = FormatOptions()
    """Thoughts followed by an answer in tags, the format of DeepSeek-R1 (arXiv:2501.12948)."""
    reasoning_gym: ReasoningGymOptions = ReasoningGymOptions()
    """An answer to a reasoning-gym task, by the task's own scorer (github.com/open-thought/reasoning-gym)."""
    regex: RegexOptions = RegexOptions()
    """A regular expression found in the completion."""
    repetition_penalty: RepetitionOptions = RepetitionOptions()
    """A penalty for repeated n-grams (arXiv:2502.03373, section 4)."""
    soft_overlong: SoftOverlongOptions = SoftOverlongOptions()
    """DAPO's penalty for completions near the length limit (arXiv:2503.14476, section 3.4)."""
    strict_math: StrictMathOptions = StrictMathOptions()
    """Mathematical equality of an answer in Minerva's form (arXiv:2206.14858)."""
    think_answer_format: ThinkAnswerOptions = ThinkAnswerOptions()
    """Thoughts and answer in tags, each tag on a line of its own (open-r1)."""
    up_to_max_length: LengthOptions = LengthOptions()
    """A completion at most as long as the label demands."""
