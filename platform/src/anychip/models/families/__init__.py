"""One module per family of models: its config class says all that the platform asks about it."""
