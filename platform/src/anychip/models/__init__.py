"""Model families as data and modules. Knows Llama, Qwen2 and Qwen3; knows no vendor and reads no file."""
