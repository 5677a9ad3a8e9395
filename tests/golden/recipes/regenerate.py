"""Write anew what each broken recipe reports: `python tests/golden/recipes/regenerate.py`. Knows no recipe's fault."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.golden_recipes import CASES, expected_file, outcome

for case in CASES:
    expected_file(case).write_text(outcome(case), encoding="utf-8")
