from shoal.grpo.seeds import completion_seed, continuation_seed


def test_seeds_never_change_and_fit_into_json() -> None:
    # Constants: a change would change the samples of every stored run on a resume.
    assert completion_seed(0, 0, 0) == 4695861301148546
    seeds = {completion_seed(run, order, index) for run in range(3) for order in range(40) for index in range(16)}
    assert len(seeds) == 3 * 40 * 16
    assert max(seeds) < 2**53


def test_a_completion_that_goes_on_draws_other_numbers_than_its_prefix_and_without_one_the_same() -> None:
    seed = completion_seed(0, 0, 0)
    assert continuation_seed(seed, 0) == seed
    seeds = {continuation_seed(seed, length) for length in range(1000)}
    assert len(seeds) == 1000 and all(0 <= value < 2**53 for value in seeds)
