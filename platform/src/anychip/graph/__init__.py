"""From a model's modules to straight-line code: trace, expand, replace, fold, verify, codegen. Knows no engine."""
