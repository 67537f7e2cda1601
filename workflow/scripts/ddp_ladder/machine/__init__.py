"""The machine: what each node of a scale's job is made of, and to which CPUs its ranks are bound."""
