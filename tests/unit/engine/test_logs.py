"""Logs in a process that is not ours: on standard error, unless its owner configured something else."""

import pytest
import structlog

from anychip.engine.logs import default_logs


@pytest.fixture(autouse=True)
def unconfigured():
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def test_logs_go_to_standard_error(capsys):
    default_logs()
    structlog.get_logger("test").info("loaded")
    out, err = capsys.readouterr()
    assert out == ""
    assert "loaded" in err


def test_what_the_owner_configured_stays(capsys):
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    default_logs()
    structlog.get_logger("test").info("loaded")
    assert capsys.readouterr().out == '{"event": "loaded"}\n'
