"""Agents: environments that are programs, which call the policy instead of answering its turns."""

from dataclasses import dataclass
from typing import Any, Self

from shoal.environment.environment import Environment


@dataclass(frozen=True)
class Policy:
    """The policy that is trained, behind an HTTP endpoint in the form of OpenAI's, for one episode."""

    base_url: str
    """The URL of the endpoint, which ends with "/v1". Append `/chat/completions` or `/models`, or replace "/v1" by
    `/inference/v1/generate`."""
    api_key: str
    """The key, which is valid only in this episode."""
    max_context_tokens: int
    """The longest context in tokens, including the tokens that are sampled after it."""
    model: str = "policy"
    auxiliary_model: str = "auxiliary"
    """Another name of the policy. Answers under this name are not trained on."""


class Agent(Environment):
    """An environment whose episodes are runs of a program. The program calls the policy any number of times, with any
    messages. The policy's answers are recorded when they are sampled, and are trained on.

    Example:
        class Doubling(Agent):
            \"\"\"Asks for the double of a number.\"\"\"

            async def run(self, task, seed, policy):
                client = AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key)
                question = {"role": "user", "content": f"What is {task['number']} times 2?"}
                answer = await client.chat.completions.create(model=policy.model, messages=[question])
                return float(str(2 * task["number"]) in answer.choices[0].message.content)
    """

    turn_rewards: dict[str, float]
    """Rewards of turns, by the `id` of the policy's answer, beside the episode's reward; read when the episode ends."""

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        agent = super().__new__(cls, *arguments, **settings)
        agent.turn_rewards = {}
        return agent

    def run(self, task: dict[str, Any], seed: int, policy: Policy) -> Any:
        """Runs the episode. Returns its reward; None if `self.reward` has it, or if there is none. May be `async`; a
        plain method gets its own thread. Called after `reset`, whose answer is not used."""
        raise NotImplementedError(f"{type(self).__name__} has no method `run`")
