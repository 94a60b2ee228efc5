import argparse
from pathlib import Path

import pytest

from shoal.worker.arguments import WorkerArguments, add_grace_option, add_worker_options, worker_arguments

VARIABLES = ("COORDINATOR", "LISTEN", "ADVERTISE", "DATA_DIR", "METRICS_PORT")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(f"SHOAL_{name}", raising=False)


def parse(*words):
    parser = argparse.ArgumentParser(prog="worker")
    add_worker_options(parser)
    return worker_arguments(parser.parse_args(words))


def test_only_the_coordinator_is_required(capsys):
    assert parse("--coordinator", "coordinator:7000") == WorkerArguments(
        coordinator="coordinator:7000",
        listen="127.0.0.1:0",
        advertise=None,
        data_dir=Path("runs"),
        metrics_port=None,
        log_file=None,
    )
    with pytest.raises(SystemExit):
        parse()
    assert "--coordinator" in capsys.readouterr().err


def test_environment_variables_equal_options(monkeypatch):
    for name, value in zip(VARIABLES, ("c:7000", "[::]:7001", "gen-0", "/data", "9100"), strict=True):
        monkeypatch.setenv(f"SHOAL_{name}", value)
    by_environment = parse()
    assert by_environment == parse(
        *("--coordinator", "c:7000", "--listen", "[::]:7001", "--advertise", "gen-0"),
        *("--data-dir", "/data", "--metrics-port", "9100"),
    )
    assert by_environment.metrics_port == 9100
    assert by_environment.data_dir == Path("/data")


def test_a_variable_that_is_empty_counts_as_unset(monkeypatch):
    for name in VARIABLES[1:]:
        monkeypatch.setenv(f"SHOAL_{name}", "")
    arguments = parse("--coordinator", "c:7000")
    assert (arguments.listen, arguments.advertise, arguments.data_dir) == ("127.0.0.1:0", None, Path("runs"))
    assert arguments.metrics_port is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--coordinator", "coordinator"),
        ("--coordinator", ":7000"),
        ("--coordinator", "coordinator:http"),
        ("--coordinator", "coordinator:70000"),
        ("--coordinator", "fd00::7:7000"),
        ("--listen", "7001"),
        ("--advertise", ":7001"),
        ("--advertise", "gen-0:x"),
        ("--metrics-port", "-1"),
    ],
)
def test_a_malformed_address_is_refused_with_its_option_and_value(capsys, option, value):
    with pytest.raises(SystemExit) as raised:
        parse("--coordinator", "c:7000", f"{option}={value}")
    assert raised.value.code == 2
    message = capsys.readouterr().err
    assert option in message and (value in message or value.rpartition(":")[2] in message), message


def test_a_malformed_variable_is_refused_like_an_option(monkeypatch, capsys):
    monkeypatch.setenv("SHOAL_COORDINATOR", "coordinator")
    with pytest.raises(SystemExit):
        parse()
    assert "'coordinator' is not host:port" in capsys.readouterr().err


def parse_grace(*words):
    parser = argparse.ArgumentParser(prog="worker")
    add_grace_option(parser, "what is under way", default_s=10.0)
    return parser.parse_args(words).grace_s


def test_the_grace_period_is_that_of_the_option_else_of_the_environment_else_of_the_service(monkeypatch, capsys):
    monkeypatch.delenv("SHOAL_GRACE_S", raising=False)
    assert parse_grace() == 10.0
    monkeypatch.setenv("SHOAL_GRACE_S", "0.5")
    assert (parse_grace(), parse_grace("--grace-s", "0")) == (0.5, 0.0)
    for text in ("-1", "inf", "nan", "soon"):
        monkeypatch.setenv("SHOAL_GRACE_S", text)
        with pytest.raises(SystemExit):
            parse_grace()
        assert text in capsys.readouterr().err
