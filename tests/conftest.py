"""Let tests import their shared helpers as `support.<topic>`, and seed property tests. Knows no fixture."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("seeded", derandomize=True)
settings.load_profile("seeded")  # `--hypothesis-profile=default` looks at other examples
