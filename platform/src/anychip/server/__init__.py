"""The HTTP service in front of an engine.

Knows OpenAI's and SGLang's request shapes; knows no device and no model code.
"""
