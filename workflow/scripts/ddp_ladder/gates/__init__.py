"""The judgement of a stage on its records."""
