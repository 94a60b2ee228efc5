"""Mutual TLS between a coordinator, a real learner, a real engine and a reward service."""

from pathlib import Path

from tests.contract.security.test_processes import certs as certs
from tests.contract.security.test_processes import meet_over_mutual_tls


async def test_the_four_services_meet_over_mutual_tls_and_nobody_else_gets_in(certs: Path, tmp_path: Path) -> None:
    await meet_over_mutual_tls(("reward", "learner", "generator"), certs, tmp_path)
