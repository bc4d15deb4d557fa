"""No test here uses the network. tests/helpers/matrix_report.py prints the matrix of architectures."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TQDM_DISABLE"] = "1"
