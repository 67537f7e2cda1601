"""From the raw files of a run to its record, and to what the record proves."""
