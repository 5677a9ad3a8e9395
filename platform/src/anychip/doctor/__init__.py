"""Whether this machine has what a recipe or a backend needs: checks and what to do. Changes nothing."""
