from typing import Any

import pytest

from shoal.config import parse_config
from shoal.config.tables.episodes import PARSERS_THAT_STOP, EpisodesConfig
from shoal.errors import InvalidArgument

_CONFIG: dict[str, Any] = {"model": {"path": "m"}, "run": {"num_steps": 2}}


@pytest.mark.parametrize("section", ["data", "evaluation"])
def test_a_source_names_an_environment_that_the_configuration_has(section: str) -> None:
    sources = {"data": {"sources": [{"path": "d"}]}}
    named = {section: {"sources": [{"path": "d", "environment": "Wordle"}]}}
    declared = {"environments": [{"name": "wordle"}]}
    assert parse_config(_CONFIG | sources | named | declared).plays_episodes
    with pytest.raises(InvalidArgument, match=rf"{section}\.sources\.0\.environment: .*'Wordle'"):
        parse_config(_CONFIG | sources | named)


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


def test_a_call_may_not_take_longer_than_an_environment_service_allows() -> None:
    with pytest.raises(InvalidArgument, match=r"episodes\.call_timeout_s: .* 86400"):
        parse_config(
            _CONFIG
            | {"data": {"sources": [{"path": "d"}]}, "episodes": {"call_timeout_s": 100_000, "timeout_s": 200_000}}
        )


def test_inline_results_say_where_the_result_stands() -> None:
    assert EpisodesConfig(tool_parser="tag", inline_results="<output>{result}</output>").inline_results
    for text in ("<output></output>", "{result}{result}", "{Result}"):
        with pytest.raises(ValueError, match=r"must have \{result\} once"):
            EpisodesConfig(tool_parser="tag", inline_results=text)


def test_inline_results_need_calls_that_end_what_is_sampled() -> None:
    played = {"data": {"sources": [{"path": "d", "environment": "counter"}]}, "environments": [{"name": "counter"}]}

    def parsed(parser: str, *stop_strings: str) -> Any:
        episodes = {"tool_parser": parser, "inline_results": "<output>{result}</output>"}
        return parse_config(_CONFIG | played | {"episodes": episodes, "sampling": {"stop_strings": [*stop_strings]}})

    for parser in PARSERS_THAT_STOP:
        assert parsed(parser).episodes.inline_results
    assert parsed("hermes", "</tool_call>").episodes.inline_results
    with pytest.raises(InvalidArgument, match=r"episodes\.inline_results .*stop_strings"):
        parsed("hermes")
