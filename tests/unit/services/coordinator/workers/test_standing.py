from services.coordinator.workers.standing import MAX_PAUSE_S, Standing


def test_pauses_double_up_to_a_bound_and_a_load_ends_the_row() -> None:
    standing = Standing()
    pauses = [standing.load_failed(100.0, max_failures=99) for _ in range(8)]
    assert pauses == [5, 10, 20, 40, 80, 160, MAX_PAUSE_S, MAX_PAUSE_S], pauses
    assert not standing.may_try(100.0 + MAX_PAUSE_S - 1) and standing.may_try(100.0 + MAX_PAUSE_S)
    standing.loaded()
    assert standing.may_try(0.0) and standing.load_failed(0.0, max_failures=99) == 5


def test_the_last_failure_quarantines_for_good() -> None:
    standing = Standing()
    assert [standing.load_failed(0.0, max_failures=2) for _ in range(2)] == [5, float("inf")]
    assert standing.is_quarantined and not standing.may_try(1e12)
