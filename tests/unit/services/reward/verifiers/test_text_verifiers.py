"""Tests of the verifiers of text, choices, patterns and structure."""

from typing import Any

import pytest

from services.reward.common.math.normal_forms import hendrycks_form
from services.reward.common.math.stated.spans import find_boxes
from services.reward.common.verdict import Unscorable
from services.reward.verifiers.registry import VERIFIERS


def value(verifier: str, completion: str, label: Any, **options: Any) -> float:
    VERIFIERS[verifier].load()
    return VERIFIERS[verifier].judge(completion, label, (), options).value


def test_several_letters_are_all_chosen() -> None:
    answer = "The answer is A or B"
    assert [value("multiple_choice", answer, label) for label in (["B", "A"], "A")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("completion", "choice"),
    [
        ("I would not choose option B.", ""),
        ("I would not choose (B).", ""),
        ("It is not A so it is B.", "B"),
        ("A is not correct because B is correct.", "B"),
        ("Therefore I, being careful, check.", ""),
        ("Option A, the first one, is incorrect. Option B describes the process correctly.", "B"),
        ("We can rule out option A. Option B matches the data.", "B"),
        ("Option A and option B are wrong.", ""),
        ("Option A says cats. Option B says dogs.", ""),
        ("Option D) cannot be determined", "D"),
        ("(B) x", "B"),
        ("B) H", "B"),
        ("Option B) x", "B"),
        ("Answer: A only.", "A"),
        ("The answer is A here.", "A"),
        ("The answer is A instead of B", "A"),
        ("Answer: A correct", "A"),
        ("The answer is A while B is not", "A"),
        ("Answer: A while loop ends.", ""),
        ("The answer is most likely D.", "D"),
        ("The answer is E = mc^2", ""),
        ("The answer is I don't know", ""),
    ],
)
def test_denied_and_considered_options_are_not_chosen(completion: str, choice: str) -> None:
    rewards = {letter: value("multiple_choice", completion, letter) for letter in "ABCDEHIKX"}
    assert rewards == {letter: float(letter == choice) for letter in "ABCDEHIKX"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("unit", [1, 1, 0, 0, 0]),
        ("loose", [1, 1, -1, -1, -1]),
        ("soft", [1, 0.5, -0.5, -1, -1]),
        ("strict", [1, -1, -1, -1, -1]),
    ],
)
def test_multiple_choice_values_depend_on_the_letter_and_on_the_box(values: str, expected: list[float]) -> None:
    completions = [r"so \boxed{B}", "The answer is B", r"so \boxed{C}", "The answer is C", "no letter at all"]
    assert [value("multiple_choice", text, "B", values=values) for text in completions] == expected


def test_strict_multiple_choice_requires_a_marked_choice() -> None:
    assert value("multiple_choice", "(B)", "B", strict=True) == 0
    assert value("multiple_choice", "I choose B", "B", strict=True) == 0
    assert value("multiple_choice", "The answer is (B)", "B", strict=True) == 1


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>Paris</answer> extra </answer>", 1.0),
        ("<answer>London <answer>Paris</answer>", 1.0),
        ("<answer>Paris</answer> and <answer>London", 1.0),
        ("</answer>Paris<answer>", 0.0),
    ],
)
def test_the_last_tagged_answer_counts_even_with_unclosed_tags(completion: str, expected: float) -> None:
    assert value("string_matcher", completion, "Paris") == expected


@pytest.mark.parametrize(
    ("text", "boxed", "content"),
    [
        (r"a \boxed{5} b \boxed{\frac{1}{2}} c", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {5} and $x$", r"\boxed {5}", "5"),
        (r"\boxed 5 $", r"\boxed 5", "5"),
        (r"\boxed{\boxed{5}}", r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{4} \boxed{}", r"\boxed{}", ""),
    ],
)
def test_the_last_box_and_its_content_are_found(text: str, boxed: str, content: str) -> None:
    box = find_boxes(text)[-1]
    assert (text[box.start : box.end], box.content, box.is_cut_off) == (boxed, content, False)


def test_no_box_is_found_without_the_command_or_its_braces() -> None:
    assert not any(map(find_boxes, (r"\fbox{3}", r"\boxed", r"\boxedx{1}", r"\boxed x")))


def test_a_box_that_is_never_closed_is_cut_off() -> None:
    assert [(box.content, box.is_cut_off) for box in find_boxes(r"\boxed{2} \boxed{1")] == [("2", False), ("1", True)]


def test_the_hendrycks_form_keeps_a_percent_sign_without_a_backslash() -> None:
    half = r"\frac{1}{2}"
    assert list(map(hendrycks_form, (r"50\%", "50%", "1/2", "07/2", ".5"))) == ["50", "50%", half, "07/2", half]


def test_a_label_may_accept_several_languages_and_tells_the_scripts_of_chinese_apart() -> None:
    pytest.importorskip("langdetect")
    english, chinese = "This is a short sentence.", "今天天气很好，我们去公园散步吧。"
    assert value("language", english, ["de", "EN"]) == 1.0
    assert value("language", chinese, "zh-TW") == 0.0


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def test_a_number_too_large_for_a_schema_to_divide_is_unscorable() -> None:
    with pytest.raises(Unscorable, match="too large"):
        value("json_schema", "1e999", {"multipleOf": 0.5})


@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "2.5E+999", "1e9999999999999999999", "1e-99999999", "7" * 20_000]
)
@pytest.mark.parametrize("document", ["[{}]", '{{"a": {{"b": [1, {}]}}}}'])
def test_json_with_a_number_that_is_not_computed_is_unscorable(number: str, document: str) -> None:
    with pytest.raises(Unscorable, match="too large"):
        value("json_schema", document.format(number), {})
    assert value("json_schema", document.format(number)[:-1], {}) == 0.0, "it is no JSON"


@pytest.mark.parametrize(
    ("number", "schema", "expected"),
    [
        ("9007199254740993", {"maximum": 9007199254740992}, 0.0),
        ("9007199254740993.0", {"maximum": 9007199254740992}, 0.0),
        ("1.0000000000000000001", {"maximum": 1}, 0.0),
        ("1e-400", {"exclusiveMinimum": 0}, 1.0),
        ("0.1", {"maximum": 0.1}, 1.0),
        ("0.30", {"enum": [0.3]}, 1.0),
        ("0.30000000000000000001", {"const": 0.3}, 0.0),
        ("3.0", {"type": "integer", "const": 3}, 1.0),
        ("7" * 5000, {"type": "integer", "minimum": 0}, 1.0),
        ("7" * 5000, {"type": "string"}, 0.0),
        ("1e400", {"type": "number"}, 1.0),
        ("1e400", {"maximum": 5}, 0.0),
        ("1e300", {"multipleOf": 0.1}, 1.0),
        ("1" + 400 * "0", {"multipleOf": 0.5}, 1.0),
        ("1" + 399 * "0" + "1", {"multipleOf": 2}, 0.0),
        ('"0.3"', {"multipleOf": 0.1}, 1.0),
    ],
)
def test_a_schema_computes_with_numbers_as_they_are_written(number: str, schema: Any, expected: float) -> None:
    assert value("json_schema", number, schema) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ('```json\n{"age": 3, "code": "```py\\nx\\n```"}\n```', 1.0),
        ('{"age": 3, "text": "<answer>x</answer>"}', 1.0),
        ('<answer>{"age": 3, "code": "```"}</answer>', 1.0),
        ('```python\nprint("```")\n```\n```json\n{"age": 3}\n```', 1.0),
        ('```json {"age": 3} ```', 1.0),
        ('```json\n{"age": 3}\n```\nNo:\n```json\n{"age": "```"}\n```', 0.0),
        ("```json" * 2000, 0.0),
    ],
)
def test_fences_and_tags_inside_a_text_of_the_json_are_text(completion: str, expected: float) -> None:
    assert value("json_schema", completion, SCHEMA) == expected


@pytest.mark.parametrize(
    "draft", ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]
)
def test_a_schema_that_names_its_draft_divides_as_written_below_a_reference_to_itself(draft: str) -> None:
    schema = {"$schema": draft, "properties": {"price": {"multipleOf": 0.1}, "child": {"$ref": "#"}}}
    rewards = {text: value("json_schema", f'{{"child": {{"price": {text}}}}}', schema) for text in ("0.3", "0.35")}
    assert rewards == {"0.3": 1.0, "0.35": 0.0}


@pytest.mark.parametrize("label", ["A", "The", "+", "?!"])
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("string_matcher", "<answer>%s</answer>"),
        ("puzzle", "%s"),
        ("flan", "The answer is: %s"),
        ("re_search", "<finish>%s</finish>"),
        ("string_f1", "%s"),
        ("re_search_f1", "<finish>%s</finish>"),
    ],
)
def test_a_label_that_normalizes_to_nothing_rewards_itself_and_not_an_empty_answer(
    name: str, form: str, label: str
) -> None:
    rewards = {answer: value(name, form % answer, label) for answer in (label, label.lower(), "", "an", "...")}
    assert rewards[label] == rewards[label.lower()] == 1.0, f"{rewards}"
    assert max(rewards[""], rewards["an"], rewards["..."]) <= 0.1, f"{rewards}"


def test_an_empty_or_missing_answer_of_a_search_agent_earns_no_format_reward() -> None:
    assert value("re_search_f1", "<finish> </finish>", "paris") == 0
    assert value("re_search_f1", "paris", "paris") == 0
    assert value("re_search_f1", "<finish>rome</finish>", "paris") == 0.1


@pytest.mark.parametrize("name", ["max_length", "up_to_max_length", "soft_overlong", "repetition_penalty"])
def test_a_completion_without_token_ids_cannot_be_measured(name: str) -> None:
    with pytest.raises(Unscorable, match="token ids"):
        VERIFIERS[name].judge("text", "5", (), {})
    assert VERIFIERS[name].judge("", "0", (), {}).value in (0, 1)


@pytest.mark.parametrize(
    ("completion", "label", "expected"),
    [
        ("Final Answer: The final answer is 1,000 dollars. I hope it is correct.", "1000", 1.0),
        ("$9^{9^{9^{9}}}$", "5", 0.0),
        ("$99999999!$", "5", 0.0),
        ("$9^{9^{9}} + 1$", "1 + 9^{9^9}", 0.0),
    ],
)
def test_strict_math_requires_the_minerva_form(completion: str, label: str, expected: float) -> None:
    assert value("strict_math", completion, label) == expected


RIGHT = "<think>\nthoughts\n</think>\n<answer>\n5\n</answer>"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (RIGHT, 1.0),
        (RIGHT + "\n\nmore", 1.0),
        (RIGHT + " more", 0.0),
        (RIGHT + " more\n</answer>", 1.0),
        ("\n" + RIGHT, 0.0),
        ("<think>\n\n</think>\n<answer>\n\n</answer>", 1.0),
        ("<think>\n</think>\n<answer>\n5\n</answer>", 0.0),
        ("<think>\nt\n</think>\n<answer>\n</answer>", 0.0),
        ("<think>\nt\n</think>\n\n<answer>\n5\n</answer>", 0.0),
        ("<think>\nt</think>\n<answer>5</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_the_think_answer_format_gives_each_tag_a_line(completion: str, expected: float) -> None:
    assert value("think_answer_format", completion, None) == expected, completion


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("```python\nx\n```", 1.0),
        ("see ```python x``` there", 1.0),
        ("```py\nx\n```", 0.0),
        ("```python\nx", 0.0),
        ("x", 0.0),
    ],
)
def test_the_think_answer_format_finds_a_program_in_the_answer(answer: str, expected: float) -> None:
    completion = f"<think>\n```python\nt\n```\n</think>\n<answer>\n{answer}\n</answer>"
    assert value("think_answer_format", completion, None, code_language="python") == expected, completion


@pytest.mark.parametrize(
    ("completion", "expected"),
    [(RIGHT, 1.0), (RIGHT.replace("\n", " "), 0.0), (RIGHT + "\n</answer>", 0.75), ("<think>\n", 0.25), ("", 0.0)],
)
def test_each_tag_that_occurs_once_is_worth_a_quarter(completion: str, expected: float) -> None:
    assert value("think_answer_tags", completion, None) == expected, completion


@pytest.mark.parametrize(
    ("completion", "num_signs"),
    [
        ("1. a\n2. b", 1),
        ("a\n1. b", 0),
        ("Step 1: a Step 22: b", 2),
        ("First, a. Next, b. Finally, c. Second, d.", 3),
        ("a\n- b\n* c", 2),
        ("first, step 1", 0),
    ],
)
def test_three_signs_of_steps_are_worth_one(completion: str, num_signs: int) -> None:
    assert value("reasoning_steps", completion, None) == pytest.approx(num_signs / 3), completion
