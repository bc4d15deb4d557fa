"""Normal forms in index notation: sums of monomials whose bound indices have canonical names."""
