"""What was measured, and the scripts that measure it: `python -m benchmarks` lists them."""
