"""What the measured scales say of others: prediction."""
