"""The checks, a file per track; importing them registers their requirements. Knows no runner."""
