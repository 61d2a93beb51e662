"""What `plan` may choose from: one algorithm a file."""
