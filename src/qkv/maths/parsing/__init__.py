"""From a text to a typed tree: cleaning, tokens, the grammar, and what each piece of syntax means."""
