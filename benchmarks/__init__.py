"""What is measured, one command each: `python -m benchmarks NAME`, JSON out."""
