"""How an answer is judged by its form: numbers, arrays, formulas, growth classes, shapes, choices, code, proofs."""
