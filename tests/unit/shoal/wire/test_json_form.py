"""The JSON form of messages."""

import json

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire.json_form import json_form, json_line


def test_zeros_are_there_absent_fields_are_null_and_integers_are_numbers() -> None:
    score = rollout_pb2.Score(outcome=rollout_pb2.SCORE_OUTCOME_SCORED)
    group = pb.RolloutGroup(order_number=0, train_step=2**40, rollouts=[pb.Rollout(score=score), pb.Rollout()])
    values = json_form(group)
    assert list(values) == [field.name for field in pb.RolloutGroup.DESCRIPTOR.fields]
    assert (values["order_number"], values["train_step"], values["staleness"]) == (0, 2**40, None)
    scored, unscored = values["rollouts"]
    assert (scored["sample_index"], scored["score"]["reward"], scored["advantage"]) == (0, 0.0, None)
    assert scored["score"]["outcome"] == "SCORE_OUTCOME_SCORED" and scored["score"]["parts"] == []
    assert unscored["score"] is None and unscored["finish_reason"] == "FINISH_REASON_UNSPECIFIED"


def test_every_timestamp_has_six_decimals() -> None:
    times = [json_form(pb.Run(create_time=Timestamp(seconds=0, nanos=nanos)))["create_time"] for nanos in (0, 500_000)]
    assert times == ["1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000500Z"]


def test_maps_and_attributes_are_sorted_and_counts_are_integers() -> None:
    attributes = json_format.ParseDict({"step": 3, "a": [1.5, None, True, {"b": "x"}]}, Struct())
    event = json_form(pb.RunEvent(attributes=attributes))
    assert json.dumps(event["attributes"]) == '{"a": [1.5, null, true, {"b": "x"}], "step": 3}'
    run = json_form(pb.Run(metrics={"b": 1.0, "a": float("inf")}, num_groups={"TRAINED": 4}))
    assert json.dumps(run["metrics"]) == '{"a": "Infinity", "b": 1.0}' and run["num_groups"] == {"TRAINED": 4}


def test_any_protobuf_library_reads_it_back() -> None:
    message = pb.Worker(worker_id="a\u2028\n", kind=1, heartbeat_age=Duration(seconds=3, nanos=400_000_000))
    line = json_line(message)
    assert len(line.splitlines()) == 1, line
    assert json_format.Parse(line, pb.Worker()) == message
    digest = rollout_pb2.Completion(token_ids=b"\x00\x01", seed=2**53 - 1)
    assert json_format.ParseDict(json_form(digest), rollout_pb2.Completion()) == digest
