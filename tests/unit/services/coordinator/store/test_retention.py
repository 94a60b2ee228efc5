from services.coordinator.store.retention import best_of, kept_of

SCORES = {10: 0.1, 20: 0.7, 30: 0.2, 40: 0.7, 50: 0.3}


def test_the_last_steps_and_the_best_are_kept() -> None:
    steps = [10, 20, 30, 40, 50]
    assert kept_of(steps, 2, {20}) == [20, 40, 50]
    assert kept_of(steps, 2) == [40, 50]
    assert kept_of(steps, 0) == steps


def test_the_best_is_the_earliest_of_equals_and_has_a_value() -> None:
    assert best_of([10, 20, 30, 40], SCORES, is_lowest=False) == 20
    assert best_of([10, 20, 30, 40], SCORES, is_lowest=True) == 10
    assert best_of([60, 20], SCORES, is_lowest=True) == 20, "step 60 has no value yet"
    assert best_of([60], SCORES, is_lowest=False) is None
    values = {10: float("nan"), 20: -1.0, 30: float("inf")}
    assert best_of([10, 20, 30], values, is_lowest=False) == best_of([10, 20, 30], values, is_lowest=True) == 20
