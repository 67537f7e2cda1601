"""Tables, plots and the page, from records and gates alone."""
