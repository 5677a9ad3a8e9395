"""Turn a recipe into a running service of this machine, and look after it. Knows processes; knows no model."""
