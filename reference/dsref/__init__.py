"""The model in PyTorch: the oracle that deepserve's C code is compared with. See ../README.md."""
