"""ARCHITECTURE.md shows the layers that import-linter checks."""

import re

from importlinter.application.use_cases import read_user_options
from importlinter.configuration import configure

from support.sources import ROOT


def test_the_line_of_layers_is_the_contract():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [line] = re.findall(r"```text\nanychip_sdk < (.*?)```", text, re.DOTALL)
    shown = [re.sub(r"\s+", " ", stage).strip() for stage in line.split("<")]
    configure()
    contracts = read_user_options(config_filename=str(ROOT / "pyproject.toml")).contracts_options
    [layers] = [one for one in contracts if one["type"] == "layers"]
    assert shown == list(reversed(layers["layers"]))
    assert str(layers["exhaustive"]) == "True"
