"""What can be set of verifiers: the table `reward.verifiers`.

Each section holds the keyword options of the verifier of its name, with the same defaults.
"""

from typing import Literal

from pydantic import Field

from shoal.config.section import Section


class Gsm8kOptions(Section):
    equality: Literal["number", "text"] = "number"
    """`number`: 5.0 is 5. `text`: the last number is the label letter for letter, as in open-instruct, where 5.0
    is not 5; every comma between digits is dropped."""


class MathOptions(Section):
    extraction: list[Literal["latex", "expr", "string"]] = Field(default=["latex", "expr"], min_length=1)
    """Forms in which answer and label are looked for: LaTeX, plain expressions, single letters A to D."""
    boxed_match_priority: int = Field(default=50, ge=-1)
    """Where boxed answers stand among the other forms of LaTeX, first at 0; -1 gives them no precedence."""
    float_rounding: int = Field(default=6, ge=0)
    """Decimals to which numbers are compared."""
    strict: bool = True
    """Whether names of variables matter, and sets differ from tuples."""
    allow_set_relation_comparison: bool = False
    """Whether an inequality equals the interval or set of its solutions when it is the label that is the set."""
    answer_tags: bool = False
    """Read only the last `<answer>...</answer>`, where there is one, also without LaTeX around its answer: for prompts
    that ask for R1's format."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for reading and comparing one answer; past it the completion is UNSCORABLE. Keep it below
    `reward.timeout_s`, which kills the process."""


class StrictMathOptions(Section):
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for comparing one answer; past it the completion is UNSCORABLE."""


class LengthOptions(Section):
    max_length_tokens: int = Field(default=32768, ge=1)
    """Tokens of difference that cost 1; open-instruct's `max_length_verifier_max_length`."""


class RegexOptions(Section):
    timeout_s: float = Field(default=1.0, gt=0)
    """Longest time for one search; past it the completion is UNSCORABLE."""


class JsonSchemaOptions(Section):
    timeout_s: float = Field(default=2.0, gt=0)
    """Longest time for validating one completion; past it the completion is UNSCORABLE."""


class MultipleChoiceOptions(Section):
    strict: bool = False
    """Take only an answer that is marked: in a box, in <answer> tags, or after "answer is" or "answer:"."""


class InstructionOptions(Section):
    strict_wording: bool = False
    """Judge by what an instruction says where open-instruct's checker judges something else; docs/rewards.md lists
    the differences."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for checking one answer; past it, as when a label's keyword is a catastrophic regular expression,
    the completion is UNSCORABLE. Keep it below `reward.timeout_s`, which kills the process."""


class FormatOptions(Section):
    reward: float = 1.0
    """Value of a completion in the right form."""


class SoftOverlongOptions(Section):
    max_length_tokens: int = Field(default=4096, ge=1)
    """Length from which the penalty is whole."""
    soft_cache_tokens: int = Field(default=1024, ge=0)
    """Tokens before that over which the penalty grows."""


class RepetitionOptions(Section):
    ngram_size: int = Field(default=3, ge=1)
    """Tokens in a row that count as one."""
    max_penalty: float = Field(default=-1.0, le=0)
    """Value when everything is repetition."""


class CodeOptions(Section):
    timeout_s: float = Field(default=1.0, gt=0)
    """Longest time for the program and one test; open-instruct's `code_max_execution_time`."""
    total_timeout_s: float = Field(default=8.0, gt=0)
    """Longest time for all tests of one completion; those that it does not suffice for are not passed. Keep it two
    seconds below `reward.timeout_s`, which makes the completion FAILED."""
    memory_mib: int = Field(default=512, ge=64)
    """Address space of the program."""
    pass_rate_threshold: float = Field(default=0.0, ge=0, le=1)
    """Share of passed tests below which the value is 0; open-instruct's `code_pass_rate_reward_threshold`."""
    partial_credit: bool = True
    """The value is the share of passed tests; otherwise 1 when all pass, else 0."""
    reward_speed: bool = False
    """A passed test counts the share of its time that it left; open-instruct's `code_apply_perf_penalty`."""
    any_tag: bool = False
    """Drop any word after the opening backticks, not just "python"."""


class ReasoningGymOptions(Section):
    timeout_s: float = Field(default=5.0, gt=0)
    """Longest time for a task's scorer on one answer; past it the completion is UNSCORABLE."""


class VerifiersConfig(Section):
    code: CodeOptions = CodeOptions()
    """Programs whose functions are called by tests."""
    code_stdio: CodeOptions = CodeOptions()
    """Programs that read input and print."""
    gsm8k: Gsm8kOptions = Gsm8kOptions()
    """The last number of a completion."""
    math: MathOptions = MathOptions()
    """Mathematical equality."""
    strict_math: StrictMathOptions = StrictMathOptions()
    """Mathematical equality of an answer in Minerva's form."""
    max_length: LengthOptions = LengthOptions()
    """As long as the label says."""
    up_to_max_length: LengthOptions = LengthOptions()
    """At most as long as the label says."""
    reasoning_gym: ReasoningGymOptions = ReasoningGymOptions()
    """An answer to a reasoning-gym task."""
    regex: RegexOptions = RegexOptions()
    """A pattern found in the completion."""
    json_schema: JsonSchemaOptions = JsonSchemaOptions()
    """JSON that a schema describes."""
    multiple_choice: MultipleChoiceOptions = MultipleChoiceOptions()
    """A letter among choices."""
    ifeval: InstructionOptions = InstructionOptions()
    """Instructions that a program can check."""
    ifeval_old: InstructionOptions = InstructionOptions()
    """One such instruction, in open-instruct's older form."""
    r1_format: FormatOptions = FormatOptions()
    """Thoughts and answer in their tags."""
    soft_overlong: SoftOverlongOptions = SoftOverlongOptions()
    """DAPO's penalty for too long completions."""
    repetition_penalty: RepetitionOptions = RepetitionOptions()
    """A penalty for repeated n-grams."""
