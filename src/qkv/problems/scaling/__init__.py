"""Mean and variance of a score, and what it is divided by."""
