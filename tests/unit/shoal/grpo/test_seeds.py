from shoal.grpo.seeds import completion_seed


def test_seeds_never_change_and_fit_into_json() -> None:
    # Constants: a change would change the samples of every stored run on a resume.
    assert completion_seed(0, 0, 0) == 4695861301148546
    seeds = {completion_seed(run, order, index) for run in range(3) for order in range(40) for index in range(16)}
    assert len(seeds) == 3 * 40 * 16
    assert max(seeds) < 2**53
