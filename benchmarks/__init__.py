"""What is measured: one script each, with the table it prints. `python -m benchmarks NAME --help`."""
