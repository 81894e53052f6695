"""Random flat parts and bodies, their problems, and the training of universal weights on them."""
