"""What a run used of its nodes: their samples, in the phases of its training, and what they show."""
