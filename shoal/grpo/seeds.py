"""Seeds of completions, and of the dropout of adapters."""

import hashlib


def completion_seed(run_seed: int, order_number: int, sample_index: int) -> int:
    """Derives a seed in [0, 2^53) from the run's seed, the group's order number and the sample's index in the group.

    A group that is sampled again, on any machine, draws the same numbers. JSON keeps 53 bits exactly.
    """
    return _seed(f"{run_seed}/{order_number}/{sample_index}")


def turn_seed(seed: int, number: int) -> int:
    """Derives a seed in [0, 2^53) for one turn of an episode, from the seed of its sample; turns count from 1.

    With one seed for all turns, equal contexts would get equal draws.
    """
    return _seed(f"{seed}/turn/{number}")


def environment_seed(run_seed: int, order_number: int) -> int:
    """Derives a seed in [0, 2^53) for an environment's draws. All samples of a group share the seed, so they get the
    same question and differ only in the policy's turns."""
    return _seed(f"{run_seed}/{order_number}/environment")


def evaluation_seed(run_seed: int, prompt_id: str, sample_index: int) -> int:
    """Derives a seed in [0, 2^53) for one answer to a held-out question. Training uses other seeds.

    The seed is equal in every evaluation of the run, so two policies' answers differ only because the policies differ.
    """
    return _seed(f"{run_seed}/evaluation/{prompt_id}/{sample_index}")


def evaluation_environment_seed(run_seed: int, prompt_id: str) -> int:
    """Derives a seed in [0, 2^53) for an environment's draws for a held-out question, equal in every evaluation.
    Training never uses this seed."""
    return _seed(f"{run_seed}/evaluation/{prompt_id}/environment")


def continuation_seed(seed: int, num_prefix_tokens: int) -> int:
    """Derives a seed in [0, 2^53) for continuing a completion after its first tokens, from the seed of these tokens.

    An engine draws from the beginning of a seed's sequence. With an unchanged seed, the tokens after the prefix would
    repeat the numbers with which the prefix was drawn. Without a prefix the seed does not change.
    """
    return _seed(f"{seed}/after/{num_prefix_tokens}") if num_prefix_tokens else seed


def dropout_seed(run_seed: int, num_optimizer_steps: int, rank: int) -> int:
    """Derives a seed in [0, 2^53) for the dropout of a learner's rank in its next optimizer step."""
    return _seed(f"{run_seed}/dropout/{num_optimizer_steps}/{rank}")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 11
