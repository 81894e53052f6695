"""The paper's experiments: cells, tables, cards, published figures, shipped weights and the demo."""
