"""Checkpoints: find them, check them, read their tensors. Knows files and formats; knows no device and no graph."""
