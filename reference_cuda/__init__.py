"""The chapter's kernels in raw CUDA, to compare the Triton twins with. Importing builds nothing."""
