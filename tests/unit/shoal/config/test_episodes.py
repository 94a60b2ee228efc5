import pytest

from shoal.config.episodes import EpisodesConfig


def test_a_form_of_calls_of_the_users_own_needs_a_pattern_that_works() -> None:
    pattern = r"CALL (?P<name>[a-z]+): (?P<argument>[^\n]*)"
    assert EpisodesConfig(tool_parser="regex", tool_pattern=pattern).tool_pattern == pattern
    for parser, given, problem in (
        ("regex", "", "go together"),
        ("hermes", pattern, "go together"),
        ("regex", "(", "is no regular expression"),
        ("regex", "x", "must have the group"),
    ):
        with pytest.raises(ValueError, match=problem):
            EpisodesConfig.model_validate({"tool_parser": parser, "tool_pattern": given})


def test_a_discount_of_turns_needs_rewards_of_turns() -> None:
    assert EpisodesConfig(turn_rewards="tokens", turn_discount=0.9).turn_discount == 0.9
    with pytest.raises(ValueError, match="needs turn_rewards"):
        EpisodesConfig(turn_discount=0.9)
