"""Run cases in processes of their own. Knows groups, workers and attempts; knows no verdict."""
