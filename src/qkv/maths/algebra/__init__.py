"""Normal forms by index notation: sums of monomials with canonically named indices."""
