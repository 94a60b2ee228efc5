import numpy as np
import pytest

from services.coordinator.sampling import SettledGroup
from services.coordinator.step_figures import answer_figures, reward_figures
from shoal.rollout import Completion, FinishReason, Prompt, Score, ScoreOutcome, VerifierScore

PROMPT = Prompt("p:0", np.array([1, 2], np.int32), "?", ())


def group(*answers: tuple[FinishReason, float | None]) -> SettledGroup:
    """A group by how each completion ended and what its format scored; None: the format's verifier failed."""
    completions, scores = [], []
    for index, (reason, value) in enumerate(answers):
        tokens = np.array([5, 6], np.int32)
        completions.append(Completion(index, tokens, np.zeros(2, np.float32), reason, (), seed=index))
        outcome = ScoreOutcome.FAILED if value is None else ScoreOutcome.SCORED
        scores.append(Score(index, outcome, 0.0, (VerifierScore("r1_format", outcome, value or 0.0),)))
    return SettledGroup(0, "g", PROMPT, "", tuple(completions), tuple(scores))


def test_the_reward_with_kl_taken_from_it() -> None:
    in_loss = {"objective/scores": 0.5, "objective/kl": 3.0, "objective/kl_coef": 0.1}
    assert reward_figures(in_loss) == {
        "objective/non_score_reward": pytest.approx(0.3),
        "objective/rlhf_reward": pytest.approx(0.2),
    }
    in_reward = {
        "objective/scores": 0.5,
        "objective/kl": 3.0,
        "objective/reward_kl": 2.0,
        "objective/reward_kl_coef": 0.1,
    }
    assert reward_figures(in_reward)["objective/rlhf_reward"] == pytest.approx(0.3)
    assert reward_figures({"objective/scores": 0.5})["objective/rlhf_reward"] == 0.5
    assert reward_figures({"objective/kl": 3.0}) == {}


def test_stop_tokens_are_counted_and_format_scores_are_a_mean_of_those_there_are() -> None:
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    figures = answer_figures([group((stop, 1.0), (length, 0.0)), group((stop, 1.0), (stop, None))])
    assert figures == {"val/num_stop_token_ids": 3.0, "val/format_scores": pytest.approx(2 / 3)}
    assert answer_figures([]) == {"val/num_stop_token_ids": 0.0}
