"""OpenAI's chat completions and completions. Knows their wire format; knows nothing of how tokens come about."""
