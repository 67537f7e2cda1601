"""Settings of the experiment and the site: their shape, reader, checks and defaults."""
