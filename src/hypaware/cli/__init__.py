"""The `hyp` command line: parse arguments, call the other packages, print the result."""
