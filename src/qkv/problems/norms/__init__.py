"""Layer and batch normalisation."""
