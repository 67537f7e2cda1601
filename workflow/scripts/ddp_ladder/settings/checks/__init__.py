"""Checks that a schema cannot make: one module per topic, one function for each thing refused."""
