"""Run requests on one device: schedule, forward, sample. Knows the plan; knows nothing of HTTP or recipes."""
