"""Let tests import their shared helpers as `support.<topic>`. Knows no fixture."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
