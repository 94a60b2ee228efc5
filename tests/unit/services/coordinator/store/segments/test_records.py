"""Records of a group's payloads."""

from services.coordinator.store.segments.records import messages_of, text_record, token_record
from shoal.v1 import rollout_pb2
from shoal.wire import completion_from_wire
from tests.support.train_batches import make_groups, with_segments


def test_segments_are_kept_with_the_tokens_whole_and_with_the_texts_without_them() -> None:
    (group,) = make_groups(num_groups=1)
    completions = [rollout.completion for rollout in with_segments(group, num_prompt_tokens=(4, 6)).rollouts]
    (tokens, *_), (texts, *_) = (
        messages_of(record(completions), rollout_pb2.Completion) for record in (token_record, text_record)
    )
    read, sent = completion_from_wire(tokens).episode, completions[0].episode
    assert read is not None and sent is not None
    prompts = [segment.prompt_token_ids.tolist() for segment in read.segments]
    assert prompts == [segment.prompt_token_ids.tolist() for segment in sent.segments]
    assert [(segment.start, segment.end) for segment in texts.episode.segments] == [
        (segment.start, segment.end) for segment in sent.segments
    ]
    assert not any(segment.prompt_token_ids for segment in texts.episode.segments)
