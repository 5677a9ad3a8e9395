"""Write anew what each shipped recipe is planned as: `python tests/golden/plans/regenerate.py`. Knows no plan."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.plans import GOLDEN_CASES

for case in GOLDEN_CASES:
    for file, text in case.files().items():
        file.write_text(text, encoding="utf-8")
