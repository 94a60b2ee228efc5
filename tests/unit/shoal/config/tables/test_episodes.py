from typing import Any

import pytest

from shoal.config.tables.episodes import PARSERS_THAT_STOP, EpisodesConfig
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


@pytest.mark.parametrize("section", ["data", "evaluation"])
def test_a_source_names_an_environment_that_the_configuration_has(section: str) -> None:
    named: dict[str, Any] = {section: {"sources": [{"path": "d", "environment": "Wordle"}]}}
    assert run_config(**named, environments=[{"name": "wordle"}]).plays_episodes
    with pytest.raises(InvalidArgument, match=rf"{section}\.sources\.0\.environment: .*'Wordle'"):
        run_config(**named)


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
        run_config(episodes={"call_timeout_s": 100_000, "timeout_s": 200_000})


def test_inline_results_say_where_the_result_stands() -> None:
    assert EpisodesConfig(tool_parser="tag", inline_results="<output>{result}</output>").inline_results
    for text in ("<output></output>", "{result}{result}", "{Result}"):
        with pytest.raises(ValueError, match=r"must contain \{result\}"):
            EpisodesConfig(tool_parser="tag", inline_results=text)


def test_results_of_tools_have_one_place() -> None:
    assert EpisodesConfig(user_results="<result>{result}</result>").user_results
    with pytest.raises(ValueError, match=r"must contain \{result\}"):
        EpisodesConfig(user_results="result")
    with pytest.raises(ValueError, match="inline_results and user_results"):
        EpisodesConfig(tool_parser="tag", inline_results="{result}", user_results="{result}")


def test_inline_results_need_calls_that_end_what_is_sampled() -> None:
    played: dict[str, Any] = {"data": {"sources": [{"path": "d", "environment": "counter"}]}}
    played |= {"environments": [{"name": "counter"}], "run": {"num_steps": 2}}

    def parsed(parser: str, *stop_strings: str) -> Any:
        episodes = {"tool_parser": parser, "inline_results": "<output>{result}</output>"}
        return run_config(episodes=episodes, sampling={"stop_strings": [*stop_strings]}, **played)

    for parser in PARSERS_THAT_STOP:
        assert parsed(parser).episodes.inline_results
    assert parsed("hermes", "</tool_call>").episodes.inline_results
    with pytest.raises(InvalidArgument, match=r"episodes\.inline_results .*stop_strings"):
        parsed("hermes")
