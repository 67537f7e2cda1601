"""One file of a ladder to hand on, without names and secrets, and its reading elsewhere."""
