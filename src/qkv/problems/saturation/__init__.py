"""Why scores are divided by the root of the width, and the Jacobian of softmax."""
