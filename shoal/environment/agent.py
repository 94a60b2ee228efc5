"""Agents: programs of their own, which call the policy instead of answering its turns."""

from dataclasses import dataclass
from typing import Any, Self

from shoal.environment.environment import Environment


@dataclass(frozen=True)
class Policy:
    """The policy that is trained, behind an HTTP endpoint in the form of OpenAI's, for one episode."""

    base_url: str
    """Ends with "/v1"; `/chat/completions` and `/models` follow, and `/inference/v1/generate` what comes before."""
    api_key: str
    """Of this episode alone."""
    max_context_tokens: int
    """Longest context, with what is sampled behind it."""
    model: str = "policy"
    auxiliary_model: str = "auxiliary"
    """The same policy; what it says under this name is not trained on."""


class Agent(Environment):
    """An environment whose episodes are runs of a program that calls the policy, as often as it likes, with messages of
    its own. What the policy says is recorded where it is sampled, and trained on.

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
    """Rewards of turns, besides that of the episode: by the `id` of the policy's answer. Read when it ends."""

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        agent = super().__new__(cls, *arguments, **settings)
        agent.turn_rewards = {}
        return agent

    def run(self, task: dict[str, Any], seed: int, policy: Policy) -> Any:
        """Runs the episode. Returns its reward, or None where `self.reward` has it, or nobody.

        May be `async`; a plain method has a thread of its own. Called after `reset`, whose answer is not used.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `run`")
