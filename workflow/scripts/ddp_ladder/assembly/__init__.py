"""From raw files to records: of a run, of a plan, of a run that the ladder did not start."""
