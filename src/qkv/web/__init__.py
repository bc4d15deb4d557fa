"""What the servers of qkv share: how they listen, what they refuse unheard, and how they end."""
