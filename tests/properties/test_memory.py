"""Any order of append, decode, crop, reorder, fork and reset: the cache is what a plain list would be.

`make test` draws the same walks every time; `python -m campaigns caches` takes over 50,000 new steps.
"""

from hypothesis import settings
from memory_walks import Memories

TestMemories = Memories.TestCase
TestMemories.settings = settings(TestMemories.settings, max_examples=50, stateful_step_count=20)
