"""What was said in an episode, for people."""

from services.coordinator.reporting.episode_words import Said, ending_of, words_of
from services.coordinator.store.rollout_page import MAX_TEXT_BYTES, Page
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2 as r
from tests.support.wordings import has_all


def two_turns() -> r.Episode:
    call = r.ToolCall(name="add", raw="<add>1</add>", status=r.TOOL_CALL_STATUS_OK)
    broken = r.ToolCall(raw="<add>", status=r.TOOL_CALL_STATUS_MALFORMED, detail="no closing tag")
    return r.Episode(
        first_messages=[r.ChatMessage(role="user", content="Begin.")],
        turns=[
            r.EpisodeTurn(
                message=r.ChatMessage(role="assistant", content="I add.", tool_calls=[call, broken]),
                observations=[r.ChatMessage(role="tool", name="add", content="1")],
                tool_outcomes=[r.ToolOutcome(name="add", ok=False, timed_out=True, duration_s=60)],
                reward=0.5,
                finish_reason=r.FINISH_REASON_STOP,
            ),
            r.EpisodeTurn(message=r.ChatMessage(role="assistant", content="1"), finish_reason=r.FINISH_REASON_LENGTH),
        ],
        stop_reason="max_tokens",
        outcome=r.SCORE_OUTCOME_FAILED,
        detail="division by zero",
        metrics={"solved": 0},
    )


def test_an_episode_is_told_message_by_message_with_what_became_of_each() -> None:
    note = "call malformed: no closing tag; add timed out after 60.0 s; reward 0.5"
    assert list(words_of(two_turns())) == [
        Said("user", "Begin.", "", False),
        Said("turn 1", "I add.\n<add>1</add>\n<add>", note, True),
        Said("add", "1", "", False),
        Said("turn 2", "1", "cut off", True),
    ]


def test_the_end_says_by_what_and_what_broke() -> None:
    episode = two_turns()
    assert has_all(ending_of(episode), "max_tokens", "2 turns", "environment failed", "solved 0", ": division by zero")
    episode.outcome, episode.truncated, episode.detail = r.SCORE_OUTCOME_SCORED, True, "far away"
    assert has_all(ending_of(episode), "2 turns (", "truncated)", "solved 0", ": far away")


def test_a_call_that_could_not_be_used_is_told_once() -> None:
    detail = "There is no tool 'find'; the tools are: search."
    call = r.ToolCall(name="find", raw="<find>", status=r.TOOL_CALL_STATUS_UNKNOWN_TOOL, detail=detail)
    message = r.ChatMessage(role="assistant", tool_calls=[call])
    turn = r.EpisodeTurn(message=message, tool_outcomes=[r.ToolOutcome(name="find", ok=False)])
    assert [said.note for said in words_of(r.Episode(turns=[turn]))] == [f"find unknown tool: {detail}"]


def test_long_words_are_cut_so_that_the_episode_fits_into_a_page() -> None:
    episode = two_turns()
    for turn in episode.turns:
        turn.message.content = "€" * MAX_TEXT_BYTES
    response = pb.ListRolloutsResponse()
    group = pb.RolloutGroup(rollouts=[pb.Rollout(episode=episode)])
    assert Page(response).add(group, 0) is None
    cut = response.groups[0].rollouts[0].episode
    assert cut.ByteSize() <= 1.1 * MAX_TEXT_BYTES and "characters …]" in cut.turns[0].message.content
    assert cut.turns[0].observations[0].content == "1", "what is short is whole"


def test_an_episode_of_several_segments_tells_where_each_begins() -> None:
    def turn(start: int) -> r.EpisodeTurn:
        message = r.ChatMessage(role="assistant", content=f"from {start}")
        return r.EpisodeTurn(start=start, end=start + 2, message=message, finish_reason=r.FINISH_REASON_STOP)

    first = r.EpisodeSegment(start=0, end=4, messages=[r.ChatMessage(role="user", content="Begin.")])
    second = r.EpisodeSegment(start=4, end=6)
    episode = r.Episode(
        turns=[turn(0), turn(2), turn(4)], segments=[first, second], stop_reason="done", num_auxiliary_turns=2,
        outcome=r.SCORE_OUTCOME_SCORED,
    )  # fmt: skip
    assert list(words_of(episode)) == [
        Said("user", "Begin.", "segment 1 of 2", False),
        Said("turn 1", "from 0", "", True),
        Said("turn 2", "from 2", "", True),
        Said("context", "(tokens, not messages)", "segment 2 of 2", False),
        Said("turn 3", "from 4", "", True),
    ]
    for turn_in_time, number in zip(episode.turns, (1, 3, 2), strict=True):
        turn_in_time.number = number
    assert [said.who for said in words_of(episode) if said.is_policy] == ["turn 1", "turn 3", "turn 2"]
    assert has_all(ending_of(episode), "(done)", "3 turns", "not trained on: 2")
