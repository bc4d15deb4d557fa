"""Nothing here asks the network. The matrix of architectures is printed by tests/matrix_report.py."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TQDM_DISABLE"] = "1"

# Under --import-mode=importlib a folder of tests is no package: this makes what several of them share importable.
sys.path.insert(0, str(Path(__file__).parent))
