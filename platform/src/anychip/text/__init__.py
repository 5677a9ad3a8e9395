"""Text and token ids: tokenizers, chat templates, incremental decoding, stop strings. Knows no request."""
