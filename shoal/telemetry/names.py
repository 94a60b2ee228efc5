"""Every name that telemetry sends, with its unit and meaning.

docs/telemetry.md is made from this module by `python -m shoal.telemetry.names`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar


class _Documented(str):
    """A name that says what it means."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        self = super().__new__(cls, name)
        self.meaning = meaning
        return self


class SpanName(_Documented):
    """A stretch of work in a trace."""


class AttributeName(_Documented):
    """A fact about a span or a metric."""


class Instrument(StrEnum):
    """How a metric adds up."""

    COUNTER = "counter"
    """Only rises."""
    GAUGE = "gauge"
    """The last value counts."""
    HISTOGRAM = "histogram"
    """The distribution counts."""


@dataclass(frozen=True)
class MetricName:
    """A number that is measured over and over."""

    name: str
    instrument: Instrument
    unit: str
    """In UCUM: "s", "By", or what is counted in braces, such as "{token}"."""
    meaning: str
    boundaries: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, rising."""


_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

# One trace for each group: issue, sample, score, train step, publish.
GROUP_ISSUE = SpanName("group.issue", "A prompt becomes a group. Root of the group's trace.")
GROUP_SAMPLE = SpanName("group.sample", "Sampling the completions of a group, from dispatch to the last of them.")
GROUP_SCORE = SpanName("group.score", "Scoring the completions of a group.")
TRAIN_STEP = SpanName("train.step", "The train step that the group is part of; one span in each group's trace.")
WEIGHTS_PUBLISH = SpanName("weights.publish", "Publishing the weights that were trained on the group.")

RUN_ID = AttributeName("shoal.run_id", "Names the run.")
GROUP_ID = AttributeName("shoal.group_id", "Names the group within the run.")
POLICY_VERSION = AttributeName("shoal.policy_version", "Train steps that the weights have seen.")
WORKER_ID = AttributeName("shoal.worker_id", "Names the worker process.")
STATE = AttributeName("shoal.state", "Where a group ended: `TRAINED` or `DROPPED`.")
FINISH_REASON = AttributeName("shoal.finish_reason", "Why a completion ended: `stop` or `length`.")
SOURCE = AttributeName("shoal.source", "Where a verdict came from: `endpoint`, or `cache`, for an identical question.")
DIRECTION = AttributeName("shoal.direction", "Of tokens: `input` or `output`.")

VERIFIER = AttributeName("shoal.verifier", "Name of the verifier.")
OUTCOME = AttributeName("shoal.outcome", "What judging came to: `scored`, `unscorable` or `failed`.")

RPC_SYSTEM = AttributeName("rpc.system", "Always `grpc`.")
RPC_SERVICE = AttributeName("rpc.service", "Full name of the service, for example `shoal.v1.RewardService`.")
RPC_METHOD = AttributeName("rpc.method", "Name of the method.")
RPC_STATUS = AttributeName("rpc.grpc.status_code", "Status of the call as a number; 0 is OK.")

RPC_SERVER_DURATION = MetricName(
    "rpc.server.call.duration", Instrument.HISTOGRAM, "s", "Time a server took for a call, streams included.", _SECONDS
)
LOOP_LAG = MetricName(
    "shoal.event_loop.lag",
    Instrument.HISTOGRAM,
    "s",
    "Time that a process's event loop was late, as a probe sees it twice a second.",
    _SECONDS,
)
GENERATOR_TOKENS = MetricName(
    "shoal.generator.tokens", Instrument.COUNTER, "{token}", "Tokens of finished completions."
)
GENERATOR_COMPLETIONS = MetricName(
    "shoal.generator.completions", Instrument.COUNTER, "{completion}", "Finished completions, by finish reason."
)
GENERATOR_RUNNING = MetricName(
    "shoal.generator.running", Instrument.GAUGE, "{completion}", "Completions that a generator samples."
)
GENERATOR_WAITING = MetricName(
    "shoal.generator.waiting", Instrument.GAUGE, "{completion}", "Completions that wait for a place in a generator."
)
WEIGHTS_PAUSE = MetricName(
    "shoal.weights.pause", Instrument.HISTOGRAM, "s", "Time that a load of weights kept a generator paused.", _SECONDS
)
WEIGHTS_RECEIVE = MetricName(
    "shoal.weights.receive",
    Instrument.HISTOGRAM,
    "s",
    "Part of a load that a generator spent receiving and hashing.",
    _SECONDS,
)
WEIGHTS_LOAD = MetricName(
    "shoal.weights.load", Instrument.HISTOGRAM, "s", "Part of a load that the engine spent loading.", _SECONDS
)

REWARD_OPEN = MetricName(
    "shoal.reward.open",
    Instrument.GAUGE,
    "{completion}",
    "Completions that a reward service has taken and not answered.",
)
REWARD_RUNNING = MetricName(
    "shoal.reward.running", Instrument.GAUGE, "{completion}", "Completions that processes of the pool judge."
)
REWARD_WAITING = MetricName(
    "shoal.reward.waiting", Instrument.GAUGE, "{completion}", "Completions that wait for a process of the pool."
)
REWARD_WAIT = MetricName(
    "shoal.reward.wait",
    Instrument.HISTOGRAM,
    "s",
    "Time that a completion waited for a process, by verifier.",
    _SECONDS,
)
REWARD_DURATION = MetricName(
    "shoal.reward.duration",
    Instrument.HISTOGRAM,
    "s",
    "Time that a verifier took for a completion, without the wait, by verifier and outcome.",
    _SECONDS,
)
REWARD_VERDICTS = MetricName(
    "shoal.reward.verdicts", Instrument.COUNTER, "{verdict}", "Completions judged, by verifier and outcome."
)
REWARD_POOL_RESTARTS = MetricName(
    "shoal.reward.pool_restarts",
    Instrument.COUNTER,
    "{process}",
    "Processes of the pool that were replaced because they died or hung.",
)
JUDGE_QUESTIONS = MetricName(
    "shoal.judge.questions", Instrument.COUNTER, "{question}", "Verdicts wanted of the judge, by source."
)
JUDGE_TOKENS = MetricName(
    "shoal.judge.tokens", Instrument.COUNTER, "{token}", "Tokens that the judge read and wrote, by direction."
)
JUDGE_COST = MetricName(
    "shoal.judge.cost", Instrument.COUNTER, "1", "What the judge cost, by the prices of `reward.judge`."
)


RUN_POLICY_VERSION = MetricName(
    "shoal.run.policy_version", Instrument.GAUGE, "{step}", "Train steps that the run's policy has seen."
)
RUN_CORRECT_RATE = MetricName(
    "shoal.run.correct_rate", Instrument.GAUGE, "1", "Share of the last step's scored completions that are correct."
)
RUN_GROUPS = MetricName(
    "shoal.run.groups", Instrument.COUNTER, "{group}", "Groups that steps have used up, by ledger state."
)
RUN_STEP = MetricName("shoal.run.step", Instrument.HISTOGRAM, "s", "Time from one train step to the next.", _SECONDS)
RUN_STEP_WAIT = MetricName(
    "shoal.run.step_wait",
    Instrument.HISTOGRAM,
    "s",
    "Part of a step in which the learner waited for groups.",
    _SECONDS,
)
RUN_PUBLISH = MetricName(
    "shoal.run.publish", Instrument.HISTOGRAM, "s", "Time that a publish to all generators took.", _SECONDS
)

_N = TypeVar("_N", SpanName, AttributeName, MetricName)


def _declared(kind: type[_N]) -> list[_N]:
    return [value for value in globals().values() if isinstance(value, kind)]


def as_markdown() -> str:
    """The page docs/telemetry.md."""
    lines = [
        "# Telemetry",
        "",
        "<!-- Made by `python -m shoal.telemetry.names > docs/telemetry.md`; a test compares. -->",
        "",
        "Traces and metrics go out over OTLP (gRPC) when `OTEL_EXPORTER_OTLP_ENDPOINT` is set; the other `OTEL_*`",
        "variables mean what the OpenTelemetry SDK says. With `--metrics-port` a service also answers Prometheus,",
        "which writes dots as `_`, adds the unit to the name, and `_total` to counters.",
        "",
        "Logs are one JSON object a line, on stderr or in `--log-file`, with `time`, `level`, `service`, `event`,",
        "`logger`, and `trace_id` and `span_id` within a span. `SHOAL_LOG_LEVEL` (default `INFO`) says how much.",
        "",
        "## Spans",
        "",
        "Each call between services has a client span and a server span named after its method. Around them:",
        "",
        "| span | meaning |",
        "| --- | --- |",
        *(f"| `{span}` | {span.meaning} |" for span in _declared(SpanName)),
        "",
        "## Metrics",
        "",
        "| metric | instrument | unit | meaning |",
        "| --- | --- | --- | --- |",
        *(f"| `{m.name}` | {m.instrument} | {m.unit} | {m.meaning} |" for m in _declared(MetricName)),
        "",
        "## Attributes",
        "",
        "| attribute | meaning |",
        "| --- | --- |",
        *(f"| `{attribute}` | {attribute.meaning} |" for attribute in _declared(AttributeName)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
