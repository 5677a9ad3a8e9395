"""Measure how fast a device runs kernels, inside the engine's own steps. Knows no recipe of a user."""
