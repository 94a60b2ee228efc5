"""Tests of the instruction checkers beyond the golden verdicts: labels, wording, hostile texts."""

import json
import time
from typing import Any

import pytest

from services.reward.common.verdict import Unscorable
from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.catalog import CONSTRAINTS
from services.reward.verifiers.ifeval.functions import FUNCTIONS

pytest.importorskip("punkt")
pytest.importorskip("langdetect")

from services.reward.common import language
from services.reward.verifiers import ifeval_old
from services.reward.verifiers.ifeval import sentences, verify, words

EXAMPLES: dict[str, Any] = {
    **dict.fromkeys(["first_word", "keyword", "keyword1", "last_word", "word"], "a"),
    **dict.fromkeys(["capital_relation", "let_relation", "relation"], "at least"),
    **dict.fromkeys(["original_prompt", "prompt_to_repeat"], "Write it"),
    **dict.fromkeys(["section_spliter", "section_splitter"], "Part"),
    **dict.fromkeys(["i", "n", "n_sent", "nth_paragraph", "num_highlights"], 2),
    **dict.fromkeys(["num_placeholders", "num_sections", "small_n"], 2),
    **dict.fromkeys(["N", "capital_frequency", "frequency", "m", "num_bullets", "num_paragraphs", "num_sentences"], 3),
    **dict.fromkeys(["let_frequency", "n_end", "n_words", "num_words"], 4),
    "end_phrase": "the end",
    "forbidden_words": ["bad"],
    "keyword2": "b",
    "keyword_list": ["a"],
    "keywords": ["a", "b"],
    "language": "en",
    "letter": "e",
    "n_start": 0,
    "options": ["no"],
    "phrase": "a b c",
    "postscript_marker": "P.S.",
    "quantifier": "around",
}
ALL = [(verify.verify, name, needs.needs) for name, needs in CONSTRAINTS.items()]
ALL += [(ifeval_old.verify, name, needs.needs) for name, needs in FUNCTIONS.items()]


@pytest.fixture(scope="module", autouse=True)
def loaded_models() -> None:
    """Loads the models before any deadline starts: an interrupted load would break every later language test."""
    verify.load()


def label_of(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"instruction_id": [name], "kwargs": [kwargs]} if name in CONSTRAINTS else {"func_name": name, **kwargs}


def follows(name: str, response: str, *, strict: bool = False, **kwargs: Any) -> bool:
    constraint = CONSTRAINTS.get(name) or FUNCTIONS[name]
    return constraint.follows(response, Arguments(name, kwargs, strict_wording=strict))


def score(completion: str, label: Any) -> float:
    return verify.VERIFIER.judge(completion, label, (), {}).value


def test_there_are_54_constraints_and_25_older_functions() -> None:
    assert (len(CONSTRAINTS), len(FUNCTIONS)) == (54, 25)


def case_id(value: Any) -> str:
    return value.__name__ if callable(value) else str(value)


@pytest.mark.parametrize(("judge", "name", "needs"), [case for case in ALL if case[2]], ids=case_id)
def test_a_label_without_a_required_kwarg_is_unscorable_for_every_answer(judge: Any, name: str, needs: Any) -> None:
    for missing in needs:
        kwargs = {key: EXAMPLES[key] for key in needs if key != missing}
        for answer in ("", "a", "The end. Part 1 [a] Write it"):
            for incomplete in (kwargs, {**kwargs, missing: None}):
                with pytest.raises(Unscorable, match=f"{name}: .* {missing}"):
                    judge(answer, label_of(name, incomplete))


@pytest.mark.parametrize(("judge", "name", "needs"), ALL, ids=case_id)
def test_numbers_may_be_floats_and_kwargs_of_the_wrong_type_are_unscorable(judge: Any, name: str, needs: Any) -> None:
    kwargs = {key: EXAMPLES[key] for key in needs}
    floats = {key: float(value) if isinstance(value, int) else value for key, value in kwargs.items()}
    for answer in ("", "a b c. Write it", "Write it\n\n******"):
        assert judge(answer, label_of(name, kwargs)) == judge(answer, json.dumps(label_of(name, floats)))
    for key in needs:
        for wrong in ({}, True, -1, 1.5, float("nan"), [], [1], "" if isinstance(EXAMPLES[key], str) else "3"):
            with pytest.raises(Unscorable, match=f"{name}: {key} "):
                judge("a", label_of(name, {**kwargs, key: wrong}))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("not a literal", "neither JSON"),
        ("[" * 5000, "neither JSON"),
        (None, "instruction_id"),
        (3.0, "instruction_id"),
        ({"instruction_id": "punctuation:no_comma"}, "instruction_id"),
        ("[]", "no instruction"),
        ('{"instruction_id": ["punctuation:no_comma"], "instruction_id": [], "kwargs": [{}]}', "twice"),
        ([{"instruction_id": [], "kwargs": []}, "{'instruction_id': []}"], "no instruction"),
        ({"instruction_id": ["no:such"], "kwargs": [None]}, "'no:such'.* change_case"),
        ({"instruction_id": [["x"]], "kwargs": [None]}, "no instruction"),
        ({"instruction_id": ["punctuation:no_comma"], "kwargs": []}, "instruction_id"),
        ({"instruction_id": ["punctuation:no_comma"], "kwargs": [3]}, "object or null"),
        ({"instruction_id": ["punctuation:no_comma"], "kwargs": [{"N": 3}]}, r"kwargs N "),
    ],
)
def test_a_label_that_cannot_be_read_is_unscorable(label: Any, message: str) -> None:
    with pytest.raises(Unscorable, match=message):
        verify.verify("text", label)


@pytest.mark.parametrize("label", ["{}", "[]", "3", {"func_name": "no_such"}, {"func_name": None}, None])
def test_an_older_label_that_names_no_function_is_unscorable(label: Any) -> None:
    with pytest.raises(Unscorable, match=r"func_name|no instruction"):
        ifeval_old.verify("text", label)


def test_scoring_one_completion_of_a_group_does_not_change_an_older_label() -> None:
    label = {"func_name": "validate_end", "end_phrase": "end", "N": None}
    assert [ifeval_old.verify("The end", label).value for _ in range(3)] == [1.0, 1.0, 1.0]


def test_labels_may_be_objects_or_json_or_python_text() -> None:
    item = {"instruction_id": ["punctuation:no_comma", "keywords:existence"], "kwargs": [None, {"keywords": ["a"]}]}
    forms = [item, [item], json.dumps(item), json.dumps([item]), str([item]), [json.dumps(item)], str([str(item)])]
    assert [score("a, b", form) for form in forms] == [0.5] * len(forms)
    assert score("b", [item, item]) == 0.5


def test_only_the_text_after_the_thinking_counts_and_an_empty_answer_scores_zero() -> None:
    label = {"instruction_id": ["punctuation:no_comma"], "kwargs": [{}]}
    answers = ["<think>a, b</think> c", "<think>a</think> b, c", "<think>a, b", "a</think>  <answer> </answer>"]
    assert [score(answer, label) for answer in answers] == [1.0, 0.0, 0.0, 0.0]
    old = {"func_name": "validate_no_commas"}
    assert [ifeval_old.VERIFIER.judge(answer, old, (), {}).value for answer in answers] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("NaN", 0.0),
        ('{"a": [-Infinity]}', 0.0),
        ("```json\n[Infinity]\n```", 0.0),
        ('["NaN"]', 1.0),
        ("[1e400]", 1.0),
        ("7" * 5000, 1.0),
    ],
)
def test_nan_and_infinity_are_no_json(answer: str, expected: float) -> None:
    assert score(answer, {"instruction_id": ["detectable_format:json_format"], "kwargs": [{}]}) == expected
    if "```" not in answer:
        assert ifeval_old.verify(answer, {"func_name": "validate_json_format"}).value == expected


def test_the_detail_names_the_instructions_that_were_not_followed() -> None:
    label = {"instruction_id": ["punctuation:no_comma", "punctuation:punctuation_dot"], "kwargs": [{}, {}]}
    assert verify.verify("a. b", label).detail == "not followed: punctuation:punctuation_dot"


@pytest.mark.parametrize("keyword", ["c++(", "[", "*", "(?P<a"])
@pytest.mark.parametrize(
    ("name", "field", "found"),
    [
        ("keywords:word_once", "keyword", True),
        ("keywords:existence", "keywords", True),
        ("keywords:forbidden_words", "forbidden_words", False),
    ],
)
def test_a_keyword_that_is_not_a_regular_expression_is_unscorable_and_plain_text_under_strict_wording(
    keyword: str, name: str, field: str, found: bool
) -> None:
    kwargs = {field: keyword if field == "keyword" else [keyword]}
    with pytest.raises(Unscorable, match=f"{name}: {field} "):
        verify.verify("a", label_of(name, kwargs))
    assert follows(name, f"so {keyword} it is", strict=True, **kwargs) is found


WORDINGS = [
    ("keywords:existence", {"keywords": ["ice"]}, "a slice", True, False),
    ("keywords:frequency", {"keyword": "a.b", "frequency": 1, "relation": "at least"}, "axb", True, False),
    ("keywords:word_once", {"keyword": "sun"}, "The sunny sun", False, True),
    ("keywords:exclude_word_harder", {"keyword": "boat"}, "Boat at the start", True, False),
    ("keywords:palindrome", {}, "This is a test", True, False),
    ("keywords:palindrome", {}, "Level, then.", False, True),
    ("keywords:start_end", {}, "Day after day.", False, True),
    ("count:count_unique", {}, "One. Two. Three.", False, True),
    ("count:count_unique", {}, "The the", True, False),
    ("count:lowercase_counting", {"N": 1}, "one two three", False, True),
    ("count:counting_composition", {"n_sent": 1, "n_words": 2}, "Go now. *** Eat well. *** Sleep tight.", False, True),
    ("count:counting_composition", {"n_sent": 1, "n_words": 2}, "*** Go now. *** Eat up. *** Hi me.", False, True),
    ("language:response_language", {"language": "fr"}, "123", True, False),
    ("detectable_format:constrained_response", {}, "Well: My answer is yes.", True, False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "---\n* one", False, True),
    ("detectable_format:multiple_sections", {"section_spliter": "S", "num_sections": 1}, "S 1 S 2", True, False),
    ("detectable_format:sentence_hyphens", {}, "Go now.-", True, False),
    ("detectable_format:bigram_wrapping", {}, "<<x y>> z", True, False),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[][]", True, False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "see p.s. later", True, False),
    ("copy:repeat_phrase", {"phrase": "a.c is it", "small_n": 1}, "abc is it", True, False),
    ("validate_sections", {"section_splitter": "PART", "N": 1}, " PART 1", False, True),
    ("validate_forbidden_words", {"forbidden_words": ["c++"]}, "c++ it is", False, False),
    ("keywords:forbidden_words", {"forbidden_words": ["c.t"]}, "a cat", False, True),
    ("first_word:first_word_answer", {"first_word": "Yes"}, "Yes, it is", False, True),
    ("validate_forbidden_words", {"forbidden_words": ["cat"]}, "concatenate", False, True),
    ("validate_choice", {"options": ["blue"]}, "blueberry", True, False),
    ("validate_title", {}, "<<>>", True, False),
    ("validate_two_responses", {}, "******b", True, False),
    ("verify_bullet_points", {"N": 1}, "**bold**\n* x", False, True),
]


@pytest.mark.parametrize(("name", "kwargs", "response", "checker", "strict"), WORDINGS)
def test_strict_wording_judges_by_the_text_of_the_instruction(
    name: str, kwargs: dict[str, Any], response: str, checker: bool, strict: bool
) -> None:
    got = follows(name, response, **kwargs), follows(name, response, strict=True, **kwargs)
    assert got == (checker, strict), f"{name} of {response!r}: checker and strict verdict {got}"


def test_the_same_text_always_has_the_same_language() -> None:
    text = "no si via la data euro info"
    assert len({language.language_of(text) for _ in range(20)}) == 1
    assert language.language_of("123 456") is None


@pytest.mark.parametrize(
    ("text", "by_statistics", "by_rules"),
    [
        ("Dr. Smith left. He ran.", 2, 2),
        ("A b. Our warm bread smells good. C.", 3, 2),
        ("We met at 3 p.m. It rained.", 2, 1),
        ("It costs 3.14 at shop.com now. Wow!!", 3, 3),
        ("He paused... Then he spoke.", 1, 2),
        ('"Stop!" he said. (She did.) End', 4, 4),
        ("", 0, 0),
        ("no mark at all", 1, 1),
    ],
)
def test_sentences_are_split_by_statistics_and_by_rules(text: str, by_statistics: int, by_rules: int) -> None:
    got = len(sentences.punkt_sentences(text)), len(sentences.ruled_sentences(text))
    assert got == (by_statistics, by_rules), (sentences.punkt_sentences(text), sentences.ruled_sentences(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("They can't pay $3.88, can they?", ["They", "ca", "n't", "pay", "$", "3.88", ",", "can", "they", "?"]),
        ('He said "no." Really', ["He", "said", "``", "no", ".", "''", "Really"]),
        ("Cannot we'll James' it's", ["Can", "not", "we", "'ll", "James", "'", "it", "'s"]),
        ("Mr. Ray -- 12:30 ... ok.", ["Mr.", "Ray", "--", "12:30", "...", "ok", "."]),
        ("'tis (so) [x]; gonna", ["'", "tis", "(", "so", ")", "[", "x", "]", ";", "gon", "na"]),
    ],
)
def test_words_follow_the_conventions_of_the_penn_treebank(text: str, expected: list[str]) -> None:
    assert words.treebank_words(text) == expected


HOSTILE = ["a", " ", ".", "[", "<", "* ", "\n", "A b. ", "{", "\ud800", "1", "a@"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_twenty_thousand_hostile_characters_are_judged_within_a_second(piece: str) -> None:
    text = piece * (20_000 // len(piece))
    for judge, name, needs in ALL:
        started = time.process_time()
        value = judge(text, label_of(name, {key: EXAMPLES[key] for key in needs})).value
        duration_s = time.process_time() - started
        assert value in (0.0, 1.0) and duration_s < 1.0, f"{name} took {duration_s:.2f} s for {piece!r}, value {value}"
