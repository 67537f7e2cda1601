"""The live view of a ladder: reads its results directory and asks squeue; writes nothing."""
