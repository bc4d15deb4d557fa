"""The verdict on an answer: proofs, trials at points, bounds, rates of growth, and counterexamples."""
