import pytest

from shoal.errors import InvalidArgument, Unavailable
from shoal.worker.address import advertised_address, advertised_host, listening_interface


@pytest.mark.parametrize(
    ("listen", "advertise", "coordinator", "expected"),
    [
        ("0.0.0.0:0", None, "127.0.0.1:7000", "127.0.0.1:41000"),
        ("[::]:0", None, "127.0.0.1:7000", "127.0.0.1:41000"),
        ("10.1.2.3:0", None, "127.0.0.1:7000", "10.1.2.3:41000"),
        ("[fd00::7]:0", None, "127.0.0.1:7000", "[fd00::7]:41000"),
        ("0.0.0.0:0", "generator-0.shoal", "127.0.0.1:7000", "generator-0.shoal:41000"),
        ("0.0.0.0:0", "gateway:9000", "127.0.0.1:7000", "gateway:9000"),
        ("0.0.0.0:0", "[fd00::7]", "127.0.0.1:7000", "[fd00::7]:41000"),
        ("0.0.0.0:0", "[fd00::7]:9000", "127.0.0.1:7000", "[fd00::7]:9000"),
    ],
)
def test_the_address_that_peers_can_reach_is_advertised(listen, advertise, coordinator, expected):
    assert advertised_address(listen=listen, port=41000, advertise=advertise, coordinator=coordinator) == expected


def test_an_address_that_means_every_address_cannot_be_advertised():
    with pytest.raises(InvalidArgument, match=r"--advertise 0\.0\.0\.0: "):
        advertised_address(listen="0.0.0.0:0", port=41000, advertise="0.0.0.0", coordinator="127.0.0.1:7000")


def test_a_coordinator_whose_name_does_not_resolve_is_unavailable():
    with pytest.raises(Unavailable, match=r" no-such-host\.invalid:7000"):
        advertised_address(listen="0.0.0.0:0", port=41000, advertise=None, coordinator="no-such-host.invalid:7000")


@pytest.mark.parametrize(
    ("listen", "interface"),
    [("10.1.2.3:0", "10.1.2.3"), ("[fd00::7]:0", "fd00::7"), ("0.0.0.0:0", None), ("[::]:0", None), ("0:0", None)],
)
def test_the_weight_plane_listens_where_the_service_does(listen, interface):
    assert listening_interface(listen) == interface


@pytest.mark.parametrize(
    ("advertise", "host"), [(None, None), ("gen-0", "gen-0"), ("gen-0:9000", "gen-0"), ("[fd00::7]:9000", "fd00::7")]
)
def test_the_advertised_host_has_no_port(advertise, host):
    assert advertised_host(advertise) == host
