"""What is wrong with a run: causes of failures, hangs, and checks of its records."""
