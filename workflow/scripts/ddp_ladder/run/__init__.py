"""The job of one scale: its runs, nodes, agents and progress."""
