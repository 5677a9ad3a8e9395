"""The reference chip with one fault each: what the requirements must find. Knows no check.

A fault is a subclass with one override, named after what is wrong and with the requirement that must find it.
"""
