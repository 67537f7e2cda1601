"""What the nodes are, and what the runs used of them: samples, a description, figures and findings."""
