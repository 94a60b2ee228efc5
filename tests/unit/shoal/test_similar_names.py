"""Names that may be meant by one that does not exist."""

import pytest

from shoal.similar_names import similar_names

KNOWN = ["learning_rate", "lora", "lr_scheduler", "max_grad_norm", "warmup_ratio", "warmup_steps", "weight_decay"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lr", ["lr_scheduler"]),
        ("warmup", ["warmup_ratio", "warmup_steps"]),
        ("grad_norm", ["max_grad_norm"]),
        ("wd", ["weight_decay"]),
        ("learn", ["learning_rate"]),
        ("max_norm", ["max_grad_norm"]),
        ("wrmp_steps", ["warmup_steps"]),
        ("laerning_rate", ["learning_rate"]),
        ("w", []),
        ("", []),
        ("optimizer", []),
    ],
)
def test_words_and_abbreviations_come_before_names_that_are_only_spelled_alike(name: str, meant: list[str]) -> None:
    assert similar_names(name, KNOWN) == meant


def test_an_abbreviation_of_initials_comes_before_letters_of_one_word() -> None:
    assert similar_names("lr", ["lora", "learning_rate"]) == ["learning_rate"]


def test_a_word_of_many_names_proposes_none_of_them() -> None:
    assert similar_names("cosine", [f"cosine_{number}_of_many_more_words" for number in range(4)]) == []


def test_only_so_many_names_are_proposed_that_are_spelled_alike() -> None:
    assert similar_names("gruop", ["group", "groups", "gruops"], most=1) == ["gruops"]


def test_a_long_name_is_compared_in_time() -> None:
    assert similar_names("a_" * 100_000, ["a" * 300, *KNOWN]) == []
