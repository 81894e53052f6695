"""What data say about an equation: coefficients, reactions, material curves, with their uncertainty."""
