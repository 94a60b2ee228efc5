"""Verifiers that take long are reported once for each stage, until all is quiet."""

import pytest

from services.reward.pool.slow import SlowVerifiers


def test_the_notice_names_verifier_and_time_and_ends_after_a_quiet_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    slow = SlowVerifiers(50.0, lambda: now)
    assert slow.notice == ""
    slow.report("mine", 5.0)
    assert all(part in slow.notice for part in (" mine ", "more than 5 s", "reward.timeout_s (50 s)")), slow.notice
    before = slow.notice
    now += 50.0
    slow.report("mine", 5.0)
    assert slow.notice == before and len(caplog.records) == 1, "another completion that hangs is no news"
    slow.report("mine", 30.0)
    slow.report("other", 5.0)
    assert "more than 30 s" in slow.notice and "other" in slow.notice
    now += 61.0
    assert slow.notice == ""
    slow.report("mine", 5.0)
    assert "more than 5 s" in slow.notice and len(caplog.records) == 4, "it is news again"
