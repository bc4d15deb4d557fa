"""`python -m qkv` is `qkv`."""

from .cli import main

if __name__ == "__main__":
    main()
