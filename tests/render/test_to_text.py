import subprocess
import sys

from qkv.render.to_text import in_text, pretty


def test_indices_are_small_where_there_are_such_signs():
    symbols = {"q_1": "vector[d]", "k_j": "vector[d]", "W_Q": "matrix[d,d]", "d_model": "natural"}
    assert in_text("$q_1^T k_j$, $W_Q$ and $d_model$", symbols) == "q₁ᵀkⱼ, W_Q and d_model"
    assert pretty("x_{1,2} x_12 x_{i+1} x_ab") == "x₁,₂ x₁₂ x_{i+1} x_ab"
    assert pretty("0.00000012 0.0012 10.00000001") == "1.2×10⁻⁷ 0.0012 10.00000001"


def test_rich_is_not_loaded():
    program = "import sys, qkv.render.to_text; print('rich' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "False"
