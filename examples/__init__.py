"""Whole programs that use the package, measured: see docs/examples.md."""
