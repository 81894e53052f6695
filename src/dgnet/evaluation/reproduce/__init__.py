"""The paper's evidence as cells: small experiments, each a folder with its result, run in any order, anywhere, and merged."""
