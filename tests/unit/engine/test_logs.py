"""Logs in a process that is not ours: warnings on standard error, and what its owner configured stays."""

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


def test_warnings_go_to_standard_error_and_nothing_to_standard_output(capsys):
    default_logs()
    log = structlog.get_logger("test")
    log.info("loaded")
    log.warning("refused")
    out, err = capsys.readouterr()
    assert out == ""
    assert "refused" in err
    assert "loaded" not in err


def test_what_the_owner_configured_stays(capsys):
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    default_logs()
    structlog.get_logger("test").info("loaded")
    assert capsys.readouterr().out == '{"event": "loaded"}\n'
