"""One step of decoding: shapes, einsum strings, costs."""
