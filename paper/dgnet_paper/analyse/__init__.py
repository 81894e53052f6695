"""What a trained operator is: spectrum, stability, step norm, size and consistency, with pictures."""
