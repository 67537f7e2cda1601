"""From the rows of ranks to figures: pauses, owners, timing, statistic, and what makes runs comparable."""
