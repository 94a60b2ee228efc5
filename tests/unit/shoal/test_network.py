"""Addresses of this machine."""

from shoal.network import address_toward


def test_the_address_toward_loopback_is_loopback() -> None:
    assert address_toward("127.0.0.1", 80) == "127.0.0.1"
